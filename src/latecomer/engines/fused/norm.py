"""GroupNorm with a short cut and ReLU by kernels: how `vmap` and gradients reach them.

What only a gradient of a gradient needs is written in plain operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import rows
from .rows import Rows


def norm(
    x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None, groups: int, epsilon: float, relu: bool
) -> Tensor:
    inputs = (None if value is None else value[None] for value in (x, weight, bias, other))
    out: Tensor = _Norm.apply(*inputs, groups, epsilon, relu).squeeze(0)  # type: ignore[no-untyped-call]
    return out


class _Norm(Rows):
    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        out: Tensor = rows.kernels().norm(*inputs)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, _, ctx.groups, ctx.epsilon, relu = inputs
        ctx.save_for_backward(x, weight, output if relu else None)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate = ctx.saved_tensors
        gate = None if gate is None else gate.detach()  # it only says where a slope passes
        needs_passed = gate is not None and ctx.needs_input_grad[3]
        by_x, passed, *rest = _NormBack.apply(slope, gate, x, weight, ctx.groups, ctx.epsilon, needs_passed)  # type: ignore[no-untyped-call]
        by_other = passed if needs_passed else slope
        return by_x, *rest, by_other if ctx.needs_input_grad[3] else None, None, None, None


class _NormBack(Rows):
    """Gradients of images; slopes that passed the gate (nothing, unless needed); gradients of weight and bias."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = rows.kernels().norm_back(*inputs)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.groups, ctx.epsilon, ctx.needs_passed = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, ...]:
        slope, gate, x, weight = ctx.saved_tensors

        def plain(slope: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
            return back(slope, gate, x, weight, ctx.groups, ctx.epsilon, ctx.needs_passed)

        pull: Any = torch.func.vjp(plain, slope, x, weight)[1]
        by_slope, by_x, by_weight = pull(errors)
        return by_slope, None, by_x, by_weight, None, None, None


def back(
    slope: Tensor, gate: Tensor | None, x: Tensor, weight: Tensor, groups: int, epsilon: float, needs_passed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What kernels/norm.py computes on the way back, in plain operations."""
    passed = slope if gate is None else slope * (gate > 0)
    apart = x.unflatten(2, (groups, -1))
    centred = apart - apart.mean((3, 4, 5), keepdim=True)
    shrunk = (centred.square().mean((3, 4, 5), keepdim=True) + epsilon).rsqrt()
    value = centred * shrunk
    error = (passed * weight[:, None, :, None, None]).unflatten(2, (groups, -1))
    level, tilt = error.mean((3, 4, 5), keepdim=True), (error * value).mean((3, 4, 5), keepdim=True)
    by_x = ((error - level - value * tilt) * shrunk).flatten(2, 3)
    kept = passed if needs_passed else passed.flatten(1)[:, :0]
    return by_x, kept, (passed * value.flatten(2, 3)).sum((1, 3, 4)), passed.sum((1, 3, 4))
