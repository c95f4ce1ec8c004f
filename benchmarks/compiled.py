"""Whether torch.compile pays on a CPU: a gradient and a step of SGD of many small networks, eager and compiled.

    python benchmarks/compiled.py [--cases mlp/30/8,lenet/5/32] [--repeats 30] [--threads 2]

A case is a model, how many clients have one, and the examples of a batch; digits for the MLP, CIFAR-10's shape for the
others. All clients are one map, as the vector engine has them. What is compiled is kept neither in memory nor on the
disk, so that the seconds are those of a first run. PyTorch compiles with g++, which must be there.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from common import turns, where
from latecomer.nets.models import builder
from latecomer.tree import Tree

LR, MOMENTUM = 0.01, 0.9
CPU = torch.device("cpu")
Step = Callable[[Tree, Tree, Tensor, Tensor], tuple[Tree, Tree]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="mlp/30/8,lenet/5/32")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(where())
    for case in options.cases.split(","):
        model, clients, batch = case.split("/")
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            study(model, int(clients), int(batch), options.repeats)


def study(model: str, clients: int, batch: int, repeats: int) -> None:
    shape = (1, 8, 8) if model == "mlp" else (3, 32, 32)
    eager, inputs = prepared(model, shape, clients, batch)
    compiled: Step = torch.compile(eager)
    began = time.perf_counter()
    found = compiled(*inputs)
    start = time.perf_counter() - began
    gap = max(float((a - b).abs().max()) for a, b in zip(found[0].values(), eager(*inputs)[0].values(), strict=True))
    sides = {"eager": lambda: eager(*inputs), "compiled": lambda: compiled(*inputs)}
    plain, fused = (1000 * min(seconds) for seconds in turns(sides, repeats, CPU).values())
    pays = f"pays after {1000 * start / (plain - fused):,.0f} steps" if fused < plain else "never pays"
    print(
        f"{model}, {clients} clients, batch {batch}: a step takes {plain:.2f} ms, compiled {fused:.2f}; to compile it "
        f"takes {start:.1f} s, which {pays} (largest difference {gap:.0e})",
        flush=True,
    )


def prepared(
    model: str, shape: tuple[int, ...], clients: int, batch: int
) -> tuple[Step, tuple[Tree, Tree, Tensor, Tensor]]:
    """The step for all clients, and weights, velocities, images and labels for it."""
    net = builder(model, shape)(shape, 10)

    def loss(params: Tree, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(net, params, (x,)), y)

    def step(params: Tree, velocity: Tree, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        slopes = grad(loss)(params, x, y)
        velocity = {name: MOMENTUM * velocity[name] + slope for name, slope in slopes.items()}
        return {name: weight - LR * velocity[name] for name, weight in params.items()}, velocity

    params = {name: weight.detach().expand(clients, *weight.shape).clone() for name, weight in net.named_parameters()}
    velocity = {name: torch.zeros_like(weight) for name, weight in params.items()}
    return vmap(step), (params, velocity, torch.rand(clients, batch, *shape), torch.randint(10, (clients, batch)))


if __name__ == "__main__":
    main()
