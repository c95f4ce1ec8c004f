"""Convolutions of many networks with many channels, one network a row.

Shapes are those of convolution.py. With this many channels it is arithmetic that takes the time, not reading; so every
place of the output is worked out by itself, which takes no product too many. A product's terms are the channels of one
pixel of the window after another. Windows are gathered as they are multiplied, and what lies outside of an image is
read as zero: images are neither framed nor copied if a pixel's channels lie side by side already.

The gradient of the images is such a convolution of slopes. With a stride, a pixel has been under some of a filter's
pixels only; pixels that have been under the same ones are worked out together (a class), by these alone.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .layout import images, places, rows_apart
from .tile import Tile, precision, rounded
from .turn import fold_filters, lay_filters, turn

Pair = tuple[int, int]


FORWARD, BACK = Tile(128, 32, 128, 8, 3), Tile(128, 32, 128, 8, 3)
FILTERS = Tile(32, 128, 128, 8, 3)  # here, the sum is over places, and terms are what is made
EXACT = Tile(32, 32, 32, 4, 2)  # at most so much in full float32, which matrix units do not know
BUSY = 800  # programs that keep a GPU busy; a sum over all places of all images is split into parts to have as many
MOST_PARTS = 32


@triton.jit(do_not_specialize=["size", "height", "width", "rows", "columns", "down", "across"])
def _convolve(
    x, weight, bias, out, weight_quads, bias_apart, size, height, width, quads, outputs, rows, columns, down, across,
    banks, high: tl.constexpr, wide: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, py: tl.constexpr,
    px: tl.constexpr, biased: tl.constexpr, back: tl.constexpr, even: tl.constexpr, precision: tl.constexpr,
    PLACES: tl.constexpr, TERMS: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """Images of `height` x `width` and 4 `quads` channels to `down` x `across`; a class has `rows` x `columns` places.

    Forward, the place (i, j) begins at the pixel (i sy - py, j sx - px) and goes down and right. On the way back, the
    pixel (i sy + class, ...) lies under every sy-th line of a filter, from `fy` on; slopes are met going up and left.
    """
    net = tl.program_id(1).to(tl.int64)
    channels = quads * 4
    x += net * size * height * width * channels
    weight += net * weight_quads * 4
    out += net * size * down * across * outputs
    place = tl.program_id(0) // banks * PLACES + tl.arange(0, PLACES)
    there = place < size * rows * columns
    image, i, j = place // (rows * columns), place // columns % rows, place % columns
    if back:
        cy, cx = tl.program_id(2) // sx, tl.program_id(2) % sx
        fy, fx = (cy + py) % sy, (cx + px) % sx
        count_y, count_x = tl.maximum(high - fy + sy - 1, 0) // sy, tl.maximum(wide - fx + sx - 1, 0) // sx
        top, left = i + (cy + py - fy) // sy, j + (cx + px - fx) // sx
        y, x_ = i * sy + cy, j * sx + cx
        there = there & (y < down) & (x_ < across)
    else:
        fy, fx, count_y, count_x = 0, 0, high, wide
        top, left, y, x_ = i * sy - py, j * sx - px, i, j
    filt = tl.program_id(0) % banks * OUT + tl.arange(0, OUT)
    known = filt < outputs
    own = filt * (high * wide * channels)
    total = tl.zeros((PLACES, OUT), tl.float32)
    a, b, first = 0, 0, 0
    for _ in range(count_y * count_x * tl.cdiv(channels, TERMS)):
        if back:
            row, column, tap = top - a, left - b, (fy + a * sy) * wide + fx + b * sx
        else:
            row, column, tap = top + a, left + b, a * wide + b
        k = first + tl.arange(0, TERMS)
        inside = there & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        at = ((image * height + row) * width + column) * channels
        good, fits = inside[:, None], known[None, :]
        if not even:
            good, fits = good & (k < channels)[None, :], fits & (k < channels)[:, None]
        seen = tl.load(x + at[:, None] + k[None, :], mask=good, other=0.0)
        filters = tl.load(weight + (own + tap * channels)[None, :] + k[:, None], mask=fits, other=0.0)
        total = tl.dot(seen, filters, total, input_precision=precision)
        first += TERMS
        line = first >= channels
        first = tl.where(line, 0, first)
        b = tl.where(line, b + 1, b)
        a = tl.where(b == count_x, a + 1, a)
        b = tl.where(b == count_x, 0, b)
    if biased:
        total += tl.load(bias + net * bias_apart + filt, mask=known, other=0.0)[None, :]
    at = ((image * down + y) * across + x_) * outputs
    tl.store(out + at[:, None] + filt[None, :], total, mask=there[:, None] & known[None, :])


@triton.jit(do_not_specialize=["size", "each"])
def _by_weight(
    x, slope, out, net_apart, apart, size, each, height: tl.constexpr, width: tl.constexpr,
    channels: tl.constexpr, outputs: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, high: tl.constexpr,
    wide: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, py: tl.constexpr, px: tl.constexpr, even: tl.constexpr,
    precision: tl.constexpr, PLACES: tl.constexpr, TERMS: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """Gradients of filters, in parts of `each` x PLACES places. Slopes are turned: those of a filter lie side by side.

    If `even`, a program's terms all belong to one pixel of the window.
    """
    net = tl.program_id(1).to(tl.int64)
    terms: tl.constexpr = high * wide * channels
    banks: tl.constexpr = (outputs + OUT - 1) // OUT
    x += net * size * (height * width * channels)
    slope += net * net_apart
    block = tl.program_id(0) // banks
    filt = tl.program_id(0) % banks * OUT + tl.arange(0, OUT)
    k = block * TERMS + tl.arange(0, TERMS)
    if even:
        tap, channel = block // (channels // TERMS), block % (channels // TERMS) * TERMS + tl.arange(0, TERMS)
    else:
        tap, channel = (k // channels)[:, None], k % channels
    count = size * (rows * columns)
    begin = tl.program_id(2) * each * PLACES
    end = tl.minimum(begin + each * PLACES, apart)
    total = tl.zeros((TERMS, OUT), tl.float32)
    for first in range(begin, end, PLACES):
        place = first + tl.arange(0, PLACES)
        image, i, j = place // (rows * columns), place // columns % rows, place % columns
        if even:
            row, column = i * sy - py + tap // wide, j * sx - px + tap % wide
            good = ((place < count) & (row >= 0) & (row < height) & (column >= 0) & (column < width))[None, :]
            at = (((image * height + row) * width + column) * channels)[None, :]
        else:
            row, column = (i * sy - py)[None, :] + tap // wide, (j * sx - px)[None, :] + tap % wide
            good = (place < count)[None, :] & (k < terms)[:, None]
            good = good & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            at = ((image[None, :] * height + row) * width + column) * channels
        seen = tl.load(x + at + channel[:, None], mask=good, other=0.0)
        error = tl.load(slope + filt[None, :] * apart + place[:, None], mask=(filt < outputs)[None, :], other=0.0)
        # of TF32, matrix units read only what lies along the sum from shared memory; by adding nothing, what does not
        # is taken through registers, and Triton need not turn it number by number
        total = tl.dot(seen + 0.0, error, total, input_precision=precision)
    out += (net * tl.num_programs(2) + tl.program_id(2)) * (outputs * terms)
    good = (k < terms)[:, None] & (filt < outputs)[None, :]
    tl.store(out + filt[None, :] * terms + k[:, None], total, mask=good)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    sides = x.shape[-2] + 2 * padding[0], x.shape[-1] + 2 * padding[1]
    wanted = places(sides, weight.shape[-2:], stride)
    return _run(images(x, (0, 0)), weight, bias, wanted, stride, padding, FORWARD, back=False)


def back(
    slope: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, needs_x: bool, needs_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the images, of the filters, and of the bias; nothing in the place of what nobody needs."""
    error = images(slope, (0, 0))
    by_weight = _filters_back(images(x, (0, 0)), error, weight, stride, padding)
    by_bias = slope.sum((1, 3, 4)) if needs_bias else slope.new_empty(len(slope), 0)
    if not needs_x:
        return x.new_empty(len(x), 0), by_weight, by_bias
    wanted = (x.shape[-2], x.shape[-1])
    return _run(error, weight, None, wanted, stride, padding, BACK, back=True), by_weight, by_bias


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, wanted: Pair, stride: Pair, padding: Pair, tile: Tile, back: bool
) -> Tensor:
    """Of images [rows, size, height, width, pitch], to the size `wanted`."""
    nets, size, height, width, depth = x.shape
    outputs, (high, wide) = weight.shape[2 if back else 1], weight.shape[-2:]
    filters, apart = lay_filters(weight, turned=back)
    classes = stride if back else (1, 1)
    rows, columns = triton.cdiv(wanted[0], classes[0]), triton.cdiv(wanted[1], classes[1])
    out = x.new_empty(nets, size, *wanted, outputs)
    tile = _fitting(tile, x)
    filters_each, terms = rounded(outputs, tile.filters), rounded(depth, tile.terms)
    banks = triton.cdiv(outputs, filters_each)
    bias = None if bias is None else rows_apart(bias)
    _convolve[(triton.cdiv(size * rows * columns, tile.places) * banks, nets, classes[0] * classes[1])](
        x, filters, x if bias is None else bias, out, apart // 4, 0 if bias is None else bias.stride(0), size, height,
        width, depth // 4, outputs, rows, columns, *wanted, banks, high, wide, *stride, *padding,
        bias is not None, back, depth % terms == 0, precision(), tile.places, terms, filters_each,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out.permute(0, 1, 4, 2, 3)


def _filters_back(x: Tensor, slope: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    nets, size, height, width, depth = x.shape
    outputs, channels, high, wide = weight.shape[1:]
    rows, columns = slope.shape[2:4]
    tile = _fitting(FILTERS, x)
    filters_each, terms = rounded(outputs, tile.filters), rounded(depth * high * wide, tile.terms)
    steps = triton.cdiv(size * rows * columns, tile.places)
    turned = turn(slope.flatten(1, 3), steps * tile.places)
    programs = triton.cdiv(outputs, filters_each) * triton.cdiv(depth * high * wide, terms)
    each = triton.cdiv(steps, min(MOST_PARTS, steps, triton.cdiv(BUSY, programs * nets)))
    splits = triton.cdiv(steps, each)
    parts = x.new_empty(nets, splits, outputs, high * wide, depth)
    _by_weight[(programs, nets, splits)](
        x, turned, parts, turned.stride(0), turned.shape[-1], size, each, height, width, depth, outputs, rows, columns,
        high, wide, *stride, *padding, depth % terms == 0, precision(), tile.places, terms, filters_each,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return fold_filters(parts, channels, (high, wide))


def _fitting(tile: Tile, x: Tensor) -> Tile:
    return tile.on(x.device) if precision() == "tf32" else Tile(*map(min, tile, EXACT))
