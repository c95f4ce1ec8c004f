"""Where the time of one exchange goes on a GPU: the kernels of local training, by share.

    python benchmarks/where_time_goes.py [--rows 15] [--steps 10] [--model lenet] [--batch 32] [--top 25]

Prints the milliseconds per client-step by replay of the captured graph, then what the kernels of a step take.
"""

from __future__ import annotations

import argparse
from collections import Counter
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from common import Cohort, noise, turns, wait, where
from latecomer.engines.vector import Vector


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        study(rows, options)


def study(rows: int, options: argparse.Namespace) -> None:
    device = torch.device("cuda")
    cohort = Cohort(noise(rows, 400), options.model, options.steps, device, options.batch)
    engine = Vector(cohort.method, [cohort.federation], device)
    once = partial(cohort.exchange, engine)
    torch.cuda.reset_peak_memory_stats()
    best = min(turns({"replay": once}, 8, device)["replay"])
    steps = rows * options.steps
    memory = torch.cuda.max_memory_allocated() / 2**30
    print(f"\n{rows} rows: {1000 * best / steps:.4f} ms a client-step, {memory:.2f} GiB at most")
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        once()
        wait(device)
    spent, calls = Counter[str](), Counter[str]()
    for event in recorded.key_averages():
        spent[event.key] += event.device_time_total
        calls[event.key] += event.count
    total = sum(spent.values())
    print(
        f"a step of all rows: {total / options.steps:.0f} us of kernels, {calls.total() / options.steps:.0f} launches"
    )
    for name, microseconds in spent.most_common(options.top):
        each_step = calls[name] / options.steps
        share = f"{100 * microseconds / total:5.1f} %  {microseconds / options.steps:7.1f} us"
        print(f"  {share}  {each_step:5.1f} x  {name[:110]}")


if __name__ == "__main__":
    main()
