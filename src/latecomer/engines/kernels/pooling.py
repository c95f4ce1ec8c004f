"""Max pooling over squares that do not overlap, of arrays [..., height, width]."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # places that one program looks after


@triton.jit
def _largest(corner, good, width: tl.constexpr, side: tl.constexpr):
    """The largest number of a square, and which it is: the first of several; NaN is larger than all, as in PyTorch."""
    best = tl.load(corner, mask=good, other=0.0)
    which = tl.zeros_like(good).to(tl.int32)
    for k in tl.static_range(1, side * side):
        value = tl.load(corner + k // side * width + k % side, mask=good, other=0.0)
        better = (value > best) | (value != value)
        best, which = tl.where(better, value, best), tl.where(better, k, which)
    return best, which


@triton.jit
def _pool(
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
def _unpool(
    x, slope, out, count, height: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    side: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < count
    plane, y, across = place // (height * width), place % (height * width) // width, place % width
    row, column = y // side, across // side
    inside = there & (row < rows) & (column < columns)
    _, which = _largest(x + plane * height * width + row * side * width + column * side, inside, width, side)
    mine = inside & (which == y % side * side + across % side)
    error = tl.load(slope + plane * rows * columns + row * columns + column, mask=mine, other=0.0)
    tl.store(out + place, error, mask=there)


def pool(x: Tensor, side: int) -> Tensor:
    """The largest of every `side` x `side` pixels; what is left over at the edges is dropped."""
    x = x.contiguous()
    height, width = x.shape[-2:]
    out = x.new_empty(*x.shape[:-2], height // side, width // side)
    _pool[(triton.cdiv(out.numel(), BLOCK),)](x, out, out.numel(), height, width, *out.shape[-2:], side, BLOCK)
    return out


def unpool(x: Tensor, slope: Tensor, side: int) -> Tensor:
    """The gradient of `pool`: to the first of the largest."""
    x, slope = x.contiguous(), slope.contiguous()
    out = torch.empty_like(x)
    _unpool[(triton.cdiv(x.numel(), BLOCK),)](x, slope, out, x.numel(), *x.shape[-2:], *slope.shape[-2:], side, BLOCK)
    return out
