"""What surrounds the layers of many small networks in a step of local training, one network a row."""

from __future__ import annotations

from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import pitch, rows_apart

MOST_PARTS = 24  # of a gradient that a step reads from where they are; more are laid end to end first


@triton.jit
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


@triton.jit
def _joined(parts, aparts, net, first, starts: tl.constexpr, BLOCK: tl.constexpr):
    """A row of several matrices that are laid end to end: BLOCK numbers from `first` on."""
    at = first + tl.arange(0, BLOCK)
    value = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(len(parts)):
        if (first < starts[k + 1]) & (first + BLOCK > starts[k]):
            here = (at >= starts[k]) & (at < starts[k + 1])
            found = tl.load(parts[k] + net * aparts[k] + at - starts[k], mask=here, other=0.0)
            value = tl.where(here, found, value)
    return value


@triton.jit
def _join(parts, aparts, out, starts: tl.constexpr, total: tl.constexpr, BLOCK: tl.constexpr):
    net = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK
    at = first + tl.arange(0, BLOCK)
    tl.store(out + net * total + at, _joined(parts, aparts, net, first, starts, BLOCK), mask=at < total)


@triton.jit
def _squares(parts, aparts, out, starts: tl.constexpr, BLOCK: tl.constexpr):
    net = tl.program_id(1).to(tl.int64)
    value = _joined(parts, aparts, net, tl.program_id(0) * BLOCK, starts, BLOCK)
    tl.store(out + net * tl.num_programs(0) + tl.program_id(0), tl.sum(value * value, 0))


@triton.jit
def _move(
    parts, aparts, weights, velocity, moving, squares, out, out_velocity, lr, momentum, decay, clip, weights_apart,
    starts: tl.constexpr, count: tl.constexpr, blocks: tl.constexpr, clips: tl.constexpr, runs: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    net = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK
    at = first + tl.arange(0, BLOCK)
    good = at < count
    weight = tl.load(weights + net * weights_apart + at, mask=good, other=0.0)
    step = _joined(parts, aparts, net, first, starts, BLOCK)
    at += net * count
    if clips:
        block = tl.arange(0, BLOCKS)
        norm = tl.sqrt(tl.sum(tl.load(squares + net * blocks + block, mask=block < blocks, other=0.0), 0))
        factor = clip / (norm + 1e-6)
        step *= tl.where(factor > 1.0, 1.0, factor)  # so written, NaN stays NaN
    step += decay * weight
    go = tl.load(moving + net) != 0
    if runs:
        speed = tl.load(velocity + at, mask=good, other=0.0)
        step += momentum * speed
        tl.store(out_velocity + at, tl.where(go, step, speed), mask=good)
    tl.store(out + at, tl.where(go, weight - lr * step, weight), mask=good)


@triton.jit
def _total(weight, rows, out, count, columns, apart, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        share = tl.load(weight + row, mask=row < count, other=0.0)
        good = (share != 0)[:, None] & (at < columns)[None, :]
        found = tl.load(rows + row.to(tl.int64)[:, None] * apart + at[None, :], mask=good, other=0.0)
        total += tl.sum(share[:, None] * found, 0)
    tl.store(out + at, total, mask=at < columns)


@triton.jit
def _adam(
    weights, direction, first, second, factor, pace, reach, out, out_first, out_second, count,
    slow: tl.constexpr, slower: tl.constexpr, epsilon: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    good = at < count
    step = tl.load(direction + at, mask=good, other=0.0) * tl.load(factor)
    mean = tl.load(first + at, mask=good, other=0.0)
    mean += (1 - slow) * (step - mean)
    square = slower * tl.load(second + at, mask=good, other=0.0) + (1 - slower) * step * step
    weight = tl.load(weights + at, mask=good, other=0.0)
    weight -= tl.load(pace) * mean / (tl.sqrt(square / tl.load(reach)) + epsilon)
    tl.store(out + at, weight, mask=good)
    tl.store(out_first + at, mean, mask=good)
    tl.store(out_second + at, square, mask=good)


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


def move(
    weights: Tensor,
    velocity: Tensor,
    moving: Tensor,
    lr: float,
    momentum: float,
    decay: float,
    clip: float,
    *slopes: Tensor,
) -> tuple[Tensor, Tensor]:
    """A step of SGD of weights [rows, count]: clipped, with decay and momentum; rows that are not moving stay.

    The gradient comes in parts. Without momentum there is no velocity: then none comes back.
    """
    weights, velocity = rows_apart(weights), velocity.contiguous()
    nets, count = weights.shape
    block = 2048
    blocks = triton.cdiv(count, block)
    parts, aparts, starts = _ends((join(*slopes),) if len(slopes) > MOST_PARTS else slopes)
    squares = weights.new_empty(nets, blocks)
    if clip:
        _squares[(blocks, nets)](parts, aparts, squares, starts, block)
    out, after = weights.new_empty(nets, count), torch.empty_like(velocity if momentum else velocity[:, :0])
    _move[(blocks, nets)](
        parts, aparts, weights, velocity, moving.contiguous(), squares, out, after, lr, momentum, decay, clip,
        weights.stride(0), starts, count, blocks, clip > 0, momentum > 0, block, triton.next_power_of_2(blocks),
    )  # fmt: skip
    return out, after


def join(*parts: Tensor) -> Tensor:
    """Rows of several matrices end to end, as `cat` does, which is slow where sizes differ much."""
    apart, aparts, starts = _ends(parts)
    out = parts[0].new_empty(len(parts[0]), starts[-1])
    block = 1024
    _join[(triton.cdiv(starts[-1], block), len(out))](apart, aparts, out, starts, starts[-1], block)
    return out


def _ends(parts: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[int, ...], tuple[int, ...]]:
    """Matrices whose rows are to be laid end to end, how far apart the rows of each lie, and where each begins."""
    apart = tuple(rows_apart(part) for part in parts)
    starts = tuple(accumulate((part.shape[1] for part in parts), initial=0))
    return apart, tuple(part.stride(0) for part in apart), starts


def total(weight: Tensor, rows: Tensor) -> Tensor:
    """The sum of rows, each times its weight; rows that weigh nothing are not looked at."""
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    count, columns = rows.shape
    out, block = rows.new_empty(columns), 256
    _total[(triton.cdiv(columns, block),)](weight.contiguous(), rows, out, count, columns, rows.stride(0), 8, block)
    return out


def adam(
    weights: Tensor,
    direction: Tensor,
    first: Tensor,
    second: Tensor,
    scalars: tuple[Tensor, Tensor, Tensor],
    betas: tuple[float, float],
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of Adam over one long vector; the scalars are what to clip by, the pace and the reach (see optim.py)."""
    out, out_first, out_second = (torch.empty_like(weights) for _ in range(3))
    block = 1024
    _adam[(triton.cdiv(len(weights), block),)](
        weights, direction, first, second, *scalars, out, out_first, out_second, len(weights), *betas, epsilon, block
    )
    return out, out_first, out_second
