"""Max pooling over squares that do not overlap, of arrays [..., height, width]."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _pool(
    x,
    out,
    count,
    height: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    side: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < count
    plane, pixel = place // (rows * columns), place % (rows * columns)
    corner = x + plane * height * width + pixel // columns * side * width + pixel % columns * side
    best = tl.load(corner, mask=there, other=0.0)
    for k in tl.static_range(1, side * side):
        value = tl.load(corner + k // side * width + k % side, mask=there, other=0.0)
        best = tl.where((value > best) | (value != value), value, best)
    tl.store(out + place, best, mask=there)


@triton.jit
def _unpool(
    x,
    slope,
    out,
    count,
    height: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    side: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < count
    plane, y, across = place // (height * width), place % (height * width) // width, place % width
    row, column = y // side, across // side
    inside = there & (row < rows) & (column < columns)
    corner = x + plane * height * width + row * side * width + column * side
    best = tl.load(corner, mask=inside, other=0.0)
    which = tl.zeros((BLOCK,), tl.int32)
    for k in tl.static_range(1, side * side):
        value = tl.load(corner + k // side * width + k % side, mask=inside, other=0.0)
        better = (value > best) | (value != value)
        best, which = tl.where(better, value, best), tl.where(better, k, which)
    mine = inside & (which == y % side * side + across % side)
    error = tl.load(slope + plane * rows * columns + row * columns + column, mask=mine, other=0.0)
    tl.store(out + place, error, mask=there)


def pool(x: Tensor, side: int) -> Tensor:
    """The largest of every `side` x `side` pixels; what is left over at the edges is dropped."""
    x = x.contiguous()
    height, width = x.shape[-2:]
    out = x.new_empty(*x.shape[:-2], height // side, width // side)
    block = 1024
    grid = (triton.cdiv(out.numel(), block),)
    _pool[grid](x, out, out.numel(), height, width, *out.shape[-2:], side, block)
    return out


def unpool(x: Tensor, slope: Tensor, side: int) -> Tensor:
    """The gradient of `pool`: to the first of the largest."""
    x, slope = x.contiguous(), slope.contiguous()
    out, block = torch.empty_like(x), 1024
    grid = (triton.cdiv(x.numel(), block),)
    _unpool[grid](x, slope, out, x.numel(), *x.shape[-2:], *slope.shape[-2:], side, block)
    return out
