"""Mapped convolutions and poolings by kernels: how `vmap` and gradients reach them.

A convolution (its bias aside) and the gradients of its filters and its images are each linear in both of their inputs,
and the gradient of any of them is made of the others; so gradients of gradients come for free. Where
ReLU and pooling follow, `code` says which places were kept (see kernels/convolution.py), and slopes are those of what
was kept; else it is None.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import rows
from .rows import Rows

Pair = tuple[int, int]
FEWEST = 16  # channels on either side that the kernels for many channels need,
MANY = 1536  # and the product of both from which on they are the better ones


def wide(weight: Tensor) -> bool:
    """Whether filters [..., outputs, channels, high, wide] are for the kernels for many channels (kernels/wide.py)."""
    outputs, channels = weight.shape[-4:-2]
    return min(outputs, channels) >= FEWEST and outputs * channels >= MANY


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """A convolution of [size, channels, height, width], whose hidden dimensions of `vmap` become rows of one kernel."""
    out: Tensor = _Convolve.apply(x[None], weight[None], _row(bias), stride, padding).squeeze(0)  # type: ignore[no-untyped-call]
    return out


def stage(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """Convolution, ReLU, and max pooling over 2x2."""
    out, _ = _Stage.apply(x[None], weight[None], _row(bias), stride, padding)  # type: ignore[no-untyped-call]
    kept: Tensor = out.squeeze(0)
    return kept


def pool(x: Tensor, side: int) -> Tensor:
    """Max pooling over squares that do not overlap."""
    out: Tensor = _Pool.apply(x, side)  # type: ignore[no-untyped-call]
    return out


def _row(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias[None]


class _Convolve(Rows):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
        kernels = rows.kernels()
        out: Tensor = (kernels.wide_forward if wide(weight) else kernels.forward)(x, weight, bias, stride, padding)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return _slopes(ctx, slope, None, x, weight)


class _Stage(Rows):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor]:
        kept, code = rows.kernels().stage(x, weight, bias, stride, padding)
        return kept, code

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, _, ctx.stride, ctx.padding = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, weight, code = ctx.saved_tensors
        return _slopes(ctx, slope, code, x, weight)


def _slopes(ctx: Any, slope: Tensor, code: Tensor | None, x: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of images, filters and bias, as far as they are needed."""
    needs_x, needs_bias = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
    by_x, by_weight, by_bias = _back(slope, code, x, weight, ctx, needs_x, needs_bias)
    return by_x if needs_x else None, by_weight, by_bias if needs_bias else None, None, None


def _back(
    slope: Tensor, code: Tensor | None, x: Tensor, weight: Tensor, ctx: Any, needs_x: bool, needs_bias: bool = False
) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = _Back.apply(slope, code, x, weight, ctx.stride, ctx.padding, needs_x, needs_bias)  # type: ignore[no-untyped-call]
    return found


class _Back(Rows):
    """Gradients of images (or nothing in their place), filters and bias (if nobody needs it, anything)."""

    @staticmethod
    def forward(
        slope: Tensor,
        code: Tensor | None,
        x: Tensor,
        weight: Tensor,
        stride: Pair,
        padding: Pair,
        needs_x: bool,
        needs_bias: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        kernels, how = rows.kernels(), (stride, padding, needs_x)
        if code is None and wide(weight):
            by_x, by_weight, by_bias = kernels.wide_back(slope, x, weight, *how, needs_bias)
        else:
            by_x, by_weight, by_bias = kernels.back(slope, code, x, weight, *how)
        return by_x, by_weight, by_bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        slope, code, x, weight, ctx.stride, ctx.padding, ctx.needs_x, ctx.needs_bias = inputs
        ctx.save_for_backward(slope, code, x, weight)

    @staticmethod
    def backward(ctx: Any, by_x: Tensor, by_weight: Tensor, by_bias: Tensor) -> tuple[Tensor | None, ...]:
        slope, code, x, weight = ctx.saved_tensors
        bias = by_bias if ctx.needs_bias else None
        full = _Convolve.apply(x, by_weight, bias, ctx.stride, ctx.padding)  # type: ignore[no-untyped-call]
        at_x = _back(slope, code, x, by_weight, ctx, True)[0]
        at_weight = None
        if ctx.needs_x:
            full = full + _Convolve.apply(by_x, weight, None, ctx.stride, ctx.padding)  # type: ignore[no-untyped-call]
            at_weight = _back(slope, code, by_x, weight, ctx, False)[1]
        return _kept(full, code), None, at_x, at_weight, None, None, None, None


def _kept(full: Tensor, code: Tensor | None) -> Tensor:
    """Of every four places the one that the code names, or zero."""
    if code is None:
        return full
    high, wide = code.shape[-2:]
    squares = full[..., : 2 * high, : 2 * wide].unflatten(-2, (high, 2)).unflatten(-1, (wide, 2)).transpose(-3, -2)
    four = torch.arange(4, device=code.device, dtype=code.dtype)
    kept: Tensor = (squares.flatten(-2) * (code[..., None] == four)).sum(-1)
    return kept


class _Pool(Rows):
    @staticmethod
    def forward(x: Tensor, side: int) -> Tensor:
        out: Tensor = rows.kernels().pool(x, side)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.side = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        out: Tensor = _Unpool.apply(x, slope, ctx.side)  # type: ignore[no-untyped-call]
        return out, None


class _Unpool(Rows):
    """Linear in the slope; the way back gathers where it scattered."""

    @staticmethod
    def forward(x: Tensor, slope: Tensor, side: int) -> Tensor:
        out: Tensor = rows.kernels().unpool(x, slope, side)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, slope, ctx.side = inputs
        ctx.save_for_backward(x, slope)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[None, Tensor, None]:
        x, slope = ctx.saved_tensors
        chosen: Tensor = _Unpool.apply(x, torch.ones_like(slope), ctx.side)  # type: ignore[no-untyped-call]
        side, (high, wide) = ctx.side, slope.shape[-2:]
        kept = (error * chosen)[..., : high * side, : wide * side]
        return None, kept.unflatten(-2, (high, side)).unflatten(-1, (wide, side)).sum((-3, -1)), None
