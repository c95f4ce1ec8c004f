"""What every piece of machinery gains on a GPU: the time of a round with and without it, in one run.

    python benchmarks/pieces.py [--cases pefll/lenet/15,flowdup/cnn64/100,fedavg/conv4/50] [--repeats 8] [--compiled]

A case is a method, a client model and how many clients take part in a round; images are made up, 32x32x3. With
--compiled, arithmetic that has a kernel of ours is also done by `torch.compile` of plain operations, and the seconds
are told that a first call takes to compile them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from common import noise, turns, where
from latecomer import make_task, methods
from latecomer.engines.capture import rounds
from latecomer.engines.vector import Vector
from latecomer.nets.models import builder
from latecomer.ops import (
    by_torch,
    convolution,
    cross_entropy,
    examples,
    linear,
    norm,
    sgd,
    shuffle,
    wide_convolution,
)
from latecomer.train import Plan, Training

CUDA = torch.device("cuda")
EXAMPLES = {"flowdup": 100}  # a client's; others have 450
Patch = tuple[Any, str, Any]


def never(*_: Any) -> bool:
    return False


PIECES: dict[str, list[Patch]] = {
    "whole rounds as one graph": [(rounds.WholeRounds, "of", staticmethod(lambda *_: None))],
    "convolution": [(convolution, "for_kernels", never)],
    "convolution of many channels": [(convolution, "many_channels", never), (wide_convolution, "many_channels", never)],
    "linear": [(linear, "for_kernels", never)],
    "norm": [(norm, "for_kernels", never)],
    "cross-entropy": [(cross_entropy, "for_kernels", never)],
    "SGD step": [(sgd, "for_kernels", never)],
    "taking examples": [(examples, "on_gpu", never)],
    "drawing batches": [(shuffle, "on_gpu", never)],
    "fused optimisers of PyTorch": [(by_torch, "fits", never)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="pefll/lenet/15,flowdup/cnn64/100,flowdup/resnet18/10")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    print(where(), flush=True)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    for case in options.cases.split(","):
        name, model, clients = case.split("/")
        with_all = timed(name, model, int(clients), options.repeats)
        print(f"\n{name}, {model}, {clients} clients: {1000 * with_all:.2f} ms a round with all", flush=True)
        without = timed(name, model, int(clients), max(2, options.repeats // 4), graphs=False)
        say("graphs of any kind", with_all, without)
        for piece, patches in PIECES.items():
            with patched(patches):
                say(piece, with_all, timed(name, model, int(clients), options.repeats))
        if options.compiled:
            for piece, patches in compiled().items():
                began = time.perf_counter()
                with patched(patches):
                    best = timed(name, model, int(clients), options.repeats)
                print(
                    f"  {piece} by torch.compile: {1000 * best:.2f} ms, {best / with_all:.2f} times "
                    f"(all of it took {time.perf_counter() - began:.1f} s)",
                    flush=True,
                )


def say(piece: str, with_all: float, without: float) -> None:
    print(f"  without {piece}: {1000 * without:.2f} ms, {without / with_all:.2f} times", flush=True)


def timed(name: str, model: str, clients: int, repeats: int, graphs: bool = True) -> float:
    """The shortest of some rounds in which all clients take part."""
    federation = noise(clients, EXAMPLES.get(name, 450))
    task = make_task(federation, builder(model, federation.examples.shape))
    method = methods.get(name)(task=task, clients=clients, members=clients)
    engine = Vector(method, [federation], CUDA, graphs=graphs)
    training = Training(method, [federation], engine, Plan(rounds=10**9, cohort=clients))
    return min(turns({"round": training.advance}, repeats, CUDA)["round"])


@contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def compiled() -> dict[str, list[Patch]]:
    """Plain operations on rows, as one would write them for the compiler, in the place of kernels."""

    def faster(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, dynamic=False)

    def step(
        weights: Tensor, velocity: Tensor, moving: Tensor, lr: float, momentum: float, decay: float, clip: float,
        *gradient: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        change = torch.cat(gradient, 1)
        if clip:
            change = change * (clip / (change.square().sum(1, keepdim=True).sqrt() + 1e-6)).clamp(max=1.0)
        change, go = change + decay * weights, moving[:, None]
        if momentum:
            change = momentum * velocity + change
        after = torch.where(go, change, velocity) if momentum else velocity[:, :0]
        return torch.where(go, weights - lr * change, weights), after

    def losses(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        each = -logits.log_softmax(-1).gather(-1, y.clamp(min=0)[..., None]).squeeze(-1)
        return (each * weight).sum(1) / weight.sum(1).clamp(min=1)

    def gradients(logits: Tensor, y: Tensor, weight: Tensor, above: Tensor) -> Tensor:
        wrong = logits.softmax(-1) - torch.nn.functional.one_hot(y.clamp(min=0), logits.shape[-1])
        return wrong * (above[:, None] * weight / weight.sum(1, keepdim=True).clamp(min=1))[..., None]

    def take_rows(x: Tensor, rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return x[rows].to(scale.dtype) * scale + shift

    both: list[Patch] = [
        (cross_entropy, "losses", faster(losses)),
        (cross_entropy, "gradients", faster(gradients)),
    ]
    found: dict[str, list[Patch]] = {
        "SGD step": [(sgd, "step_of_rows", faster(step))],
        "cross-entropy": both,
        "taking examples": [(examples, "take_rows", faster(take_rows))],
    }
    return found | {"all three": [patch for patches in found.values() for patch in patches]}


if __name__ == "__main__":
    main()
