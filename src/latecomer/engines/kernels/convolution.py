"""Convolutions of many small networks, one network a row.

Every array has a leading dimension of rows: images [rows, size, channels, height, width], filters [rows, outputs,
channels, high, wide]. In memory, a pixel's channels lie side by side (layout.py); what goes out is laid out so already.
Windows are gathered as they are multiplied. Sums over images are made in a fixed order: the same numbers give the same
bits.

Where ReLU and max pooling over 2x2 follow, four places make one: the largest is kept, with a code that says which it
was (0 to 3, or 4 where ReLU cut it off). Slopes then stay as small as what was kept, and the code says where they
belong.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import filters, framed, images, places, rows_apart

Pair = tuple[int, int]


class Tile(NamedTuple):
    """How much of a product one program makes: places of an image, terms of a sum at a time, and by how many warps."""

    places: int
    terms: int
    warps: int
    stages: int


FORWARD, BACK, FILTERS = Tile(128, 16, 4, 3), Tile(256, 16, 4, 3), Tile(32, 128, 2, 3)  # the fastest of 140 on an H200
BUSY = 480  # programs that keep a GPU busy; a sum over all places of all images is split into parts to have as many


@triton.jit
def _forward(
    x, weight, bias, out, code, bias_apart, size: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
    outputs: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, high: tl.constexpr, line: tl.constexpr,
    sy: tl.constexpr, sx: tl.constexpr, biased: tl.constexpr, pooled: tl.constexpr, precision: tl.constexpr,
    PITCH: tl.constexpr, PLACES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    net = tl.program_id(1).to(tl.int64)
    terms: tl.constexpr = high * line  # a window is so many lines of pixels and their channels
    x += net * size * height * width * PITCH
    weight += net * outputs * terms
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    filt = tl.program_id(2) * OUT + tl.arange(0, OUT)
    if pooled:  # rows and columns count squares of four places
        image, square = place // (4 * rows * columns), place // 4 % (rows * columns)
        row, column = square // columns * 2 + place % 4 // 2, square % columns * 2 + place % 2
        there = place < size * 4 * rows * columns
    else:
        image, row, column = place // (rows * columns), place % (rows * columns) // columns, place % columns
        there = place < size * rows * columns
    corner = ((image * height + row * sy) * width + column * sx) * PITCH
    known = filt < outputs
    total = tl.zeros((PLACES, OUT), tl.float32)
    for first in range(0, terms, TERMS):
        k = first + tl.arange(0, TERMS)
        within = k // line * (width * PITCH) + k % line
        seen = tl.load(x + corner[:, None] + within[None, :], mask=there[:, None] & (k < terms)[None, :], other=0.0)
        own = weight + filt[None, :] * terms + k[:, None]
        own = tl.load(own, mask=known[None, :] & (k < terms)[:, None], other=0.0)
        total = tl.dot(seen, own, total, input_precision=precision)
    if biased:
        total += tl.load(bias + net * bias_apart + filt, mask=known, other=0.0)[None, :]
    out += net * size * rows * columns * outputs
    if pooled:
        best, which = tl.max(tl.reshape(total, (PLACES // 4, 4, OUT)), 1, return_indices=True)
        which = tl.where(best > 0, which, 4)
        best = tl.where(best <= 0, 0.0, best)  # so written, NaN stays NaN
        spot = tl.program_id(0) * (PLACES // 4) + tl.arange(0, PLACES // 4)
        at, good = spot[:, None] * outputs + filt[None, :], (spot < size * rows * columns)[:, None] & known[None, :]
        tl.store(out + at, best, mask=good)
        tl.store(code + net * size * rows * columns * outputs + at, which.to(tl.int8), mask=good)
    else:
        tl.store(out + place[:, None] * outputs + filt[None, :], total, mask=there[:, None] & known[None, :])


@triton.jit
def _by_weight(
    x, error, out, out_bias, size: tl.constexpr, channels: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
    outputs: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, up: tl.constexpr, left: tl.constexpr,
    tall: tl.constexpr, broad: tl.constexpr, high: tl.constexpr, line: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr,
    each: tl.constexpr, precision: tl.constexpr, PITCH: tl.constexpr, DEEP: tl.constexpr,
    PLACES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr, BANKS: tl.constexpr,
):  # fmt: skip
    net = tl.program_id(1).to(tl.int64)
    terms: tl.constexpr = high * line
    x += net * size * height * width * PITCH
    error += net * size * tall * broad * DEEP
    block, bank = tl.program_id(0) // BANKS, tl.program_id(0) % BANKS
    k = block * TERMS + tl.arange(0, TERMS)
    filt = bank * OUT + tl.arange(0, OUT)
    within = k // line * (width * PITCH) + k % line
    begin = tl.program_id(2) * each
    end = tl.minimum(begin + each, size * rows * columns)
    total = tl.zeros((OUT, TERMS), tl.float32)
    bias = tl.zeros((OUT,), tl.float32)
    for first in range(begin, end, PLACES):
        place = first + tl.arange(0, PLACES)
        image, row, column = place // (rows * columns), place % (rows * columns) // columns * sy, place % columns * sx
        corner = ((image * height + row) * width + column) * PITCH
        there = (place < end)[:, None]
        seen = tl.load(x + corner[:, None] + within[None, :], mask=there & (k < terms)[None, :], other=0.0)
        at = ((image * tall + row + up) * broad + column + left) * DEEP
        slope = tl.load(error + at[:, None] + filt[None, :], mask=there & (filt < DEEP)[None, :], other=0.0)
        total = tl.dot(tl.trans(slope), seen, total, input_precision=precision)
        bias += tl.sum(slope, 0)
    part = net * tl.num_programs(2) + tl.program_id(2)
    channel, window = k % PITCH, high * (line // PITCH)
    at = ((part * outputs + filt)[:, None] * channels + channel[None, :]) * window + (k // PITCH)[None, :]
    tl.store(out + at, total, mask=(filt < outputs)[:, None] & ((channel < channels) & (k < terms))[None, :])
    if block == 0:
        tl.store(out_bias + part * outputs + filt, bias, mask=filt < outputs)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    out, _ = _convolve(images(x, padding), filters(weight), bias, tuple(weight.shape[-2:]), stride, FORWARD)
    return out


def stage(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor]:
    """Convolution, ReLU and max pooling over 2x2: what is kept, and the code that says where it was."""
    return _convolve(images(x, padding), filters(weight), bias, tuple(weight.shape[-2:]), stride, FORWARD, pooled=True)


def back(
    slope: Tensor, code: Tensor | None, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, needs_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the images (or nothing, if nobody needs it), of the filters, and of the bias."""
    shape = tuple(weight.shape[-2:])
    laid = images(x, padding)
    frame = (shape[0] - 1 - padding[0], shape[1] - 1 - padding[1]) if needs_x else (0, 0)
    error = framed(slope, code, frame, laid.shape[2:4], shape, stride, tuple(x.shape[-2:]) if needs_x else None)
    by_weight, by_bias = _filters_back(laid, error, frame, weight.shape, stride)
    if not needs_x:
        return x.new_empty(len(x), 0), by_weight, by_bias
    by_x, _ = _convolve(error, filters(weight, turned=True), None, shape, (1, 1), BACK)
    return by_x, by_weight, by_bias


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: Any, stride: Pair, tile: Tile, pooled: bool = False
) -> tuple[Tensor, Tensor]:
    """Of images [rows, size, height, width, pitch], with filters that are laid out alike."""
    nets, size, height, width, pitch = x.shape
    outputs = weight.shape[1]
    rows, columns = places((height, width), shape, stride)
    if pooled:
        rows, columns = rows // 2, columns // 2
    out = x.new_empty(nets, size, rows, columns, outputs)
    code = torch.empty_like(out, dtype=torch.int8) if pooled else out
    block = _block(outputs)
    grid = (triton.cdiv(size * rows * columns * (4 if pooled else 1), tile.places), nets, triton.cdiv(outputs, block))
    bias = None if bias is None else rows_apart(bias)
    _forward[grid](
        x, weight, x if bias is None else bias, out, code, 0 if bias is None else bias.stride(0),
        size, height, width, outputs, rows, columns, shape[0], shape[1] * pitch, *stride,
        bias is not None, pooled, precision(), pitch, tile.places, block, tile.terms,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out.permute(0, 1, 4, 2, 3), code.permute(0, 1, 4, 2, 3)


def _filters_back(x: Tensor, error: Tensor, frame: Pair, shape: Any, stride: Pair) -> tuple[Tensor, Tensor]:
    nets, size, height, width, pitch = x.shape
    _, outputs, channels, high, wide = shape
    rows, columns = places((height, width), (high, wide), stride)
    tile, block = FILTERS, _block(outputs)
    banks = triton.cdiv(outputs, block)
    programs = banks * triton.cdiv(high * wide * pitch, tile.terms)
    splits = min(64, max(8, triton.next_power_of_2(triton.cdiv(BUSY, programs * nets))), size * rows)
    each = triton.cdiv(triton.cdiv(size * rows * columns, splits), tile.places) * tile.places
    out = x.new_empty(nets, splits, outputs, channels, high, wide)
    bias = x.new_empty(nets, splits, outputs)
    _by_weight[(programs, nets, splits)](
        x, error, out, bias, size, channels, height, width, outputs, rows, columns, *frame, *error.shape[2:4],
        high, wide * pitch, *stride, each, precision(), pitch, error.shape[-1], tile.places, block, tile.terms, banks,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out.sum(1), bias.sum(1)


def _block(count: int) -> int:
    """Matrix units take at least sixteen rows."""
    return int(min(64, max(16, triton.next_power_of_2(count))))


def precision() -> Any:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
