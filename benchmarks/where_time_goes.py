"""Where the time goes on a GPU: the kernels of local training, or of whole rounds of a method, by share.

    python benchmarks/where_time_goes.py [--rows 5,15,50] [--steps 50] [--model lenet] [--batch 32] [--top 25]
    python benchmarks/where_time_goes.py --round pefll [--rows 5,50,200] [--model lenet]

Prints the milliseconds per client-step, or per round, by replay of the captured graph, the launches, and what kernels
take. Images are made up, 32x32x3; a client has 450 in rounds (100 in those of flowdup), as in the papers' settings.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from common import Cohort, noise, turns, wait, where
from latecomer import make_task, methods
from latecomer.engines.vector import Vector
from latecomer.nets.models import builder
from latecomer.train import Plan, Training

EXAMPLES = {"flowdup": 100}  # a client's
CUDA = torch.device("cuda")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round", default="", help="a method, of which whole rounds are looked at")
    parser.add_argument("--rows", default="15")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--top", type=int, default=25)
    options = parser.parse_args()
    print(where())
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    for rows in map(int, options.rows.split(",")):
        torch.cuda.reset_peak_memory_stats()
        if options.round:
            study(f"{rows} clients, a round", whole(options.round, options.model, rows), 1, 1, options.top)
        else:
            study(f"{rows} rows, a client-step", steps(rows, options), options.steps, rows, options.top)


def steps(rows: int, options: argparse.Namespace) -> Callable[[], object]:
    """Local training of all rows."""
    cohort = Cohort(noise(rows, 400), options.model, options.steps, CUDA, options.batch)
    return partial(cohort.exchange, Vector(cohort.method, [cohort.federation], CUDA))


def whole(name: str, model: str, rows: int) -> Callable[[], object]:
    """A round of a method in which all clients take part."""
    federation = noise(rows, EXAMPLES.get(name, 450))
    task = make_task(federation, builder(model, federation.examples.shape))
    method = methods.get(name)(task=task, clients=rows, members=rows)
    training = Training(method, [federation], Vector(method, [federation], CUDA), Plan(rounds=10**9, cohort=rows))
    return training.advance


def study(what: str, work: Callable[[], object], count: int, rows: int, top: int) -> None:
    """Times `count` steps of so many rows, and names their kernels."""
    best = min(turns({"replay": work}, 8, CUDA)["replay"])
    memory = torch.cuda.max_memory_allocated() / 2**30
    print(f"\n{what}: {1000 * best / (count * rows):.4f} ms, {memory:.2f} GiB at most")
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        work()
        wait(CUDA)
    spent, calls = Counter[str](), Counter[str]()
    for event in recorded.key_averages():
        spent[event.key] += event.device_time_total
        calls[event.key] += event.count
    total = sum(spent.values())
    each = "all rows of a step" if count > 1 else "all of it"
    print(f"{each}: {total / count:.0f} us of kernels, {calls.total() / count:.0f} launches")
    for name, microseconds in spent.most_common(top):
        share = f"{100 * microseconds / total:5.1f} %  {microseconds / count:7.1f} us"
        print(f"  {share}  {calls[name] / count:6.1f} x  {name[:110]}")


if __name__ == "__main__":
    main()
