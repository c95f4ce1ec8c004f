"""Milliseconds per client-step of local training by every engine and by a plain PyTorch loop, in one run.

    python benchmarks/cohort.py [--rows 5,50] [--steps 20] [--model lenet] [--side 32]

All train the same clients (batch 32, SGD with momentum, gradient clipping) and take turns; the best of several repeats
counts. The plain loop is that of common.py; `loop` is latecomer's engine of this name.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

from common import Cohort, noise, turns, where
from latecomer.engines import make, pick_device
from latecomer.engines.auto import faster


def measure(cohort: Cohort, repeats: int) -> dict[str, float]:
    """Seconds of one exchange for every engine, and of the plain loop."""
    gpu = cohort.device.type == "cuda"
    kinds = {"loop": {}, "vector": {"graphs": False}} | ({"vector+graphs": {}} if gpu else {})
    sides = {"plain": cohort.plain()}
    for name, options in kinds.items():
        engine = make(name.partition("+")[0], cohort.method, [cohort.federation], str(cohort.device), **options)
        sides[name] = partial(cohort.exchange, engine)
    return {name: min(seconds) for name, seconds in turns(sides, repeats, cohort.device).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="5,50,200" if torch.cuda.is_available() else "1,5,20")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    device = pick_device("auto")
    print(where())
    print(f"{options.model}, {options.side}x{options.side}x{options.channels}, batch 32, {options.steps} steps")
    for rows in map(int, options.rows.split(",")):
        federation = noise(rows, 400, (options.side, options.side, options.channels))
        cohort = Cohort(federation, options.model, options.steps, device)
        if device.type == "cpu":
            print(f"  (auto takes {faster(cohort.method, [federation], device)})")
        seconds = measure(cohort, options.repeats)
        for name, value in seconds.items():
            each = 1000 * value / rows / options.steps
            ratios = "  ".join(f"{seconds[other] / value:6.2f} x {other}" for other in ("plain", "loop"))
            print(f"{rows:5} clients  {name:14} {each:8.4f} ms a client-step  {ratios}")


if __name__ == "__main__":
    main()
