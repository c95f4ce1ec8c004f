"""Mapped convolutions and poolings by the kernels of kernels.py: how `vmap` and gradients reach them.

A convolution (its bias aside), the gradient of its filters and the gradient of its images are each linear in both of
their inputs, and the gradient of any of them is made of the other two; so gradients of gradients come for free.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = tuple[int, int]


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The kernels, or None where Triton is not installed (it comes with PyTorch's CUDA builds)."""
    return importlib.import_module(".kernels", __package__) if importlib.util.find_spec("triton") else None


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """A convolution of [size, channels, height, width], whose hidden dimensions of `vmap` become rows of one kernel."""
    if padding != (0, 0):
        x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    row = None if bias is None else bias[None]
    out: Tensor = _Convolve.apply(x[None], weight[None], row, stride)[0]  # type: ignore[no-untyped-call]
    return out


def pool(x: Tensor, side: int) -> Tensor:
    """Max pooling over squares that do not overlap."""
    out: Tensor = _Pool.apply(x, side)  # type: ignore[no-untyped-call]
    return out


class _Rows(torch.autograd.Function):
    """A function of arrays that all have a leading dimension of rows; mapping it only makes more rows."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, int]:
        rows = [
            (value.movedim(dim, 0) if dim is not None else value.expand(info.batch_size, *value.shape)).flatten(0, 1)
            if isinstance(value, Tensor)
            else value
            for value, dim in zip(inputs, in_dims, strict=True)
        ]
        out = cls.apply(*rows)  # type: ignore[no-untyped-call]
        return out.unflatten(0, (info.batch_size, -1)), 0


class _Convolve(_Rows):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair) -> Tensor:
        out: Tensor = kernels().forward(x, weight, bias, stride)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.stride = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        by_x = _ByX.apply(slope, weight, tuple(x.shape[-2:]), ctx.stride) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        by_weight = _ByWeight.apply(x, slope, tuple(weight.shape[-2:]), ctx.stride) if ctx.needs_input_grad[1] else None  # type: ignore[no-untyped-call]
        by_bias = slope.sum((1, 3, 4)) if ctx.needs_input_grad[2] else None
        return by_x, by_weight, by_bias, None


class _ByWeight(_Rows):
    @staticmethod
    def forward(x: Tensor, slope: Tensor, shape: Pair, stride: Pair) -> Tensor:
        out: Tensor = kernels().by_weight(x, slope, shape, stride)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, slope, _, ctx.stride = inputs
        ctx.save_for_backward(x, slope)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, slope = ctx.saved_tensors
        by_x = _ByX.apply(slope, weight, tuple(x.shape[-2:]), ctx.stride)  # type: ignore[no-untyped-call]
        return by_x, _Convolve.apply(x, weight, None, ctx.stride), None, None  # type: ignore[no-untyped-call]


class _ByX(_Rows):
    @staticmethod
    def forward(slope: Tensor, weight: Tensor, shape: Pair, stride: Pair) -> Tensor:
        out: Tensor = kernels().by_x(slope, weight, shape, stride)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        slope, weight, _, ctx.stride = inputs
        ctx.save_for_backward(slope, weight)

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, None, None]:
        slope, weight = ctx.saved_tensors
        by_weight = _ByWeight.apply(x, slope, tuple(weight.shape[-2:]), ctx.stride)  # type: ignore[no-untyped-call]
        return _Convolve.apply(x, weight, None, ctx.stride), by_weight, None, None  # type: ignore[no-untyped-call]


class _Pool(_Rows):
    @staticmethod
    def forward(x: Tensor, side: int) -> Tensor:
        out: Tensor = kernels().pool(x, side)
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


class _Unpool(_Rows):
    """Linear in the slope; the way back gathers where it scattered."""

    @staticmethod
    def forward(x: Tensor, slope: Tensor, side: int) -> Tensor:
        out: Tensor = kernels().unpool(x, slope, side)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, slope, ctx.side = inputs
        ctx.save_for_backward(x, slope)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[None, Tensor, None]:
        x, slope = ctx.saved_tensors
        chosen: Tensor = _Unpool.apply(x, torch.ones_like(slope), ctx.side)  # type: ignore[no-untyped-call]
        side, (rows, columns) = ctx.side, slope.shape[-2:]
        kept = (error * chosen)[..., : rows * side, : columns * side]
        return None, kept.unflatten(-2, (rows, side)).unflatten(-1, (columns, side)).sum((-3, -1)), None
