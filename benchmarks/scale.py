"""Time and memory of one round as the federation grows, at a fixed cohort.

    python benchmarks/scale.py [--clients 1000,10000,100000,1000000] [--cohort 50] [--rounds 20] [--method fedavg]

Every client owns ten of 60,000 made-up examples by index. The federations take turns, and the median round of each
counts. Memory is counted exactly: the bytes of every tensor that a client costs beyond its index rows, and the growth
of the process beside it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from functools import partial
from typing import Any

import torch

from common import turns, where
from latecomer import Federation, make_task, methods
from latecomer.data.federation import USUAL, Examples, Rows
from latecomer.engines import make
from latecomer.nets.models import builder
from latecomer.train import Plan, Training

OWNED = {"train": 8, "val": 1, "test": 1}
WIDTHS = {
    "descriptor": 32,
    "embedding": 32,
}  # where nobody says, some methods make them a quarter of the clients' number


def federation(clients: int) -> Federation:
    """Index rows only; the examples are shared."""
    generator = torch.Generator().manual_seed(0)
    examples = Examples(
        torch.randint(256, (60_000, 8, 8, 1), generator=generator, dtype=torch.uint8),
        torch.randint(10, (60_000,), generator=generator),
        classes=10,
    )
    splits = {
        split: Rows(
            torch.randint(60_000, (clients * count,), generator=generator, dtype=torch.int32),
            torch.arange(clients + 1) * count,
        )
        for split, count in OWNED.items()
    }
    columns = {
        "labelled": torch.ones(clients, dtype=torch.bool),
        "rotation": torch.zeros(clients, dtype=torch.int16),
        "budget": torch.full((clients,), USUAL, dtype=torch.int8),
    }
    return Federation(examples, **splits, **columns, members=clients)


def training(clients: int, cohort: int, device: str = "auto", name: str = "fedavg") -> Training:
    """A method with a small network among so many clients."""
    built, kind = federation(clients), methods.get(name)
    own: dict[str, Any] = {key: width for key, width in WIDTHS.items() if key in kind.__dataclass_fields__}
    task = make_task(built, builder("mlp", (1, 8, 8)))
    method = kind(task=task, clients=clients, members=clients, batch=8, **own)
    plan = Plan(rounds=10**9, cohort=cohort)
    return Training(method, [built], make("vector", method, [built], device), plan)


def bytes_each(built: Federation) -> float:
    """Bytes a client costs beyond its index rows, by the tensors that hold them."""
    columns = [
        built.labelled,
        built.rotation,
        built.budget,
        built.weight,
        *(built.rows(split).start for split in OWNED),
    ]
    return sum(column.numel() * column.element_size() for column in columns) / len(built)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1000,10000,100000,1000000")
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--method", default="fedavg")
    options = parser.parse_args()
    print(where())
    trainings: dict[int, Training] = {}
    growth: dict[int, int] = {}
    setup: dict[int, float] = {}
    for clients in map(int, options.clients.split(",")):
        before, began = peak(), time.perf_counter()
        trainings[clients] = training(clients, min(clients, options.cohort), name=options.method)
        growth[clients], setup[clients] = peak() - before, time.perf_counter() - began
    device = next(iter(trainings.values())).engine.device
    worked: dict[int, list[float]] = {clients: [] for clients in trainings}

    def advance(clients: int) -> None:
        began = time.process_time()
        trainings[clients].advance()
        worked[clients].append(time.process_time() - began)

    seconds = turns({str(clients): partial(advance, clients) for clients in trainings}, options.rounds, device)
    first = statistics.median(seconds[next(iter(seconds))])
    for clients in trainings:
        median = statistics.median(seconds[str(clients)])
        each = bytes_each(trainings[clients].federations[0])
        print(
            f"{clients:9,} clients  {1000 * median:8.2f} ms a round  {median / first:5.2f} x the first  "
            f"{1000 * statistics.median(worked[clients]):8.2f} ms of processors  "
            f"{each:5.1f} bytes a client beyond index rows  process grew by {growth[clients] / 2**20:7.1f} MiB  "
            f"{setup[clients]:5.2f} s before the first round"
        )


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
