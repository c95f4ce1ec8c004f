"""Convolution, and with it, where a layer has them, ReLU and 2x2 max pooling.

Under `vmap`, PyTorch makes a grouped convolution of one whose weights, or whose weights' gradients, differ from client
to client, and cuDNN's way back runs group by group. Where float32 images are mapped on a GPU, kernels take its place:
those of this file for few channels, those of wide_convolution.py for many.

The kernels' arrays have a leading dimension of rows, one a network: images [rows, size, channels, height, width],
filters [rows, outputs, channels, high, wide]. In memory, a pixel's channels lie side by side (triton_tools.py). Four
places of the output, a square, are worked out as one: its window is a little larger than a filter's, and there are four
filters in the place of one, each standing in another corner of that window. So a pixel is read for a whole square, not
for every place of it, and reading is what such small networks spend their time on. Windows are gathered as they are
multiplied. Sums over images are made in a fixed order: the same numbers give the same bits.

Where ReLU and pooling follow, the largest of a square is kept, with a code that says which it was (0 to 3, or 4 where
ReLU cut it off). Gradients then stay as small as what was kept, and the code says where they belong.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import wide_convolution
from .mapping import HAS_TRITON, Pair, Rows, for_kernels, pair, varies
from .triton_tools import BLOCK, Tile, channels_last, image_grid, pitch, precision, rounded, whole_rows
from .wide_convolution import many_channels, places

if HAS_TRITON:
    import triton
    import triton.language as tl

WIDEST = 64  # channels on either side that the kernels for few channels were measured with
BUSY = 480  # programs that keep a GPU busy; a sum over all places of all images is split into parts to have as many


class ConvReLUPool(nn.Conv2d):
    """A convolution, its ReLU, and max pooling over 2x2, as one layer."""

    def forward(self, x: Tensor) -> Tensor:
        return conv_relu_pool(x, self.weight, self.bias, self.stride, self.padding)


def conv_relu_pool(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
    """Convolution, ReLU, and max pooling over 2x2; ReLU last gives the same, on a quarter of the numbers."""
    if for_kernels(x) and varies(weight) and x.ndim == 4 and _few_channels(weight, padding):
        out, _ = _ConvReLUPool.apply(x[None], weight[None], _row(bias), stride, padding)  # type: ignore[no-untyped-call]
        kept: Tensor = out.squeeze(0)
        return kept
    return F.relu(F.max_pool2d(F.conv2d(x, weight, bias, stride, padding), 2))


def conv2d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Stands in for `torch.conv2d` where an engine maps on a GPU."""
    plain = input.ndim == 4 and pair(dilation) == (1, 1) and groups == 1 and not isinstance(padding, str)
    if varies(weight) and plain and for_kernels(input):
        stride, padding = pair(stride), pair(padding)
        if _few_channels(weight, padding) or _many_channels(input, weight, padding):
            out: Tensor = _Conv.apply(input[None], weight[None], _row(bias), stride, padding)  # type: ignore[no-untyped-call]
            return out.squeeze(0)
    return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)


def _few_channels(weight: Tensor, padding: Pair) -> bool:
    """Whether the kernels for few channels take filters like these: those for many channels need many on both sides."""
    return (max(weight.shape[:2]) <= WIDEST or not many_channels(weight)) and _inside(weight, padding)


def _many_channels(x: Tensor, weight: Tensor, padding: Pair) -> bool:
    """Whether the kernels for many channels are. They count the numbers of one client's images by 32 bits."""
    sides = (x.shape[-2] + 2 * padding[0]) * (x.shape[-1] + 2 * padding[1])
    return many_channels(weight) and _inside(weight, padding) and len(x) * max(weight.shape[:2]) * sides < 2**31


def _inside(weight: Tensor, padding: Pair) -> bool:
    """Whether every window sees something of the image."""
    return padding[0] < weight.shape[-2] and padding[1] < weight.shape[-1]


def _row(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias[None]


# how vmap and gradients reach the kernels
#
# A convolution (its bias aside) and the gradients of its filters and its images are each linear in both of their
# inputs, and the gradient of any of them is made of the others; so gradients of gradients come for free. Where nothing
# is pooled, `code` is None.


class _Conv(Rows):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
        if many_channels(weight):
            return wide_convolution.wide_conv_rows(x, weight, bias, stride, padding)
        return conv_rows(x, weight, bias, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return _needed_gradients(ctx, gradient, None, x, weight)


class _ConvReLUPool(Rows):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> tuple[Tensor, Tensor]:
        return conv_relu_pool_rows(x, weight, bias, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, _, ctx.stride, ctx.padding = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, weight, code = ctx.saved_tensors
        return _needed_gradients(ctx, gradient, code, x, weight)


def _needed_gradients(
    ctx: Any, gradient: Tensor, code: Tensor | None, x: Tensor, weight: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of images, filters and bias, as far as they are needed."""
    needs_x, needs_bias = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
    by_x, by_weight, by_bias = _gradients(gradient, code, x, weight, ctx, needs_x, needs_bias)
    return by_x if needs_x else None, by_weight, by_bias if needs_bias else None, None, None


def _gradients(
    gradient: Tensor, code: Tensor | None, x: Tensor, weight: Tensor, ctx: Any, needs_x: bool, needs_bias: bool = False
) -> tuple[Tensor, ...]:
    how = ctx.stride, ctx.padding, needs_x, needs_bias
    found: tuple[Tensor, ...] = _Gradients.apply(gradient, code, x, weight, *how)  # type: ignore[no-untyped-call]
    return found


class _Gradients(Rows):
    """Gradients of images (or nothing in their place), filters and bias (if nobody needs it, anything)."""

    @staticmethod
    def forward(
        gradient: Tensor,
        code: Tensor | None,
        x: Tensor,
        weight: Tensor,
        stride: Pair,
        padding: Pair,
        needs_x: bool,
        needs_bias: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if code is None and many_channels(weight):
            return wide_convolution.wide_conv_gradient_rows(gradient, x, weight, stride, padding, needs_x, needs_bias)
        return conv_gradient_rows(gradient, code, x, weight, stride, padding, needs_x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        gradient, code, x, weight, ctx.stride, ctx.padding, ctx.needs_x, ctx.needs_bias = inputs
        ctx.save_for_backward(gradient, code, x, weight)

    @staticmethod
    def backward(ctx: Any, by_x: Tensor, by_weight: Tensor, by_bias: Tensor) -> tuple[Tensor | None, ...]:
        gradient, code, x, weight = ctx.saved_tensors
        bias = by_bias if ctx.needs_bias else None
        full = _Conv.apply(x, by_weight, bias, ctx.stride, ctx.padding)  # type: ignore[no-untyped-call]
        at_x = _gradients(gradient, code, x, by_weight, ctx, True)[0]
        at_weight = None
        if ctx.needs_x:
            full = full + _Conv.apply(by_x, weight, None, ctx.stride, ctx.padding)  # type: ignore[no-untyped-call]
            at_weight = _gradients(gradient, code, by_x, weight, ctx, False)[1]
        return _kept(full, code), None, at_x, at_weight, None, None, None, None


def _kept(full: Tensor, code: Tensor | None) -> Tensor:
    """Of every four places the one that the code names, or zero."""
    if code is None:
        return full
    high, wide = code.shape[-2:]
    squares = full[..., : 2 * high, : 2 * wide].unflatten(-2, (high, 2)).unflatten(-1, (wide, 2)).transpose(-3, -2)
    four = torch.arange(4, device=code.device, dtype=code.dtype)
    kept: Tensor = (squares.flatten(-2) * (code[..., None] == four)).sum(-1)
    return kept


# kernels


def conv_rows(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    out, _ = _convolve(channels_last(x, padding), weight, bias, stride, _forward_tile(*weight.shape[1:3]))
    return out


def conv_relu_pool_rows(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair
) -> tuple[Tensor, Tensor]:
    """Convolution, ReLU and max pooling over 2x2: what is kept, and the code that says where it was."""
    tile = _forward_tile(*weight.shape[1:3])
    return _convolve(channels_last(x, padding), weight, bias, stride, tile, pooled=True)


def conv_gradient_rows(
    gradient: Tensor, code: Tensor | None, x: Tensor, weight: Tensor, stride: Pair, padding: Pair, needs_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the images (or nothing, if nobody needs it), of the filters, and of the bias."""
    if code is not None:
        code = code.permute(0, 1, 3, 4, 2).contiguous()
    by_weight, by_bias = _filters_gradient(channels_last(x, padding), gradient, code, weight.shape, stride)
    if not needs_x:
        return x.new_empty(len(x), 0), by_weight, by_bias
    error = _framed(gradient, code, (x.shape[-2], x.shape[-1]), (weight.shape[-2], weight.shape[-1]), stride, padding)
    by_x, _ = _convolve(error, weight, None, (1, 1), _backward_tile(weight.shape[2]), transposed=True)
    return by_x, by_weight, by_bias


def _forward_tile(filters: int, channels: int) -> Tile:
    """These and the next two by measurement on an H200."""
    if filters <= 16:
        return Tile(128, 16 if channels <= 4 else 32, 16, 4, 3)
    return Tile(128, 16, 32, 8, 4) if filters <= 32 else Tile(128, 32, 64, 8, 4)


def _backward_tile(channels: int) -> Tile:
    return Tile(64, 32, 16, 4, 4) if channels <= 16 else Tile(128, 32, 32, 8, 3)


def _filters_tile(filters: int, terms: int) -> Tile:
    """For windows of so many numbers: if one program holds a whole window, it may as well serve more filters."""
    if terms <= 128 and filters > 16:
        return Tile(16, 128, 32, 4, 4)
    return Tile(16, 128 if terms <= 128 or terms % 128 == 0 else 64, 16, 2, 3)


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    tile: Tile,
    pooled: bool = False,
    transposed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Of images [rows, size, height, width, pitch]; transposed, by the filters of the way back."""
    nets, size, height, width, pixel = x.shape
    outputs, shape = weight.shape[2 if transposed else 1], tuple(weight.shape[-2:])
    tile = tile.on(x.device, corners=4)
    down, across = places((height, width), shape, stride)
    rows, columns = (down // 2, across // 2) if pooled else (triton.cdiv(down, 2), triton.cdiv(across, 2))
    filters = _corner_filters(weight, stride, transposed)
    out = x.new_empty(nets, size, rows, columns, outputs) if pooled else x.new_empty(nets, size, down, across, outputs)
    code = torch.empty_like(out, dtype=torch.int8) if pooled else out
    filters_each = rounded(outputs, tile.filters)
    grid = (triton.cdiv(size * rows * columns, tile.places), nets, triton.cdiv(outputs, filters_each))
    bias = None if bias is None else whole_rows(bias)
    ragged = not pooled and (down % 2 > 0 or across % 2 > 0)
    _forward_kernel[grid](
        x, filters, x if bias is None else bias, out, code, 0 if bias is None else bias.stride(0),
        size, height, width, outputs, rows, columns, down, across, *_lines(filters), 2 * stride[0], 2 * stride[1],
        bias is not None, pooled, ragged, precision(), pixel, tile.places, filters_each, tile.terms,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out.permute(0, 1, 4, 2, 3), code.permute(0, 1, 4, 2, 3)


def _filters_gradient(
    x: Tensor, gradient: Tensor, code: Tensor | None, shape: Any, stride: Pair
) -> tuple[Tensor, Tensor]:
    nets, size, height, width, pixel = x.shape
    _, outputs, channels, high, wide = shape
    pooled = code is not None
    down, across = gradient.shape[-2:]
    rows, columns = (down, across) if pooled else (triton.cdiv(down, 2), triton.cdiv(across, 2))
    window = high + stride[0], wide + stride[1], pixel
    terms = window[0] * window[1] * pixel
    tile = _filters_tile(outputs, terms)
    filters_each = rounded(outputs, tile.filters)
    banks = triton.cdiv(outputs, filters_each)
    programs = banks * triton.cdiv(terms, tile.terms)
    splits = min(64, triton.next_power_of_2(triton.cdiv(BUSY, programs * nets)))
    each = triton.cdiv(triton.cdiv(size * rows * columns, splits), tile.places) * tile.places
    out, bias = x.new_empty(nets, splits, 4, outputs, *window), x.new_empty(nets, splits, outputs)
    ragged = not pooled and (down % 2 > 0 or across % 2 > 0)
    _filters_gradient_kernel[(programs, nets, splits)](
        x, gradient, gradient if code is None else code, out, bias, *gradient.stride(), each,
        size, height, width, outputs, rows, columns, down, across, *_lines(out), 2 * stride[0], 2 * stride[1],
        pooled, ragged, precision(), pixel, tile.places, filters_each, tile.terms, banks,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return _fold(out, bias, channels, (high, wide), stride)


def _lines(filters: Tensor) -> Pair:
    """How many lines a window has, and how many numbers a line."""
    high, wide, pixel = filters.shape[-3:]
    return high, wide * pixel


def _corner_filters(weight: Tensor, stride: Pair, transposed: bool) -> Tensor:
    """Filters of squares: [rows, 4, outputs, high and a step, wide and a step, pitch]."""
    nets, outputs, channels, high, wide = weight.shape
    weight = whole_rows(weight)
    first, last = (channels, outputs) if transposed else (outputs, channels)
    out = weight.new_empty(nets, 4, first, high + stride[0], wide + stride[1], pitch(last))
    count = out[0].numel()
    _corner_filters_kernel[(triton.cdiv(count, BLOCK), nets)](
        weight, out, weight.stride(0), outputs, channels, first, high, wide, *stride, transposed, count,
        out.shape[-1], BLOCK,
    )  # fmt: skip
    return out.flatten(1, 2)


def _fold(parts: Tensor, bias: Tensor, channels: int, shape: Pair, stride: Pair) -> tuple[Tensor, Tensor]:
    """Gradients of ordinary filters and their bias, from those of squares that were made in parts."""
    nets, splits, _, outputs = parts.shape[:4]
    out, total = parts.new_empty(nets, outputs, channels, *shape), parts.new_empty(nets, outputs)
    block = 128
    _fold_kernel[(triton.cdiv(out[0].numel() + outputs, block), nets)](
        parts, bias, out, total, splits, outputs, channels, *shape, *stride, parts.shape[-1], min(8, splits), block
    )
    return out, total


def _framed(gradient: Tensor, code: Tensor | None, wanted: Pair, shape: Pair, stride: Pair, padding: Pair) -> Tensor:
    """Gradients in a frame of zeros, from which a convolution makes images of the size `wanted`."""
    nets, size, outputs, rows, columns = gradient.shape
    tall, broad = wanted[0] + shape[0] - 1, wanted[1] + shape[1] - 1
    out = gradient.new_empty(nets, size, tall, broad, pitch(outputs))
    _frame_kernel[image_grid(out)](
        gradient, gradient if code is None else code, out, *gradient.stride(), size, outputs, rows, columns,
        shape[0] - 1 - padding[0], shape[1] - 1 - padding[1], tall, broad, *stride, code is not None,
        out.shape[-1], BLOCK,
    )  # fmt: skip
    return out


if HAS_TRITON:

    @triton.jit
    def _forward_kernel(
        x, weight, bias, out, code, bias_stride, size, height: tl.constexpr, width: tl.constexpr,
        outputs: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, down: tl.constexpr, across: tl.constexpr,
        high: tl.constexpr, line: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, biased: tl.constexpr,
        pooled: tl.constexpr, ragged: tl.constexpr, precision: tl.constexpr, PITCH: tl.constexpr,
        SQUARES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
    ):  # fmt: skip
        """`rows` x `columns` squares; without pooling, they cover `down` x `across` places. A window: `high` lines."""
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
            seen = tl.load(
                x + corner[:, None] + (k // line * (width * PITCH) + k % line)[None, :], mask=good, other=0.0
            )
            filters = tl.load(weight + own[None, :] + k[:, None], mask=known[None, :] & (k < terms)[:, None], other=0.0)
            total = tl.dot(seen, filters, total, input_precision=precision)
        if biased:
            total += tl.load(bias + net * bias_stride + filt, mask=known, other=0.0)[None, :]
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
    def _filters_gradient_kernel(
        x, gradient, code, out, out_bias, net_stride, image_stride, channel_stride, y_stride, x_stride, each,
        size, height: tl.constexpr, width: tl.constexpr, outputs: tl.constexpr, rows: tl.constexpr,
        columns: tl.constexpr, down: tl.constexpr, across: tl.constexpr, high: tl.constexpr, line: tl.constexpr,
        sy: tl.constexpr, sx: tl.constexpr, pooled: tl.constexpr, ragged: tl.constexpr,
        precision: tl.constexpr, PITCH: tl.constexpr, SQUARES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
        BANKS: tl.constexpr,
    ):  # fmt: skip
        """Gradients of the four filters, in parts; `down` x `across` is the size of a stored gradient."""
        net = tl.program_id(1).to(tl.int64)
        terms: tl.constexpr = high * line
        x += net * size * height * width * PITCH
        gradient += net * net_stride
        code += net * size * down * across * outputs
        block, bank = tl.program_id(0) // BANKS, tl.program_id(0) % BANKS
        k = block * TERMS + tl.arange(0, TERMS)
        filt = bank * OUT + tl.arange(0, OUT)
        spot = tl.arange(0, 4)[:, None, None]
        begin = tl.program_id(2) * each
        end = tl.minimum(begin + each, size * rows * columns)
        total = tl.zeros((4 * OUT, TERMS), tl.float32)
        gradients = tl.zeros((4 * OUT, SQUARES), tl.float32)
        for first in range(begin, end, SQUARES):
            square = first + tl.arange(0, SQUARES)
            there = square < end
            image, row, column = square // (rows * columns), square % (rows * columns) // columns, square % columns
            corner = ((image * height + row * sy) * width + column * sx) * PITCH
            good = there[:, None] & (k < terms)[None, :]
            if ragged:
                good = good & ((row * sy)[:, None] + (k // line)[None, :] < height)
                good = good & ((column * sx)[:, None] + (k % line // PITCH)[None, :] < width)
            seen = tl.load(
                x + corner[:, None] + (k // line * (width * PITCH) + k % line)[None, :], mask=good, other=0.0
            )
            if pooled:
                good = (filt < outputs)[:, None] & there[None, :]
                at = image * image_stride + row * y_stride + column * x_stride
                error = tl.load(gradient + filt[:, None] * channel_stride + at[None, :], mask=good, other=0.0)
                at = ((image * down + row) * across + column) * outputs
                which = tl.load(code + at[None, :] + filt[:, None], mask=good, other=4)
                errors = tl.where(which[None, :, :] == spot, error[None, :, :], 0.0)
            else:
                y, x_ = 2 * row[None, None, :] + spot // 2, 2 * column[None, None, :] + spot % 2
                good = (filt < outputs)[None, :, None] & there[None, None, :] & (y < down) & (x_ < across)
                at = (
                    image[None, None, :] * image_stride
                    + filt[None, :, None] * channel_stride
                    + y * y_stride
                    + x_ * x_stride
                )
                errors = tl.load(gradient + at, mask=good, other=0.0)
            errors = tl.reshape(errors, (4 * OUT, SQUARES))
            total = tl.dot(errors, seen, total, input_precision=precision)
            gradients += errors
        part = net * tl.num_programs(2) + tl.program_id(2)
        n = tl.arange(0, 4 * OUT)
        own = bank * OUT + n % OUT
        at = ((part * 4 + n // OUT) * outputs + own)[:, None] * terms + k[None, :]
        tl.store(out + at, total, mask=(own < outputs)[:, None] & (k < terms)[None, :])
        if block == 0:
            bias = tl.sum(tl.reshape(tl.sum(gradients, 1), (4, OUT)), 0)
            tl.store(out_bias + part * outputs + filt, bias, mask=filt < outputs)

    @triton.jit(do_not_specialize=["net_stride"])
    def _corner_filters_kernel(
        weight, out, net_stride, outputs: tl.constexpr, channels: tl.constexpr, first: tl.constexpr, high: tl.constexpr,
        wide: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, transposed: tl.constexpr, count: tl.constexpr,
        PITCH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """[corner, first, high + sy, wide + sx, last]: first are outputs, last channels; transposed, the reverse."""
        net = tl.program_id(1).to(tl.int64)
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        last, x, y = at % PITCH, at // PITCH % (wide + sx), at // (PITCH * (wide + sx)) % (high + sy)
        one, spot = at // (PITCH * (wide + sx) * (high + sy)) % first, at // (PITCH * (wide + sx) * (high + sy) * first)
        y, x = y - spot // 2 * sy, x - spot % 2 * sx
        good = (at < count) & (y >= 0) & (y < high) & (x >= 0) & (x < wide)
        if transposed:
            good = good & (last < outputs)
            place = ((last * channels + one) * high + high - 1 - y) * wide + wide - 1 - x
        else:
            good = good & (last < channels)
            place = ((one * channels + last) * high + y) * wide + x
        tl.store(
            out + net * count + at, tl.load(weight + net * net_stride + place, mask=good, other=0.0), mask=at < count
        )

    @triton.jit
    def _fold_kernel(
        parts, bias, out, out_bias, splits, outputs: tl.constexpr, channels: tl.constexpr,
        high: tl.constexpr, wide: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, PITCH: tl.constexpr,
        PARTS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """The sum over parts and corners, as ordinary filters; behind them, the bias. Parts are read in order."""
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
    def _frame_kernel(
        gradient, code, out, net_stride, image_stride, channel_stride, y_stride, x_stride, size,
        outputs: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, up: tl.constexpr, left: tl.constexpr,
        tall: tl.constexpr, broad: tl.constexpr, sy: tl.constexpr, sx: tl.constexpr, pooled: tl.constexpr,
        PITCH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Gradients where they belong, spread out by the stride and framed by `up` and `left` zeros."""
        image = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        filt, y, x = at % PITCH, at // PITCH // broad - up, at // PITCH % broad - left
        good = (filt < outputs) & (y >= 0) & (x >= 0) & (y % sy == 0) & (x % sx == 0)
        y, x = y // sy, x // sx
        spot = y % 2 * 2 + x % 2
        if pooled:
            y, x = y // 2, x // 2
        good = good & (y < rows) & (x < columns)
        gradient += image // size * net_stride + image % size * image_stride
        error = tl.load(gradient + filt * channel_stride + y * y_stride + x * x_stride, mask=good, other=0.0)
        if pooled:
            code += image * (rows * columns * outputs)
            chosen = tl.load(code + (y * columns + x) * outputs + filt, mask=good, other=4)
            error = tl.where(chosen == spot, error, 0.0)
        tl.store(out + image * (tall * broad * PITCH) + at, error, mask=at < tall * broad * PITCH)
