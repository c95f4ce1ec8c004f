"""What surrounds the layers of many small networks in a step of local training, one network a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import pitch, rows_apart


@triton.jit(do_not_specialize=["rows_apart", "size"])
def _take(
    x, rows, scale, shift, out, rows_apart, size, channels: tl.constexpr, plane: tl.constexpr,
    PITCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    example = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channel, good = at % PITCH, at < plane * PITCH
    real = good & (channel < channels)
    row = tl.load(rows + example // size * rows_apart + example % size)
    place = row * (plane * channels) + channel * plane + at // PITCH
    pixel = tl.load(x + place, mask=real, other=0).to(tl.float32)
    pixel = pixel * tl.load(scale + channel, mask=real, other=0.0) + tl.load(shift + channel, mask=real, other=0.0)
    tl.store(out + example * (plane * PITCH) + at, pixel, mask=good)


@triton.jit
def _cross_entropy(
    logits, y, weight, above, out, y_apart, weight_apart, size: tl.constexpr, classes: tl.constexpr,
    slopes: tl.constexpr, SIZE: tl.constexpr, CLASSES: tl.constexpr,
):  # fmt: skip
    net = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, SIZE), tl.arange(0, CLASSES)
    at = net * size * classes + row[:, None] * classes + column[None, :]
    good = (row < size)[:, None] & (column < classes)[None, :]
    score = tl.load(logits + at, mask=good, other=float("-inf"))
    label = tl.load(y + net * y_apart + row, mask=row < size, other=0)
    share = tl.load(weight + net * weight_apart + row, mask=row < size, other=0.0)
    share = share / tl.maximum(tl.sum(share, 0), 1.0)
    mine = column[None, :] == tl.maximum(label, 0)[:, None]
    highest = tl.max(tl.where(good, score, float("-inf")), 1)
    highest = tl.where(row < size, highest, 0.0)
    raised = tl.exp(score - highest[:, None])
    total = tl.sum(raised, 1)
    if slopes:
        error = raised / total[:, None] - tl.where(mine, 1.0, 0.0)
        tl.store(out + at, error * share[:, None] * tl.load(above + net), mask=good)
    else:
        own = tl.sum(tl.where(mine & good, score, 0.0), 1)
        each = tl.where(row < size, tl.log(total) + highest - own, 0.0)
        tl.store(out + net, tl.sum(each * share, 0))


def take(x: Tensor, rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Images of bytes [examples, channels, height, width], at these rows, as numbers scaled and shifted by channel."""
    _, channels, height, width = x.shape
    apart, block = pitch(channels), 1024
    out = torch.empty(*rows.shape, height, width, apart, dtype=scale.dtype, device=x.device)
    flat = rows_apart(rows.reshape(-1, rows.shape[-1]))
    _take[(rows.numel(), triton.cdiv(height * width * apart, block))](
        x, flat, scale, shift, out, flat.stride(0), flat.shape[1], channels, height * width, apart, block
    )
    return out[..., :channels].movedim(-1, -3)


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean over examples; logits [rows, size, classes]."""
    return _entropy(logits, y, weight, weight, logits.new_empty(len(logits)), False)


def cross_entropy_slope(logits: Tensor, y: Tensor, weight: Tensor, above: Tensor) -> Tensor:
    """Its gradient, times the slope above [rows]."""
    return _entropy(logits, y, weight, above.contiguous(), torch.empty_like(logits.contiguous()), True)


def _entropy(logits: Tensor, y: Tensor, weight: Tensor, above: Tensor, out: Tensor, slopes: bool) -> Tensor:
    nets, size, classes = logits.shape
    blocks = triton.next_power_of_2(size), triton.next_power_of_2(classes)
    y, weight = rows_apart(y), rows_apart(weight)
    _cross_entropy[(nets,)](
        logits.contiguous(), y, weight, above, out, y.stride(0), weight.stride(0), size, classes, slopes, *blocks
    )
    return out
