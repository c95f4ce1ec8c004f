"""Milliseconds per client-step of local training: loop, vector and, on a GPU, vector with graphs, in one run.

    python benchmarks/cohort.py [--rows 5,50] [--steps 20] [--model lenet] [--side 32]

Every engine trains the same clients on the same batches (batch 32, SGD with momentum, gradient clipping); the
best of several repeats counts, and engines take turns, so that a busy machine disturbs all alike.
"""

from __future__ import annotations

import argparse
import time

import torch

from common import noise, wait, where
from latecomer import make_task, tree
from latecomer.clients import Clients
from latecomer.engines import make, pick_device
from latecomer.engines.auto import faster
from latecomer.engines.loop import Loop
from latecomer.engines.vector import Vector
from latecomer.methods.pfedhn import PFedHN
from latecomer.nets.models import builder


def measure(rows: int, steps: int, model: str, side: int, channels: int, repeats: int) -> dict[str, float]:
    """Seconds of one exchange for every engine."""
    device = pick_device("auto")
    federation = noise(rows, 400, (side, side, channels))
    task = make_task(federation, builder(model, federation.examples.shape))
    method = PFedHN(task=task, clients=rows, members=rows, steps=steps, batch=32)
    engines = {"loop": Loop(method, [federation], device), "vector": Vector(method, [federation], device, graphs=False)}
    if device.type == "cuda":
        engines["vector+graphs"] = Vector(method, [federation], device)
    else:
        engines["auto"] = make("auto", method, [federation])
    params = tree.to(task.model.fresh(torch.Generator().manual_seed(0)), device)
    each = {"params": tree.map(lambda leaf: leaf.expand(rows, *leaf.shape).contiguous(), params)}
    best = dict.fromkeys(engines, float("inf"))
    for repeat in range(repeats + 3):  # the first three warm up and capture
        for name, engine in engines.items():
            wait(device)
            began = time.perf_counter()
            Clients(engine, torch.arange(rows), repeat).run(method.fit, each=each)
            wait(device)
            if repeat >= 3:
                best[name] = min(best[name], time.perf_counter() - began)
            if name == "loop" and rows * steps > 500 and repeat < 2 and device.type == "cuda":
                break  # the loop on a GPU is slow and needs no long warm-up
    if "auto" in engines:
        print(f"  (auto takes {faster(method, [federation], device)})")
    return best


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
    print(where())
    print(f"{options.model}, {options.side}x{options.side}x{options.channels}, batch 32, {options.steps} steps")
    for rows in map(int, options.rows.split(",")):
        seconds = measure(rows, options.steps, options.model, options.side, options.channels, options.repeats)
        for name, value in seconds.items():
            each = 1000 * value / rows / options.steps
            print(f"{rows:5} clients  {name:14} {each:8.4f} ms a client-step  {seconds['loop'] / value:6.2f} x loop")


if __name__ == "__main__":
    main()
