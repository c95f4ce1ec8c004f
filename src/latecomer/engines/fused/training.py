"""The loss, a step of SGD and the taking of examples by kernels: how `vmap` and gradients reach them.

What only a gradient of a gradient needs is written in plain operations, so it can be differentiated as often as one
likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import rows
from .rows import Final, Rows


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = _CrossEntropy.apply(logits[None], y[None], weight[None]).squeeze(0)  # type: ignore[no-untyped-call]
    return out


def move(weights: Tensor, velocity: Tensor, moving: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    momentum, (rates, slopes) = rest[1], (rest[:4], rest[4:])
    parts = [slope[None] for slope in slopes]
    after = _Move.apply(weights[None], velocity[None], moving[None], *rates, *parts)  # type: ignore[no-untyped-call]
    return after[0].squeeze(0), after[1].squeeze(0) if momentum else velocity


def split(vector: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    parts = _Split.apply(vector[None], tuple(sizes))  # type: ignore[no-untyped-call]
    return tuple(part.squeeze(0) for part in parts)


def draw(count: Tensor, seed: Tensor, number: Tensor, client: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
    drawn = _Draw.apply(count[None], seed[None], number[None], client[None], *how)  # type: ignore[no-untyped-call]
    return drawn[0].squeeze(0), drawn[1].squeeze(0)


def take(x: Tensor, which: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    out: Tensor = _Take.apply(x, which, scale, shift)  # type: ignore[no-untyped-call]
    return out


class _CrossEntropy(Rows):
    @staticmethod
    def forward(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = rows.kernels().cross_entropy(logits, y, weight)
        return out

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None]:
        out: Tensor = _CrossEntropySlope.apply(*ctx.saved_tensors, above)  # type: ignore[no-untyped-call]
        return out, None, None


class _CrossEntropySlope(Rows):
    @staticmethod
    def forward(logits: Tensor, y: Tensor, weight: Tensor, above: Tensor) -> Tensor:
        out: Tensor = rows.kernels().cross_entropy_slope(logits, y, weight, above)
        return out

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, ...]:
        logits, y, weight, above = ctx.saved_tensors
        chance = logits.softmax(-1)
        share = (weight / weight.sum(-1, keepdim=True).clamp(min=1))[..., None]
        wrong = chance - (y.clamp(min=0)[..., None] == torch.arange(logits.shape[-1], device=y.device)).to(chance.dtype)
        pushed = error * share * above[:, None, None]
        by_logits = chance * (pushed - (chance * pushed).sum(-1, keepdim=True))
        return by_logits, None, None, (error * share * wrong).sum((1, 2))


class _Move(Final):
    """Who differentiates through a step takes the plain operations."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        weights, velocity = rows.kernels().move(*inputs)
        return weights, velocity


class _Split(Rows):
    @staticmethod
    def forward(vector: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = vector.split(list(sizes), 1)
        return parts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        joined: Tensor = _Join.apply(*slopes)  # type: ignore[no-untyped-call]
        return joined, None


class _Join(Rows):
    @staticmethod
    def forward(*parts: Tensor) -> Tensor:
        out: Tensor = rows.kernels().join(*parts)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.sizes = [part.shape[1] for part in inputs]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = slope.split(ctx.sizes, 1)
        return parts


class _Draw(Final):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        place, real = rows.kernels().draw(*inputs)
        return place, real


class _Take(torch.autograd.Function):
    """Of bytes, so nothing is differentiated. Only which examples are taken differs from client to client."""

    @staticmethod
    def forward(x: Tensor, which: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        out: Tensor = rows.kernels().take(x, which, scale, shift)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, which: Tensor, *rest: Any) -> tuple[Tensor, int]:
        out: Tensor = _Take.apply(x, which.movedim(in_dims[1] or 0, 0), *rest)  # type: ignore[no-untyped-call]
        return out, 0
