"""How kernels want images and filters to lie in memory: a pixel's channels side by side, padded to a multiple of four.

Then a line of a window lies in one piece and is read four numbers at a time. Up to three channels are not padded: fewer
numbers are worth more.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

Pair = tuple[int, int]
BLOCK = 1024  # numbers that one program lays out


@triton.jit
def _lay_images(
    x, out, net_apart, image_apart, channel_apart, y_apart, x_apart, size, channels: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, up: tl.constexpr, left: tl.constexpr,
    tall: tl.constexpr, broad: tl.constexpr, PITCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Images, framed by `up` and `left` zeros."""
    image = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channel, row, column = at % PITCH, at // PITCH // broad - up, at // PITCH % broad - left
    good = (channel < channels) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    x += image // size * net_apart + image % size * image_apart
    value = tl.load(x + channel * channel_apart + row * y_apart + column * x_apart, mask=good, other=0.0)
    tl.store(out + image * (tall * broad * PITCH) + at, value, mask=at < tall * broad * PITCH)


@triton.jit
def _four(
    weight, out, net_apart, outputs: tl.constexpr, channels: tl.constexpr, first: tl.constexpr, high: tl.constexpr,
    wide: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, turned: tl.constexpr, count: tl.constexpr,
    PITCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """[corner, first, high + sy, wide + sx, last]: filters of outputs and channels; turned, of channels and outputs."""
    net = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    last, x, y = at % PITCH, at // PITCH % (wide + sx), at // (PITCH * (wide + sx)) % (high + sy)
    one, spot = at // (PITCH * (wide + sx) * (high + sy)) % first, at // (PITCH * (wide + sx) * (high + sy) * first)
    y, x = y - spot // 2 * sy, x - spot % 2 * sx
    good = (at < count) & (y >= 0) & (y < high) & (x >= 0) & (x < wide)
    if turned:
        good = good & (last < outputs)
        place = ((last * channels + one) * high + high - 1 - y) * wide + wide - 1 - x
    else:
        good = good & (last < channels)
        place = ((one * channels + last) * high + y) * wide + x
    tl.store(out + net * count + at, tl.load(weight + net * net_apart + place, mask=good, other=0.0), mask=at < count)


@triton.jit
def _fold(
    parts, bias, out, out_bias, splits, outputs: tl.constexpr, channels: tl.constexpr,
    high: tl.constexpr, wide: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, PITCH: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum over parts and corners, as ordinary filters; behind them, the bias. Read in the order of the parts."""
    net = tl.program_id(1).to(tl.int64)
    count: tl.constexpr = outputs * channels * high * wide
    each: tl.constexpr = outputs * (high + sy) * (wide + sx) * PITCH
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel, x, y = at % channels, at // channels % wide, at // (channels * wide) % high
    filt = at // (channels * wide * high)
    place = ((filt * (high + sy) + y) * (wide + sx) + x) * PITCH + channel
    total = tl.zeros((BLOCK,), tl.float32)
    tail = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, splits, PARTS):  # several at a time, so that no load waits for the one before
        split = first + tl.arange(0, PARTS)
        part, there = (net * splits + split)[:, None], (split < splits)[:, None]
        for spot in tl.static_range(4):
            shift = spot * each + (spot // 2 * sy * (wide + sx) + spot % 2 * sx) * PITCH
            found = tl.load(
                parts + part * (4 * each) + (place + shift)[None, :], mask=there & (at < count)[None, :], other=0.0
            )
            total += tl.sum(found, 0)
        behind = ((at >= count) & (at < count + outputs))[None, :]
        tail += tl.sum(tl.load(bias + part * outputs + (at - count)[None, :], mask=there & behind, other=0.0), 0)
    to = ((filt * channels + channel) * high + y) * wide + x
    tl.store(out + net * count + to, total, mask=at < count)
    tl.store(out_bias + net * outputs + at - count, tail, mask=(at >= count) & (at < count + outputs))


@triton.jit
def _frame(
    slope, code, out, net_apart, image_apart, channel_apart, y_apart, x_apart, size,
    outputs: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, up: tl.constexpr, left: tl.constexpr,
    tall: tl.constexpr, broad: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, pooled: tl.constexpr,
    PITCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Slopes where they belong, spread out by the stride and framed by `up` and `left` zeros."""
    image = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    filt, y, x = at % PITCH, at // PITCH // broad - up, at // PITCH % broad - left
    good = (filt < outputs) & (y >= 0) & (x >= 0) & (y % sy == 0) & (x % sx == 0)
    y, x = y // sy, x // sx
    spot = y % 2 * 2 + x % 2
    if pooled:
        y, x = y // 2, x // 2
    good = good & (y < rows) & (x < columns)
    slope += image // size * net_apart + image % size * image_apart
    error = tl.load(slope + filt * channel_apart + y * y_apart + x * x_apart, mask=good, other=0.0)
    if pooled:
        code += image * (rows * columns * outputs)
        chosen = tl.load(code + (y * columns + x) * outputs + filt, mask=good, other=4)
        error = tl.where(chosen == spot, error, 0.0)
    tl.store(out + image * (tall * broad * PITCH) + at, error, mask=at < tall * broad * PITCH)


def images(x: Tensor, padding: Pair) -> Tensor:
    """Images as kernels want them: [rows, size, height, width, pitch], padded."""
    nets, size, channels, height, width = x.shape
    apart = pitch(channels)
    wanted = (size * height * width * apart, height * width * apart, 1, width * apart, apart)
    if padding == (0, 0) and x.stride() == wanted and x.data_ptr() % 16 == 0:
        # the room between channels and pitch may hold anything finite: filters have zeros there
        return x.as_strided((nets, size, height, width, apart), (wanted[0], wanted[1], wanted[3], wanted[4], 1))
    tall, broad = height + 2 * padding[0], width + 2 * padding[1]
    out = x.new_empty(nets, size, tall, broad, apart)
    _lay_images[_grid(out)](x, out, *x.stride(), size, channels, height, width, *padding, tall, broad, apart, BLOCK)
    return out


def four(weight: Tensor, stride: Pair, turned: bool) -> Tensor:
    """Filters of squares: [rows, 4, outputs, high and a step, wide and a step, pitch]."""
    nets, outputs, channels, high, wide = weight.shape
    weight = rows_apart(weight)
    first, last = (channels, outputs) if turned else (outputs, channels)
    out = weight.new_empty(nets, 4, first, high + stride[0], wide + stride[1], pitch(last))
    count = out[0].numel()
    _four[(triton.cdiv(count, BLOCK), nets)](
        weight,
        out,
        weight.stride(0),
        outputs,
        channels,
        first,
        high,
        wide,
        *stride,
        turned,
        count,
        out.shape[-1],
        BLOCK,
    )
    return out.flatten(1, 2)


def fold(parts: Tensor, bias: Tensor, channels: int, shape: Pair, stride: Pair) -> tuple[Tensor, Tensor]:
    """Gradients of ordinary filters and their bias, from those of squares that were made in parts."""
    nets, splits, _, outputs = parts.shape[:4]
    out, total = parts.new_empty(nets, outputs, channels, *shape), parts.new_empty(nets, outputs)
    block = 128
    _fold[(triton.cdiv(out[0].numel() + outputs, block), nets)](
        parts, bias, out, total, splits, outputs, channels, *shape, *stride, parts.shape[-1], min(8, splits), block
    )
    return out, total


def framed(slope: Tensor, code: Tensor | None, wanted: Pair, shape: Pair, stride: Pair, padding: Pair) -> Tensor:
    """Slopes in a frame of zeros, from which a convolution makes images of the size `wanted`."""
    nets, size, outputs, rows, columns = slope.shape
    tall, broad = wanted[0] + shape[0] - 1, wanted[1] + shape[1] - 1
    out = slope.new_empty(nets, size, tall, broad, pitch(outputs))
    _frame[_grid(out)](
        slope, slope if code is None else code, out, *slope.stride(), size, outputs, rows, columns,
        shape[0] - 1 - padding[0], shape[1] - 1 - padding[1], tall, broad, *stride, code is not None,
        out.shape[-1], BLOCK,
    )  # fmt: skip
    return out


def _grid(images: Tensor) -> Pair:
    """Images, and programs for one of them; in this order, because there can be many images."""
    nets, size = images.shape[:2]
    return nets * size, triton.cdiv(images[0, 0].numel(), BLOCK)


def places(sides: Any, shape: Any, stride: Pair) -> Pair:
    """How many windows there are, down and across."""
    return (sides[0] - shape[0]) // stride[0] + 1, (sides[1] - shape[1]) // stride[1] + 1


def pitch(channels: int) -> int:
    """How far apart pixels lie."""
    return channels if channels <= 3 else triton.cdiv(channels, 4) * 4


def rows_apart(rows: Tensor) -> Tensor:
    """Rows may lie apart, as slices of a longer row do, but each must lie in one piece."""
    return rows if rows[0].is_contiguous() else rows.contiguous()
