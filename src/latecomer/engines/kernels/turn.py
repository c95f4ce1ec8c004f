"""Filters and slopes as the kernels for many channels want them: what a sum runs over lies side by side."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .layout import pitch, rows_apart

SIDE = 64  # of the squares that a matrix is turned by
CHANNELS = 128  # of a filter that one program lays out


@triton.jit(do_not_specialize=["lines"])
def _turn(x, out, x_row, out_row, lines, columns, apart, across, SIDE: tl.constexpr):
    """Matrices of `lines` that lie `apart` become matrices whose lines lie `across`, filled up with zeros."""
    net = tl.program_id(1).to(tl.int64)
    blocks = tl.cdiv(columns, SIDE)
    line = tl.program_id(0) // blocks * SIDE + tl.arange(0, SIDE)
    column = tl.program_id(0) % blocks * SIDE + tl.arange(0, SIDE)
    known = (column < columns)[:, None]
    value = tl.load(
        x + net * x_row + line[None, :] * apart + column[:, None], mask=known & (line < lines)[None, :], other=0.0
    )
    tl.store(
        out + net * out_row + column[:, None].to(tl.int64) * across + line[None, :],
        value, mask=known & (line < across)[None, :],
    )  # fmt: skip


@triton.jit
def _lay_filters(
    weight, out, net_apart, channels, depth, taps: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr
):
    """[filters, channels, taps] as [filters, taps, depth]."""
    net, filt = tl.program_id(2).to(tl.int64), tl.program_id(1)
    channel = (tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS))[:, None]
    tap = tl.arange(0, TAPS)[None, :]
    value = tl.load(
        weight + net * net_apart + (filt * channels + channel) * taps + tap,
        mask=(channel < channels) & (tap < taps), other=0.0,
    )  # fmt: skip
    at = (net * tl.num_programs(1) + filt) * (taps * depth) + tap * depth + channel
    tl.store(out + at, value, mask=(channel < depth) & (tap < taps))


@triton.jit
def _fold_filters(parts, out, splits, channels, depth, taps: tl.constexpr, TAPS: tl.constexpr, CHANNELS: tl.constexpr):
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


def turn(matrices: Tensor, across: int) -> Tensor:
    """[rows, lines, columns] as [rows, columns, across]; what there is no line for is zero."""
    nets, lines, columns = matrices.shape
    matrices = rows_apart(matrices)
    out = matrices.new_empty(nets, columns, across)
    grid = (triton.cdiv(across, SIDE) * triton.cdiv(columns, SIDE), nets)
    _turn[grid](matrices, out, matrices.stride(0), out.stride(0), lines, columns, columns, across, SIDE)
    return out


def lay_filters(weight: Tensor, turned: bool) -> tuple[Tensor, int]:
    """Filters [rows, outputs, high, wide, pitch], or turned, [rows, channels, high, wide, pitch of outputs].

    Also how far apart rows lie: filters that all rows share are laid out once.
    """
    nets, outputs, channels, high, wide = weight.shape
    weight = rows_apart(weight)
    if weight.stride(0) == 0:
        weight = weight[:1]
    taps, depth = high * wide, pitch(outputs if turned else channels)
    if turned:
        out = turn(weight.flatten(2), depth)
    elif taps == 1 and depth == channels and weight.data_ptr() % 16 == 0 and weight.stride(0) % 4 == 0:
        return weight, weight.stride(0) if len(weight) == nets else 0
    else:
        out = weight.new_empty(len(weight), outputs, taps, depth)
        grid = (triton.cdiv(depth, CHANNELS), outputs, len(weight))
        _lay_filters[grid](weight, out, weight.stride(0), channels, depth, taps, triton.next_power_of_2(taps), CHANNELS)
    return out, out.stride(0) if len(weight) == nets else 0


def fold_filters(parts: Tensor, channels: int, shape: tuple[int, int]) -> Tensor:
    """Gradients of filters [rows, outputs, channels, high, wide] from parts [rows, splits, outputs, taps, pitch]."""
    nets, splits, outputs, taps, depth = parts.shape
    if splits == 1 and taps == 1 and depth == channels:
        return parts.view(nets, outputs, channels, *shape)
    out = parts.new_empty(nets, outputs, channels, *shape)
    grid = (triton.cdiv(channels, CHANNELS), outputs, nets)
    _fold_filters[grid](parts, out, splits, channels, depth, taps, triton.next_power_of_2(taps), CHANNELS)
    return out
