"""Triton kernels for the convolutions and poolings of many small networks, one network a row.

Every array has a leading dimension of rows: images [rows, size, channels, height, width], filters [rows, outputs,
channels, high, wide]. A kernel gathers the windows as it multiplies, so nothing is laid out in memory first, and the
address of a term is the sum of one number for its place and one for where in the window it lies. Sums over images are
made in a fixed order: the same numbers give the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

Pair = tuple[int, int]

PLACES, TERMS = 64, 16  # of a tile: places of an image, and terms of a sum at a time
SPLITS = 8  # parts that a sum over all places of all images is made in


@triton.jit
def _forward(
    x, weight, bias, out, weight_row, bias_row, size: tl.constexpr, channels: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, outputs: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    high: tl.constexpr, wide: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr,
    biased: tl.constexpr, precision: tl.constexpr, PLACES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    net = tl.program_id(1).to(tl.int64)
    x += net * size * channels * height * width
    out += net * size * outputs * rows * columns
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    filt = tl.program_id(2) * OUT + tl.arange(0, OUT)
    image, pixel = place // (rows * columns), place % (rows * columns)
    corner = image * (channels * height * width) + pixel // columns * (sy * width) + pixel % columns * sx
    there, known = place < size * rows * columns, filt < outputs
    terms: tl.constexpr = channels * high * wide
    total = tl.zeros((OUT, PLACES), tl.float32)
    for first in range(0, terms, TERMS):
        k = first + tl.arange(0, TERMS)
        within = k // (high * wide) * (height * width) + k % (high * wide) // wide * width + k % wide
        window = tl.load(x + within[:, None] + corner[None, :], mask=(k < terms)[:, None] & there[None, :], other=0.0)
        own = weight + net * weight_row + filt[:, None] * terms + k[None, :]
        own = tl.load(own, mask=known[:, None] & (k < terms)[None, :], other=0.0)
        total = tl.dot(own, window, total, input_precision=precision)
    if biased:
        total += tl.load(bias + net * bias_row + filt, mask=known, other=0.0)[:, None]
    at = image * (outputs * rows * columns) + pixel
    tl.store(out + filt[:, None] * (rows * columns) + at[None, :], total, mask=known[:, None] & there[None, :])


@triton.jit
def _by_weight(
    x, slope, out, size: tl.constexpr, channels: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, outputs: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
    high: tl.constexpr, wide: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr,
    each: tl.constexpr, precision: tl.constexpr, PLACES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
    FILTERS: tl.constexpr,
):  # fmt: skip
    net = tl.program_id(1).to(tl.int64)
    x += net * size * channels * height * width
    slope += net * size * outputs * rows * columns
    k = tl.program_id(0) // FILTERS * TERMS + tl.arange(0, TERMS)
    filt = tl.program_id(0) % FILTERS * OUT + tl.arange(0, OUT)
    terms: tl.constexpr = channels * high * wide
    known = filt < outputs
    within = k // (high * wide) * (height * width) + k % (high * wide) // wide * width + k % wide
    begin = tl.program_id(2) * each
    end = tl.minimum(begin + each, size * rows * columns)
    total = tl.zeros((OUT, TERMS), tl.float32)
    for first in range(begin, end, PLACES):
        place = first + tl.arange(0, PLACES)
        image, pixel = place // (rows * columns), place % (rows * columns)
        corner = image * (channels * height * width) + pixel // columns * (sy * width) + pixel % columns * sx
        there = place < end
        window = tl.load(x + within[:, None] + corner[None, :], mask=(k < terms)[:, None] & there[None, :], other=0.0)
        at = image * (outputs * rows * columns) + pixel
        error = tl.load(
            slope + filt[:, None] * (rows * columns) + at[None, :], mask=known[:, None] & there[None, :], other=0.0
        )
        total = tl.dot(error, tl.trans(window), total, input_precision=precision)
    part = net * tl.num_programs(2) + tl.program_id(2)
    at = (part * outputs + filt)[:, None] * terms + k[None, :]
    tl.store(out + at, total, mask=known[:, None] & (k < terms)[None, :])


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


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair) -> Tensor:
    nets, size, channels, height, width = x.shape
    outputs, high, wide = weight.shape[1], *weight.shape[3:]
    rows, columns = (height - high) // stride[0] + 1, (width - wide) // stride[1] + 1
    out = x.new_empty(nets, size, outputs, rows, columns)
    block = _block(outputs)
    grid = (triton.cdiv(size * rows * columns, PLACES), nets, triton.cdiv(outputs, block))
    weight, own_bias = _rows_apart(weight), None if bias is None else _rows_apart(bias)
    _forward[grid](
        x.contiguous(), weight, x if own_bias is None else own_bias, out,
        weight.stride(0), 0 if own_bias is None else own_bias.stride(0),
        size, channels, height, width, outputs, rows, columns,
        high, wide, *stride, bias is not None, _precision(), PLACES, block, TERMS,
    )  # fmt: skip
    return out


def by_weight(x: Tensor, slope: Tensor, shape: Pair, stride: Pair) -> Tensor:
    """The gradient of the filters; `shape` is that of one."""
    nets, size, channels, height, width = x.shape
    outputs, rows, columns = slope.shape[2:]
    high, wide = shape
    splits = min(SPLITS, size)
    each = triton.cdiv(triton.cdiv(size * rows * columns, splits), PLACES) * PLACES
    out = x.new_empty(nets, splits, outputs, channels, high, wide)
    block = _block(outputs)
    filters = triton.cdiv(outputs, block)
    grid = (filters * triton.cdiv(channels * high * wide, TERMS), nets, splits)
    _by_weight[grid](
        x.contiguous(), slope.contiguous(), out,
        size, channels, height, width, outputs, rows, columns,
        high, wide, *stride, each, _precision(), PLACES, block, TERMS, filters,
    )  # fmt: skip
    return out.sum(1)


def by_x(slope: Tensor, weight: Tensor, shape: Pair, stride: Pair) -> Tensor:
    """The gradient of the images, whose `shape` it has: a convolution of the slope, spread out and framed by zeros."""
    high, wide = weight.shape[-2:]
    framed = slope.new_zeros(*slope.shape[:3], shape[0] + high - 1, shape[1] + wide - 1)
    rows, columns = slope.shape[-2:]
    ends = high - 1 + (rows - 1) * stride[0] + 1, wide - 1 + (columns - 1) * stride[1] + 1
    framed[..., high - 1 : ends[0] : stride[0], wide - 1 : ends[1] : stride[1]] = slope
    return forward(framed, weight.flip(-2, -1).transpose(1, 2), None, (1, 1))


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


def _rows_apart(rows: Tensor) -> Tensor:
    """Rows may lie apart, as slices of a longer row do, but each must lie in one piece."""
    return rows if rows[0].is_contiguous() else rows.contiguous()


def _block(count: int) -> int:
    """Matrix units take at least sixteen rows."""
    return int(min(64, max(16, triton.next_power_of_2(count))))


def _precision() -> Any:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
