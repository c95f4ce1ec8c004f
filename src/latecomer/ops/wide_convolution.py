"""Convolution with many channels, by other kernels: the rule is here, `vmap` and gradients are convolution.py's.

Shapes are those of convolution.py. With this many channels it is arithmetic that takes the time, not reading; so every
place of the output is worked out by itself, which takes no product too many. A product's terms are the channels of one
pixel of the window after another. Windows are gathered as they are multiplied, and what lies outside of an image is
read as zero: images are neither framed nor copied if a pixel's channels lie side by side already.

The gradient of the images is such a convolution of gradients. With a stride, a pixel has been under some of a filter's
pixels only; pixels that have been under the same ones are worked out together (a class), by these alone.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .mapping import HAS_TRITON, Pair
from .triton_tools import Tile, channels_last, pitch, precision, rounded, whole_rows

if HAS_TRITON:
    import triton
    import triton.language as tl

FEWEST = 16  # channels on either side that these kernels need,
MANY = 1536  # and the product of both from which on they are the better ones

FORWARD, BACKWARD = Tile(128, 32, 128, 8, 3), Tile(128, 32, 128, 8, 3)
FILTERS = Tile(32, 128, 128, 8, 3)  # here, the sum is over places, and terms are what is made
EXACT = Tile(32, 32, 32, 4, 2)  # at most so much in full float32, which matrix units do not know
WIDE_BUSY = 800  # programs that keep a GPU busy; sums over all places of all images are split to have as many
MOST_SUMS = 32  # parts that such a sum is split into
SIDE = 64  # of the squares that a matrix is transposed by
CHANNELS = 128  # of a filter that one program lays out


def many_channels(weight: Tensor) -> bool:
    """Whether filters [..., outputs, channels, high, wide] are for these kernels."""
    outputs, channels = weight.shape[-4:-2]
    return min(outputs, channels) >= FEWEST and outputs * channels >= MANY


def wide_conv_rows(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    sides = x.shape[-2] + 2 * padding[0], x.shape[-1] + 2 * padding[1]
    wanted = places(sides, weight.shape[-2:], stride)
    return _wide_convolve(channels_last(x), weight, bias, wanted, stride, padding, FORWARD, back=False)


def wide_conv_gradient_rows(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, needs_x: bool, needs_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the images, of the filters, and of the bias; nothing in the place of what nobody needs."""
    error = channels_last(gradient)
    by_weight = _wide_filters_gradient(channels_last(x), error, weight, stride, padding)
    by_bias = gradient.sum((1, 3, 4)) if needs_bias else gradient.new_empty(len(gradient), 0)
    if not needs_x:
        return x.new_empty(len(x), 0), by_weight, by_bias
    wanted = (x.shape[-2], x.shape[-1])
    return _wide_convolve(error, weight, None, wanted, stride, padding, BACKWARD, back=True), by_weight, by_bias


def places(sides: Any, shape: Any, stride: Pair) -> Pair:
    """How many windows there are, down and across."""
    return (sides[0] - shape[0]) // stride[0] + 1, (sides[1] - shape[1]) // stride[1] + 1


def _wide_convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, wanted: Pair, stride: Pair, padding: Pair, tile: Tile, back: bool
) -> Tensor:
    """Of images [rows, size, height, width, pitch], to the size `wanted`."""
    nets, size, height, width, depth = x.shape
    outputs, (high, wide) = weight.shape[2 if back else 1], weight.shape[-2:]
    filters, filters_stride = _lay_filters(weight, transposed=back)
    classes = stride if back else (1, 1)
    rows, columns = triton.cdiv(wanted[0], classes[0]), triton.cdiv(wanted[1], classes[1])
    out = x.new_empty(nets, size, *wanted, outputs)
    tile = _fitting(tile, x)
    filters_each, terms = rounded(outputs, tile.filters), rounded(depth, tile.terms)
    banks = triton.cdiv(outputs, filters_each)
    bias = None if bias is None else whole_rows(bias)
    _convolve_kernel[(triton.cdiv(size * rows * columns, tile.places) * banks, nets, classes[0] * classes[1])](
        x, filters, x if bias is None else bias, out, filters_stride // 4, 0 if bias is None else bias.stride(0), size,
        height, width, depth // 4, outputs, rows, columns, *wanted, banks, high, wide, *stride, *padding,
        bias is not None, back, depth % terms == 0, precision(), tile.places, terms, filters_each,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out.permute(0, 1, 4, 2, 3)


def _wide_filters_gradient(x: Tensor, gradient: Tensor, weight: Tensor, stride: Pair, padding: Pair) -> Tensor:
    nets, size, height, width, depth = x.shape
    outputs, channels, high, wide = weight.shape[1:]
    rows, columns = gradient.shape[2:4]
    tile = _fitting(FILTERS, x)
    filters_each, terms = rounded(outputs, tile.filters), rounded(depth * high * wide, tile.terms)
    steps = triton.cdiv(size * rows * columns, tile.places)
    by_filter = _transpose(gradient.flatten(1, 3), steps * tile.places)
    programs = triton.cdiv(outputs, filters_each) * triton.cdiv(depth * high * wide, terms)
    each = triton.cdiv(steps, min(MOST_SUMS, steps, triton.cdiv(WIDE_BUSY, programs * nets)))
    splits = triton.cdiv(steps, each)
    parts = x.new_empty(nets, splits, outputs, high * wide, depth)
    _wide_filters_gradient_kernel[(programs, nets, splits)](
        x, by_filter, parts, by_filter.stride(0), by_filter.shape[-1], size, each, height, width, depth, outputs, rows,
        columns, high, wide, *stride, *padding, depth % terms == 0, precision(), tile.places, terms, filters_each,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return _fold_filters(parts, channels, (high, wide))


def _fitting(tile: Tile, x: Tensor) -> Tile:
    return tile.on(x.device) if precision() == "tf32" else Tile(*map(min, tile, EXACT))


# filters and gradients as these kernels want them: what a sum runs over lies side by side


def _transpose(matrices: Tensor, length: int) -> Tensor:
    """[rows, lines, columns] as [rows, columns, length]; what there is no line for is zero."""
    nets, lines, columns = matrices.shape
    matrices = whole_rows(matrices)
    out = matrices.new_empty(nets, columns, length)
    grid = (triton.cdiv(length, SIDE) * triton.cdiv(columns, SIDE), nets)
    _transpose_kernel[grid](matrices, out, matrices.stride(0), out.stride(0), lines, columns, columns, length, SIDE)
    return out


def _lay_filters(weight: Tensor, transposed: bool) -> tuple[Tensor, int]:
    """Filters [rows, outputs, high, wide, pitch], or transposed, [rows, channels, high, wide, pitch of outputs].

    Also the stride of rows: filters that all rows share are laid out once.
    """
    nets, outputs, channels, high, wide = weight.shape
    weight = whole_rows(weight)
    if weight.stride(0) == 0:
        weight = weight[:1]
    taps, depth = high * wide, pitch(outputs if transposed else channels)
    if transposed:
        out = _transpose(weight.flatten(2), depth)
    elif taps == 1 and depth == channels and weight.data_ptr() % 16 == 0 and weight.stride(0) % 4 == 0:
        return weight, weight.stride(0) if len(weight) == nets else 0
    else:
        out = weight.new_empty(len(weight), outputs, taps, depth)
        grid = (triton.cdiv(depth, CHANNELS), outputs, len(weight))
        _lay_filters_kernel[grid](
            weight, out, weight.stride(0), channels, depth, taps, triton.next_power_of_2(taps), CHANNELS
        )
    return out, out.stride(0) if len(weight) == nets else 0


def _fold_filters(parts: Tensor, channels: int, shape: Pair) -> Tensor:
    """Gradients of filters [rows, outputs, channels, high, wide] from parts [rows, splits, outputs, taps, pitch]."""
    nets, splits, outputs, taps, depth = parts.shape
    if splits == 1 and taps == 1 and depth == channels:
        return parts.view(nets, outputs, channels, *shape)
    out = parts.new_empty(nets, outputs, channels, *shape)
    grid = (triton.cdiv(channels, CHANNELS), outputs, nets)
    _fold_filters_kernel[grid](parts, out, splits, channels, depth, taps, triton.next_power_of_2(taps), CHANNELS)
    return out


if HAS_TRITON:

    @triton.jit(do_not_specialize=["size", "height", "width", "rows", "columns", "down", "across"])
    def _convolve_kernel(
        x, weight, bias, out, weight_quads, bias_stride, size, height, width, quads, outputs, rows, columns, down,
        across, banks, high: tl.constexpr, wide: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, py: tl.constexpr,
        px: tl.constexpr, biased: tl.constexpr, back: tl.constexpr, even: tl.constexpr, precision: tl.constexpr,
        PLACES: tl.constexpr, TERMS: tl.constexpr, OUT: tl.constexpr,
    ):  # fmt: skip
        """Images of `height` x `width` and 4 `quads` channels to `down` x `across`; a class: `rows` x `columns` places.

        Forward, the place (i, j) begins at the pixel (i sy - py, j sx - px) and goes down and right. On the way back,
        the pixel (i sy + class, ...) lies under every sy-th line of a filter, from `fy` on; gradients are met going up
        and left.
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
            total += tl.load(bias + net * bias_stride + filt, mask=known, other=0.0)[None, :]
        at = ((image * down + y) * across + x_) * outputs
        tl.store(out + at[:, None] + filt[None, :], total, mask=there[:, None] & known[None, :])

    @triton.jit(do_not_specialize=["size", "each"])
    def _wide_filters_gradient_kernel(
        x, gradient, out, net_stride, gradient_stride, size, each, height: tl.constexpr, width: tl.constexpr,
        channels: tl.constexpr, outputs: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, high: tl.constexpr,
        wide: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, py: tl.constexpr, px: tl.constexpr, even: tl.constexpr,
        precision: tl.constexpr, PLACES: tl.constexpr, TERMS: tl.constexpr, OUT: tl.constexpr,
    ):  # fmt: skip
        """Gradients of filters, in parts of `each` x PLACES places. `gradient` is transposed: a row for every filter.

        If `even`, a program's terms all belong to one pixel of the window.
        """
        net = tl.program_id(1).to(tl.int64)
        terms: tl.constexpr = high * wide * channels
        banks: tl.constexpr = (outputs + OUT - 1) // OUT
        x += net * size * (height * width * channels)
        gradient += net * net_stride
        block = tl.program_id(0) // banks
        filt = tl.program_id(0) % banks * OUT + tl.arange(0, OUT)
        k = block * TERMS + tl.arange(0, TERMS)
        if even:
            tap, channel = block // (channels // TERMS), block % (channels // TERMS) * TERMS + tl.arange(0, TERMS)
        else:
            tap, channel = (k // channels)[:, None], k % channels
        count = size * (rows * columns)
        begin = tl.program_id(2) * each * PLACES
        end = tl.minimum(begin + each * PLACES, gradient_stride)
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
            error = tl.load(
                gradient + filt[None, :] * gradient_stride + place[:, None], mask=(filt < outputs)[None, :], other=0.0
            )
            # of TF32, matrix units read only what lies along the sum from shared memory; by adding nothing, what does
            # not is taken through registers, and Triton need not transpose it number by number
            total = tl.dot(seen + 0.0, error, total, input_precision=precision)
        out += (net * tl.num_programs(2) + tl.program_id(2)) * (outputs * terms)
        good = (k < terms)[:, None] & (filt < outputs)[None, :]
        tl.store(out + filt[None, :] * terms + k[:, None], total, mask=good)

    @triton.jit(do_not_specialize=["lines"])
    def _transpose_kernel(
        x, out, x_net_stride, out_net_stride, lines, columns, x_line_stride, out_line_stride, SIDE: tl.constexpr
    ):
        """Matrices of `lines` become matrices of `columns`, each filled up with zeros to its stride."""
        net = tl.program_id(1).to(tl.int64)
        blocks = tl.cdiv(columns, SIDE)
        line = tl.program_id(0) // blocks * SIDE + tl.arange(0, SIDE)
        column = tl.program_id(0) % blocks * SIDE + tl.arange(0, SIDE)
        known = (column < columns)[:, None]
        value = tl.load(
            x + net * x_net_stride + line[None, :] * x_line_stride + column[:, None],
            mask=known & (line < lines)[None, :],
            other=0.0,
        )
        tl.store(
            out + net * out_net_stride + column[:, None].to(tl.int64) * out_line_stride + line[None, :],
            value, mask=known & (line < out_line_stride)[None, :],
        )  # fmt: skip

    @triton.jit
    def _lay_filters_kernel(
        weight, out, net_stride, channels, depth, taps: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr
    ):
        """[filters, channels, taps] as [filters, taps, depth]."""
        net, filt = tl.program_id(2).to(tl.int64), tl.program_id(1)
        channel = (tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS))[:, None]
        tap = tl.arange(0, TAPS)[None, :]
        value = tl.load(
            weight + net * net_stride + (filt * channels + channel) * taps + tap,
            mask=(channel < channels) & (tap < taps), other=0.0,
        )  # fmt: skip
        at = (net * tl.num_programs(1) + filt) * (taps * depth) + tap * depth + channel
        tl.store(out + at, value, mask=(channel < depth) & (tap < taps))

    @triton.jit
    def _fold_filters_kernel(
        parts, out, splits, channels, depth, taps: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr
    ):
        """The other way round, summed over parts [splits, filters, taps, depth]."""
        net, filt = tl.program_id(2).to(tl.int64), tl.program_id(1)
        channel = (tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS))[:, None]
        tap = tl.arange(0, TAPS)[None, :]
        good = (channel < channels) & (tap < taps)
        total = tl.zeros((CHANNELS, TAPS), tl.float32)
        for split in range(splits):
            part = ((net * splits + split) * tl.num_programs(1) + filt) * (taps * depth)
            total += tl.load(parts + part + tap * depth + channel, mask=good, other=0.0)
        tl.store(out + (net * tl.num_programs(1) + filt) * (channels * taps) + channel * taps + tap, total, mask=good)
