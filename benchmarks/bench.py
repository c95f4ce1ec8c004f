"""How fast latecomer is on this machine: ratios to a plain PyTorch loop, all measured in one process.

    python benchmarks/bench.py                              # the table; recorded if no tracked file was changed
    python benchmarks/bench.py --record FILE [--commit C]   # recorded there, whatever the tree is like
    python benchmarks/bench.py --history [FILE]             # what was recorded, newest last

Both sides take turns on the same clients, and the best of several repeats counts. The plain side is one client after
the other with nn.Module, torch.optim.SGD and cross entropy, channels last on a CPU, its images scaled beforehand
(common.py, plain.py). Our side is what `--engine auto` takes. Images are made up, 32x32x3, but for the digits.

`benchmarks/history.jsonl` has one line per commit, machine and number of threads: measuring again replaces it. A tree
with changes is no commit, so its figures are shown and not kept there; `--record FILE` keeps them, marked `-dirty`.
`--commit` names the commit where there is no checkout, as on a machine that was sent the files alone; its line is then
carried over: cat FILE >> benchmarks/history.jsonl
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import history
import plain
import scale
from common import Cohort, commit, noise, turns, where
from latecomer import Federation, federate, make_task
from latecomer.engines import make, pick_device
from latecomer.method import Method
from latecomer.methods.fedavg import FedAvg
from latecomer.methods.flowdup import FLowDUP
from latecomer.methods.pefll import PeFLL
from latecomer.nets.models import builder
from latecomer.train import Plan, Training


@dataclass(frozen=True)
class Sizes:
    """How much is measured: enough for steady figures in under three minutes on two cores."""

    lenets: tuple[int, ...] = (5,)
    steps: int = 20  # of local training
    side: int = 32  # of an image
    examples: int = 450  # a client's, as in CIFAR-10 among 100 clients
    digits: int = 20  # clients
    pefll: int = 50  # steps a round
    flowdup: int = 10  # clients
    clients: tuple[int, int] = (1_000, 1_000_000)
    repeats: int = 5
    rounds: int = 25  # of the large federations, whose rounds are short
    enough: float = 12.0  # seconds a line, after which a slow or busy machine repeats nothing more


GPU = Sizes(lenets=(5, 50, 200))
TINY = Sizes((2,), steps=2, side=16, examples=40, digits=3, pefll=2, flowdup=2, clients=(60, 120), repeats=1, rounds=2)


@dataclass(frozen=True)
class Figure:
    """One line of the table: milliseconds of a client-step or of a round, ours and theirs."""

    name: str
    engine: str
    unit: str
    ours: float
    other: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the other side."""
        return self.other / self.ours

    def line(self) -> dict[str, Any]:
        numbers = {"ms": self.ours, "against_ms": self.other, "times_as_fast": self.ratio}
        return {"per": self.unit, "engine": self.engine} | {
            key: float(f"{value:.4g}") for key, value in numbers.items()
        }


def figures(sizes: Sizes, device: torch.device) -> Iterator[Figure]:
    shape = (sizes.side, sizes.side, 3)
    for clients in sizes.lenets:
        yield training(f"LeNet, {clients} clients", noise(clients, sizes.examples, shape), "lenet", sizes, device)
    digits = federate("digits", partition="iid", clients=sizes.digits)
    yield training(f"digits MLP, {sizes.digits} clients", digits, "mlp", sizes, device)
    few = noise(5, sizes.examples, shape)
    yield round_of("FedAvg round, LeNet, 5 clients", few, "lenet", FedAvg, sizes, device)
    settings = {"descriptor": 26, "steps": sizes.pefll}  # as for 100 clients
    yield round_of("PeFLL round, LeNet, 5 clients", few, "lenet", PeFLL, sizes, device, **settings)
    unlike = noise(sizes.flowdup, 100, shape)  # examples a client, as in its paper
    yield round_of(f"FLowDUP round, CNN, {sizes.flowdup} clients", unlike, "cnn64", FLowDUP, sizes, device)
    yield growth(sizes, device)


def training(name: str, federation: Federation, model: str, sizes: Sizes, device: torch.device) -> Figure:
    """Local training alone: every client a few steps from its own weights."""
    cohort = Cohort(federation, model, sizes.steps, device)
    engine = make("auto", cohort.method, [federation], str(device))
    count = cohort.rows * sizes.steps
    return against_plain(name, engine, "client-step", lambda: cohort.exchange(engine), cohort.plain(), count, sizes)


def round_of(
    name: str,
    federation: Federation,
    model: str,
    kind: type[Method],
    sizes: Sizes,
    device: torch.device,
    **settings: Any,
) -> Figure:
    """Whole rounds of a method with all clients of a federation."""
    task = make_task(federation, builder(model, federation.examples.shape))
    method = kind(task=task, clients=len(federation), members=len(federation), **settings)
    engine = make("auto", method, [federation], str(device))
    ours = Training(method, [federation], engine, Plan(rounds=10**9, cohort=len(federation)))
    return against_plain(name, engine, "round", ours.advance, plain.rounds(ours), 1, sizes)


def against_plain(
    name: str,
    engine: Any,
    unit: str,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    count: int,
    sizes: Sizes,
) -> Figure:
    seconds = turns({"ours": ours, "plain": theirs}, sizes.repeats, engine.device, sizes.enough)
    best = {side: 1000 * min(times) / count for side, times in seconds.items()}
    return Figure(name, type(engine).__name__.lower(), unit, best["ours"], best["plain"])


def growth(sizes: Sizes, device: torch.device) -> Figure:
    """The median round among many clients, against one among few, with cohorts of one size."""
    trainings = {clients: scale.training(clients, cohort=50, device=str(device)) for clients in sizes.clients}
    seconds = turns({str(k): training.advance for k, training in trainings.items()}, sizes.rounds, device, sizes.enough)
    few, many = (1000 * statistics.median(times) for times in seconds.values())
    name = "{1:,} clients against {0:,}".format(*sizes.clients)
    return Figure(name, "vector", "round", many, few)


def show(found: list[Figure]) -> Table:
    table = Table(caption="ms of a client-step, or of a round where it says so; times as fast: more is better")
    table.add_column("what", no_wrap=True)
    table.add_column("engine")
    for head in ("ms", "against, ms", "times as fast"):
        table.add_column(head, justify="right")
    for one in found:
        table.add_row(one.name, one.engine, f"{one.ours:.4g}", f"{one.other:.4g}", f"{one.ratio:.2f}")
    return table


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FILE", help="append the figures to this file")
    parser.add_argument("--commit", default="", help="the commit that is measured, where git cannot tell")
    parser.add_argument("--history", type=Path, metavar="FILE", nargs="?", const=history.FILE, help="show, and no more")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: as it chooses")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, to see that all runs; never recorded")
    options = parser.parse_args(words)
    console = Console()
    if options.history:
        try:
            history.show(options.history, console)
        except history.BadHistory as error:
            parser.error(str(error))
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as latecomer's runs have it; for both sides
    device, name = pick_device("auto"), options.commit or commit()
    if options.record and not name:
        parser.error("git cannot tell which commit this is; name it by --commit.")
    about = history.about(name, words if words is not None else sys.argv[1:], device)
    console.print(where(), highlight=False, soft_wrap=True)
    found = []
    with console.status("measuring") as status:
        for figure in figures(TINY if options.tiny else GPU if device.type == "cuda" else Sizes(), device):
            found.append(figure)
            status.update(f"measured {figure.name}")
    console.print(show(found))
    if options.tiny:
        return
    target = options.record or history.FILE
    if options.record or (name and not name.endswith("-dirty")):
        history.record(target, about | {"figures": {figure.name: figure.line() for figure in found}})
        console.print(f"recorded in {target}", soft_wrap=True)
    else:
        console.print("not recorded: this is no commit as it stands; --record FILE keeps the figures", soft_wrap=True)


if __name__ == "__main__":
    main()
