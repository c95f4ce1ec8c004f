"""Max pooling over squares that do not overlap, as other people's models have it.

Stands in for `F.max_pool2d` where `vmap` maps over float32 images on a GPU: PyTorch's own way back takes long there.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .mapping import HAS_TRITON, Rows, for_kernels, pair

if HAS_TRITON:
    import triton
    import triton.language as tl

BLOCK = 1024  # places that one program looks after


def max_pool2d(
    input: Tensor,  # noqa: A002
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """PyTorch's, by kernels if squares do not overlap and nothing else is asked."""
    side = pair(kernel_size)
    plain = pair(padding) == (0, 0) and pair(dilation) == (1, 1) and not ceil_mode and not return_indices
    if for_kernels(input) and plain and side[0] == side[1] and pair(stride or side) == side:
        return _Pool.apply(input, side[0])  # type: ignore[no-untyped-call]
    plainly: Any = F.max_pool2d
    return plainly(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


class _Pool(Rows):
    @staticmethod
    def forward(x: Tensor, side: int) -> Tensor:
        return pool_rows(x, side)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.side = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        out: Tensor = _Unpool.apply(x, gradient, ctx.side)  # type: ignore[no-untyped-call]
        return out, None


class _Unpool(Rows):
    """Linear in the gradient; the way back gathers where it scattered."""

    @staticmethod
    def forward(x: Tensor, gradient: Tensor, side: int) -> Tensor:
        return unpool_rows(x, gradient, side)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, gradient, ctx.side = inputs
        ctx.save_for_backward(x, gradient)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[None, Tensor, None]:
        x, gradient = ctx.saved_tensors
        chosen: Tensor = _Unpool.apply(x, torch.ones_like(gradient), ctx.side)  # type: ignore[no-untyped-call]
        side, (high, wide) = ctx.side, gradient.shape[-2:]
        kept = (error * chosen)[..., : high * side, : wide * side]
        return None, kept.unflatten(-2, (high, side)).unflatten(-1, (wide, side)).sum((-3, -1)), None


# kernels, for arrays [..., height, width]


def pool_rows(x: Tensor, side: int) -> Tensor:
    """The largest of every `side` x `side` pixels; what is left over at the edges is dropped."""
    x = x.contiguous()
    height, width = x.shape[-2:]
    out = x.new_empty(*x.shape[:-2], height // side, width // side)
    _pool_kernel[(triton.cdiv(out.numel(), BLOCK),)](x, out, out.numel(), height, width, *out.shape[-2:], side, BLOCK)
    return out


def unpool_rows(x: Tensor, gradient: Tensor, side: int) -> Tensor:
    """The gradient of `pool_rows`: to the first of the largest."""
    x, gradient = x.contiguous(), gradient.contiguous()
    out = torch.empty_like(x)
    _unpool_kernel[(triton.cdiv(x.numel(), BLOCK),)](
        x, gradient, out, x.numel(), *x.shape[-2:], *gradient.shape[-2:], side, BLOCK
    )
    return out


if HAS_TRITON:

    @triton.jit
    def _largest(corner, good, width: tl.constexpr, side: tl.constexpr):
        """The largest number of a square, and which it is: the first of several; NaN is the largest, as in PyTorch."""
        best = tl.load(corner, mask=good, other=0.0)
        which = tl.zeros_like(good).to(tl.int32)
        for k in tl.static_range(1, side * side):
            value = tl.load(corner + k // side * width + k % side, mask=good, other=0.0)
            better = (value > best) | (value != value)
            best, which = tl.where(better, value, best), tl.where(better, k, which)
        return best, which

    @triton.jit
    def _pool_kernel(
        x, out, count, height: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
        side: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = place < count
        plane, pixel = place // (rows * columns), place % (rows * columns)
        corner = x + plane * height * width + pixel // columns * side * width + pixel % columns * side
        best, _ = _largest(corner, there, width, side)
        tl.store(out + place, best, mask=there)

    @triton.jit
    def _unpool_kernel(
        x, gradient, out, count, height: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
        side: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        there = place < count
        plane, y, across = place // (height * width), place % (height * width) // width, place % width
        row, column = y // side, across // side
        inside = there & (row < rows) & (column < columns)
        _, which = _largest(x + plane * height * width + row * side * width + column * side, inside, width, side)
        mine = inside & (which == y % side * side + across % side)
        error = tl.load(gradient + plane * rows * columns + row * columns + column, mask=mine, other=0.0)
        tl.store(out + place, error, mask=there)
