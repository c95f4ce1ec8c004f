"""Convolutions of many small networks, one network a row.

Every array has a leading dimension of rows: images [rows, size, channels, height, width], filters [rows, outputs,
channels, high, wide]. In memory, a pixel's channels lie side by side (layout.py).

Four places of the output, a square, are worked out as one: its window is a little larger than a filter's, and there are
four filters in the place of one, each standing in another corner of that window. So a pixel is read for a whole square,
not for every place of it, and reading is what such small networks spend their time on. Windows are gathered as they are
multiplied. Sums over images are made in a fixed order: the same numbers give the same bits.

Where ReLU and max pooling over 2x2 follow, the largest of a square is kept, with a code that says which it was (0 to 3,
or 4 where ReLU cut it off). Slopes then stay as small as what was kept, and the code says where they belong.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import fold, four, framed, images, places, rows_apart
from .tile import Tile, precision, rounded

Pair = tuple[int, int]


BUSY = 480  # programs that keep a GPU busy; a sum over all places of all images is split into parts to have as many


def forward_tile(filters: int, channels: int) -> Tile:
    """These and the next two by measurement on an H200."""
    if filters <= 16:
        return Tile(128, 16 if channels <= 4 else 32, 16, 4, 3)
    return Tile(128, 16, 32, 8, 4) if filters <= 32 else Tile(128, 32, 64, 8, 4)


def back_tile(channels: int) -> Tile:
    return Tile(64, 32, 16, 4, 4) if channels <= 16 else Tile(128, 32, 32, 8, 3)


def filters_tile(filters: int, terms: int) -> Tile:
    """For windows of so many numbers: if one program holds a whole window, it may as well serve more filters."""
    if terms <= 128 and filters > 16:
        return Tile(16, 128, 32, 4, 4)
    return Tile(16, 128 if terms <= 128 or terms % 128 == 0 else 64, 16, 2, 3)


@triton.jit
def _forward(
    x, weight, bias, out, code, bias_apart, size, height: tl.constexpr, width: tl.constexpr,
    outputs: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, down: tl.constexpr, across: tl.constexpr,
    high: tl.constexpr, line: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, biased: tl.constexpr,
    pooled: tl.constexpr, ragged: tl.constexpr, precision: tl.constexpr, PITCH: tl.constexpr,
    SQUARES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """`rows` x `columns` squares; without pooling, they cover `down` x `across` places. A window has `high` lines."""
    net = tl.program_id(1).to(tl.int64)
    terms: tl.constexpr = high * line
    x += net * size * height * width * PITCH
    weight += net * 4 * outputs * terms
    square = tl.program_id(0) * SQUARES + tl.arange(0, SQUARES)
    image, row, column = square // (rows * columns), square % (rows * columns) // columns, square % columns
    there = square < size * rows * columns
    corner = ((image * height + row * sy) * width + column * sx) * PITCH
    n = tl.arange(0, 4 * OUT)
    spot, filt = n // OUT, tl.program_id(2) * OUT + n % OUT
    known = filt < outputs
    own = (spot * outputs + filt) * terms
    total = tl.zeros((SQUARES, 4 * OUT), tl.float32)
    for first in range(0, terms, TERMS):
        k = first + tl.arange(0, TERMS)
        good = there[:, None] & (k < terms)[None, :]
        if ragged:  # the last window may reach beyond the image
            good = good & ((row * sy)[:, None] + (k // line)[None, :] < height)
            good = good & ((column * sx)[:, None] + (k % line // PITCH)[None, :] < width)
        seen = tl.load(x + corner[:, None] + (k // line * (width * PITCH) + k % line)[None, :], mask=good, other=0.0)
        filters = tl.load(weight + own[None, :] + k[:, None], mask=known[None, :] & (k < terms)[:, None], other=0.0)
        total = tl.dot(seen, filters, total, input_precision=precision)
    if biased:
        total += tl.load(bias + net * bias_apart + filt, mask=known, other=0.0)[None, :]
    if pooled:
        best, which = tl.max(tl.reshape(total, (SQUARES, 4, OUT)), 1, return_indices=True)
        which = tl.where(best > 0, which, 4)
        best = tl.where(best <= 0, 0.0, best)  # so written, NaN stays NaN
        kept = tl.program_id(2) * OUT + tl.arange(0, OUT)
        at = net * size * rows * columns * outputs + square[:, None] * outputs + kept[None, :]
        tl.store(out + at, best, mask=there[:, None] & (kept < outputs)[None, :])
        tl.store(code + at, which.to(tl.int8), mask=there[:, None] & (kept < outputs)[None, :])
    else:
        y, x_ = (2 * row)[:, None] + (spot // 2)[None, :], (2 * column)[:, None] + (spot % 2)[None, :]
        at = ((image[:, None] * down + y) * across + x_) * outputs + filt[None, :]
        good = there[:, None] & known[None, :] & (y < down) & (x_ < across)
        tl.store(out + net * size * down * across * outputs + at, total, mask=good)


@triton.jit
def _by_weight(
    x, slope, code, out, out_bias, net_apart, image_apart, channel_apart, y_apart, x_apart, each,
    size, height: tl.constexpr, width: tl.constexpr, outputs: tl.constexpr, rows: tl.constexpr,
    columns: tl.constexpr, down: tl.constexpr, across: tl.constexpr, high: tl.constexpr, line: tl.constexpr,
    sy: tl.constexpr, sx: tl.constexpr, pooled: tl.constexpr, ragged: tl.constexpr,
    precision: tl.constexpr, PITCH: tl.constexpr, SQUARES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
    BANKS: tl.constexpr,
):  # fmt: skip
    """Gradients of the four filters, in parts; `down` x `across` is the size of a stored slope."""
    net = tl.program_id(1).to(tl.int64)
    terms: tl.constexpr = high * line
    x += net * size * height * width * PITCH
    slope += net * net_apart
    code += net * size * down * across * outputs
    block, bank = tl.program_id(0) // BANKS, tl.program_id(0) % BANKS
    k = block * TERMS + tl.arange(0, TERMS)
    filt = bank * OUT + tl.arange(0, OUT)
    spot = tl.arange(0, 4)[:, None, None]
    begin = tl.program_id(2) * each
    end = tl.minimum(begin + each, size * rows * columns)
    total = tl.zeros((4 * OUT, TERMS), tl.float32)
    slopes = tl.zeros((4 * OUT, SQUARES), tl.float32)
    for first in range(begin, end, SQUARES):
        square = first + tl.arange(0, SQUARES)
        there = square < end
        image, row, column = square // (rows * columns), square % (rows * columns) // columns, square % columns
        corner = ((image * height + row * sy) * width + column * sx) * PITCH
        good = there[:, None] & (k < terms)[None, :]
        if ragged:
            good = good & ((row * sy)[:, None] + (k // line)[None, :] < height)
            good = good & ((column * sx)[:, None] + (k % line // PITCH)[None, :] < width)
        seen = tl.load(x + corner[:, None] + (k // line * (width * PITCH) + k % line)[None, :], mask=good, other=0.0)
        if pooled:
            good = (filt < outputs)[:, None] & there[None, :]
            at = image * image_apart + row * y_apart + column * x_apart
            error = tl.load(slope + filt[:, None] * channel_apart + at[None, :], mask=good, other=0.0)
            at = ((image * down + row) * across + column) * outputs
            which = tl.load(code + at[None, :] + filt[:, None], mask=good, other=4)
            errors = tl.where(which[None, :, :] == spot, error[None, :, :], 0.0)
        else:
            y, x_ = 2 * row[None, None, :] + spot // 2, 2 * column[None, None, :] + spot % 2
            good = (filt < outputs)[None, :, None] & there[None, None, :] & (y < down) & (x_ < across)
            at = image[None, None, :] * image_apart + filt[None, :, None] * channel_apart + y * y_apart + x_ * x_apart
            errors = tl.load(slope + at, mask=good, other=0.0)
        errors = tl.reshape(errors, (4 * OUT, SQUARES))
        total = tl.dot(errors, seen, total, input_precision=precision)
        slopes += errors
    part = net * tl.num_programs(2) + tl.program_id(2)
    n = tl.arange(0, 4 * OUT)
    own = bank * OUT + n % OUT
    at = ((part * 4 + n // OUT) * outputs + own)[:, None] * terms + k[None, :]
    tl.store(out + at, total, mask=(own < outputs)[:, None] & (k < terms)[None, :])
    if block == 0:
        bias = tl.sum(tl.reshape(tl.sum(slopes, 1), (4, OUT)), 0)
        tl.store(out_bias + part * outputs + filt, bias, mask=filt < outputs)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    out, _ = _convolve(images(x, padding), weight, bias, stride, forward_tile(*weight.shape[1:3]))
    return out


def stage(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor]:
    """Convolution, ReLU and max pooling over 2x2: what is kept, and the code that says where it was."""
    return _convolve(images(x, padding), weight, bias, stride, forward_tile(*weight.shape[1:3]), pooled=True)


def back(
    slope: Tensor, code: Tensor | None, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, needs_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the images (or nothing, if nobody needs it), of the filters, and of the bias."""
    if code is not None:
        code = code.permute(0, 1, 3, 4, 2).contiguous()
    by_weight, by_bias = _filters_back(images(x, padding), slope, code, weight.shape, stride)
    if not needs_x:
        return x.new_empty(len(x), 0), by_weight, by_bias
    error = framed(slope, code, (x.shape[-2], x.shape[-1]), (weight.shape[-2], weight.shape[-1]), stride, padding)
    by_x, _ = _convolve(error, weight, None, (1, 1), back_tile(weight.shape[2]), turned=True)
    return by_x, by_weight, by_bias


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, tile: Tile, pooled: bool = False, turned: bool = False
) -> tuple[Tensor, Tensor]:
    """Of images [rows, size, height, width, pitch]; turned, by the filters of the way back."""
    nets, size, height, width, pitch = x.shape
    outputs, shape = weight.shape[2 if turned else 1], tuple(weight.shape[-2:])
    tile = tile.on(x.device, spots=4)
    down, across = places((height, width), shape, stride)
    rows, columns = (down // 2, across // 2) if pooled else (triton.cdiv(down, 2), triton.cdiv(across, 2))
    filters = four(weight, stride, turned)
    out = x.new_empty(nets, size, rows, columns, outputs) if pooled else x.new_empty(nets, size, down, across, outputs)
    code = torch.empty_like(out, dtype=torch.int8) if pooled else out
    filters_each = rounded(outputs, tile.filters)
    grid = (triton.cdiv(size * rows * columns, tile.places), nets, triton.cdiv(outputs, filters_each))
    bias = None if bias is None else rows_apart(bias)
    ragged = not pooled and (down % 2 > 0 or across % 2 > 0)
    _forward[grid](
        x, filters, x if bias is None else bias, out, code, 0 if bias is None else bias.stride(0),
        size, height, width, outputs, rows, columns, down, across, *_lines(filters), 2 * stride[0], 2 * stride[1],
        bias is not None, pooled, ragged, precision(), pitch, tile.places, filters_each, tile.terms,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out.permute(0, 1, 4, 2, 3), code.permute(0, 1, 4, 2, 3)


def _filters_back(x: Tensor, slope: Tensor, code: Tensor | None, shape: Any, stride: Pair) -> tuple[Tensor, Tensor]:
    nets, size, height, width, pitch = x.shape
    _, outputs, channels, high, wide = shape
    pooled = code is not None
    down, across = slope.shape[-2:]
    rows, columns = (down, across) if pooled else (triton.cdiv(down, 2), triton.cdiv(across, 2))
    window = high + stride[0], wide + stride[1], pitch
    terms = window[0] * window[1] * pitch
    tile = filters_tile(outputs, terms)
    filters_each = rounded(outputs, tile.filters)
    banks = triton.cdiv(outputs, filters_each)
    programs = banks * triton.cdiv(terms, tile.terms)
    splits = min(64, triton.next_power_of_2(triton.cdiv(BUSY, programs * nets)))
    each = triton.cdiv(triton.cdiv(size * rows * columns, splits), tile.places) * tile.places
    out, bias = x.new_empty(nets, splits, 4, outputs, *window), x.new_empty(nets, splits, outputs)
    ragged = not pooled and (down % 2 > 0 or across % 2 > 0)
    _by_weight[(programs, nets, splits)](
        x, slope, slope if code is None else code, out, bias, *slope.stride(), each,
        size, height, width, outputs, rows, columns, down, across, *_lines(out), 2 * stride[0], 2 * stride[1],
        pooled, ragged, precision(), pitch, tile.places, filters_each, tile.terms, banks,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return fold(out, bias, channels, (high, wide), stride)


def _lines(filters: Tensor) -> Pair:
    """How many lines a window has, and how many numbers a line."""
    high, wide, pitch = filters.shape[-3:]
    return high, wide * pitch
