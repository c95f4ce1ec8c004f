"""How much memory a GPU really needs, against the formula of src/latecomer/engines/fitting.py.

    python benchmarks/memory.py [--cases fedavg/lenet/50,flowdup/cnn64/100]

A case is a method, a model, and how many clients take part in a round; `--chunk auto` decides how many of them are
computed at once. Every case trains for three rounds and evaluates all clients twice, so that all graphs are captured.
Images are made up, 32x32x3. Training and evaluation each have memory of their own, so the formula counts twice.
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import torch

from common import noise, where
from latecomer import make_task, methods
from latecomer.engines.fitting import COPIES, message_bytes
from latecomer.engines.vector import Vector
from latecomer.nets.models import builder
from latecomer.train import Plan, Training

EXAMPLES = 100  # of a client; the paper of FLowDUP has as many
CASES = (
    "fedavg/lenet/5,fedavg/lenet/50,fedavg/lenet/200,fedavg/lenet/1000,pefll/lenet/15,pefll/lenet/1000,"
    "flowdup/cnn64/100,flowdup/cnn64/1000,fedavg/resnet18/20,fedavg/resnet18/1000"
)
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=CASES)
    options = parser.parse_args()
    print(where())
    print(f"{'case':24} {'at once':>8} {'measured':>10} {'formula':>10}")
    for case in options.cases.split(","):
        method, model, rows = case.split("/")
        print(f"{case:24} {study(method, model, int(rows))}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()


def study(name: str, model: str, rows: int) -> str:
    """Rows at once, and GiB beyond what data and states take: measured at most, and by the formula."""
    federation = noise(rows, EXAMPLES)
    kind = methods.get(name)
    few: dict[str, Any] = {"steps": 3} if "steps" in kind.__dataclass_fields__ else {}
    task = make_task(federation, builder(model, federation.examples.shape))
    method = kind(task=task, clients=rows, members=rows, **few)
    engine = Watched(method, [federation], torch.device("cuda"))
    training = Training(method, [federation], engine, Plan(rounds=3, cohort=rows, evaluate_every=2))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in training.go():
        training.drain()
    measured = torch.cuda.max_memory_allocated() - before
    at_once, room = engine.largest
    return f"{at_once:8} {measured / GIB:8.2f} GiB {2 * room / GIB:6.2f} GiB"


class Watched(Vector):
    """Remembers the largest number of rows at once, and what the formula says about them."""

    largest = (0, 0)

    def _inputs(self, asks: Any, first: int, rows: int, nested: bool) -> Any:
        message = max(message_bytes(ask, self.kept[ask.run].blank) for ask in asks)
        count = rows * len(asks)
        room = count * (self.activations + COPIES * message)
        self.largest = max(self.largest[0], count), max(self.largest[1], room)
        return super()._inputs(asks, first, rows, nested)


if __name__ == "__main__":
    main()
