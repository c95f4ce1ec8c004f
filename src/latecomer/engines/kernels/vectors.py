"""Long vectors, which often come in parts: steps of SGD, one network a row, steps of Adam, sums."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import rows_apart

MOST_PARTS = 24  # of a gradient that a step reads from where they are; more are laid end to end first


@triton.jit
def _joined(parts, aparts, net, first, starts, BLOCK: tl.constexpr):
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
def _join(parts, aparts, out, starts, total: tl.constexpr, BLOCK: tl.constexpr):
    net = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK
    at = first + tl.arange(0, BLOCK)
    tl.store(out + net * total + at, _joined(parts, aparts, net, first, starts, BLOCK), mask=at < total)


@triton.jit
def _squares(parts, aparts, out, starts, BLOCK: tl.constexpr):
    net = tl.program_id(1).to(tl.int64)
    value = _joined(parts, aparts, net, tl.program_id(0) * BLOCK, starts, BLOCK)
    tl.store(out + net * tl.num_programs(0) + tl.program_id(0), tl.sum(value * value, 0))


@triton.jit
def _move(
    parts, aparts, weights, velocity, moving, squares, out, out_velocity, lr, momentum, decay, clip, weights_apart,
    starts, count: tl.constexpr, blocks: tl.constexpr, clips: tl.constexpr, runs: tl.constexpr,
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
    weights, slopes, rests, first, second, factor, pace, reach, out, out_first, out_second, starts,
    slow: tl.constexpr, slower: tl.constexpr, epsilon: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weights and gradient come in parts; `rests` says what to multiply the weights of each by, before the step."""
    begin = tl.program_id(0).to(tl.int64) * BLOCK
    at = begin + tl.arange(0, BLOCK)
    weight, step = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(len(weights)):
        if (begin < starts[k + 1]) & (begin + BLOCK > starts[k]):
            here = (at >= starts[k]) & (at < starts[k + 1])
            weight += tl.load(weights[k] + at - starts[k], mask=here, other=0.0) * rests[k]
            step += tl.load(slopes[k] + at - starts[k], mask=here, other=0.0)
    good = at < starts[len(weights)]
    step *= tl.load(factor)
    mean = tl.load(first + at, mask=good, other=0.0)
    mean += (1 - slow) * (step - mean)
    square = slower * tl.load(second + at, mask=good, other=0.0) + (1 - slower) * step * step
    weight -= tl.load(pace) * mean / (tl.sqrt(square / tl.load(reach)) + epsilon)
    tl.store(out + at, weight, mask=good)
    tl.store(out_first + at, mean, mask=good)
    tl.store(out_second + at, square, mask=good)


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
    parts, aparts, starts = _ends(_few(slopes))
    squares = weights.new_empty(nets, blocks)
    if clip:
        _squares[(blocks, nets)](parts, aparts, squares, _fixed(starts), block)
    out, after = weights.new_empty(nets, count), torch.empty_like(velocity if momentum else velocity[:, :0])
    _move[(blocks, nets)](
        parts, aparts, weights, velocity, moving.contiguous(), squares, out, after, lr, momentum, decay, clip,
        weights.stride(0), _fixed(starts), count, blocks, clip > 0, momentum > 0, block, triton.next_power_of_2(blocks),
    )  # fmt: skip
    return out, after


def join(*parts: Tensor) -> Tensor:
    """Rows of several matrices end to end, as `cat` does, which is slow where sizes differ much."""
    apart, aparts, starts = _ends(parts)
    out = parts[0].new_empty(len(parts[0]), starts[-1])
    block = 1024
    _join[(triton.cdiv(starts[-1], block), len(out))](apart, aparts, out, _fixed(starts), starts[-1], block)
    return out


def _few(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """Not more parts than a kernel reads from where they are."""
    return [join(*parts)] if len(parts) > MOST_PARTS else parts


def _ends(parts: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[int, ...], tuple[int, ...]]:
    """Matrices whose rows are to be laid end to end, how far apart the rows of each lie, and where each begins."""
    apart = tuple(rows_apart(part) for part in parts)
    starts = tuple(accumulate((part.shape[1] for part in parts), initial=0))
    return apart, tuple(part.stride(0) for part in apart), starts


def _fixed(numbers: Sequence[int]) -> tuple[tl.constexpr, ...]:
    """Numbers that a kernel is compiled for. One constant that is a tuple would do, too, but not for `ahead.py`."""
    return tuple(tl.constexpr(number) for number in numbers)


def total(weight: Tensor, rows: Tensor) -> Tensor:
    """The sum of rows, each times its weight; rows that weigh nothing are not looked at."""
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    count, columns = rows.shape
    out, block = rows.new_empty(columns), 256
    _total[(triton.cdiv(columns, block),)](weight.contiguous(), rows, out, count, columns, rows.stride(0), 8, block)
    return out


def length(*parts: Tensor) -> Tensor:
    """The length of a vector that comes in parts, as a vector of one."""
    rows, aparts, starts = _ends(_few([part[None] for part in parts]))
    block = 2048
    squares = parts[0].new_empty(1, triton.cdiv(starts[-1], block))
    _squares[(squares.shape[1], 1)](rows, aparts, squares, _fixed(starts), block)
    return squares.sum(1).sqrt()


def adam(
    weights: Sequence[Tensor],
    slopes: Sequence[Tensor],
    rests: Sequence[float],
    first: Tensor,
    second: Tensor,
    scalars: tuple[Tensor, Tensor, Tensor],
    betas: tuple[float, float],
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """A step of Adam over one long vector, which comes in parts, as does its gradient; weights are first multiplied by
    what is to rest of each part. The scalars are what to clip by, the pace and the reach (see optim.py).
    """
    weights, slopes = ([part.contiguous() for part in parts] for parts in (weights, slopes))
    if len(weights) > MOST_PARTS:
        scaled = [part * rest for part, rest in zip(weights, rests, strict=True)]
        weights, slopes = ([torch.cat(parts)] for parts in (scaled, slopes))
        rests = [1.0]
    starts = tuple(accumulate((len(part) for part in weights), initial=0))
    out, out_first, out_second = (torch.empty_like(first) for _ in range(3))
    block = 1024
    _adam[(triton.cdiv(starts[-1], block),)](
        tuple(weights), tuple(slopes), tuple(rests), first, second, *scalars, out, out_first, out_second,
        _fixed(starts), *betas, epsilon, block,
    )  # fmt: skip
    return out, out_first, out_second
