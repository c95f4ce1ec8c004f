"""Linear layers of many small networks, one network a row, with or without a ReLU.

x is [rows, size, inputs], weight [rows, outputs, inputs], bias [rows, outputs]. On the way back, the layer's own
output, the `gate`, says where ReLU let a slope through.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import rows_apart
from .tile import precision, rounded


@triton.jit
def _product(
    a, b, bias, out, gate, net, tile, a_row, b_row, bias_row, count, terms: tl.constexpr, outputs: tl.constexpr,
    turned: tl.constexpr, biased: tl.constexpr, relu: tl.constexpr, gated: tl.constexpr,
    precision: tl.constexpr, PLACES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """out[p, o] = sum over t of a[p, t] b[o, t], or, turned, of a[p, t] b[t, o]; the gate lies like a."""
    a += net * a_row
    gate += net * a_row
    b += net * b_row
    banks: tl.constexpr = (outputs + OUT - 1) // OUT
    place = tile // banks * PLACES + tl.arange(0, PLACES)
    to = tile % banks * OUT + tl.arange(0, OUT)
    total = tl.zeros((PLACES, OUT), tl.float32)
    for first in range(0, terms, TERMS):
        k = first + tl.arange(0, TERMS)
        at = place[:, None] * terms + k[None, :]
        good = (place < count)[:, None] & (k < terms)[None, :]
        left = tl.load(a + at, mask=good, other=0.0)
        if gated:
            left = tl.where(tl.load(gate + at, mask=good, other=0.0) > 0, left, 0.0)
        own = k[:, None] * outputs + to[None, :] if turned else to[None, :] * terms + k[:, None]
        right = tl.load(b + own, mask=(k < terms)[:, None] & (to < outputs)[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision=precision)
    if biased:
        total += tl.load(bias + net * bias_row + to, mask=to < outputs, other=0.0)[None, :]
    if relu:
        total = tl.where(total <= 0, 0.0, total)  # so written, NaN stays NaN
    at = net * count * outputs + place[:, None] * outputs + to[None, :]
    tl.store(out + at, total, mask=(place < count)[:, None] & (to < outputs)[None, :])


@triton.jit
def _by_weight(
    x, slope, gate, out, out_bias, net, tile, size, inputs: tl.constexpr, outputs: tl.constexpr,
    gated: tl.constexpr, precision: tl.constexpr, SIZE: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    x += net * size * inputs
    slope += net * size * outputs
    gate += net * size * outputs
    banks: tl.constexpr = (outputs + OUT - 1) // OUT
    i = tile // banks * IN + tl.arange(0, IN)
    o = tile % banks * OUT + tl.arange(0, OUT)
    total = tl.zeros((OUT, IN), tl.float32)
    bias = tl.zeros((OUT,), tl.float32)
    for first in range(0, size, SIZE):
        k = first + tl.arange(0, SIZE)
        at, good = k[None, :] * outputs + o[:, None], (k < size)[None, :] & (o < outputs)[:, None]
        error = tl.load(slope + at, mask=good, other=0.0)
        if gated:
            error = tl.where(tl.load(gate + at, mask=good, other=0.0) > 0, error, 0.0)
        seen = tl.load(
            x + k[:, None] * inputs + i[None, :], mask=(k < size)[:, None] & (i < inputs)[None, :], other=0.0
        )
        total = tl.dot(error, seen, total, input_precision=precision)
        bias += tl.sum(error, 1)
    at = net * outputs * inputs + o[:, None] * inputs + i[None, :]
    tl.store(out + at, total, mask=(o < outputs)[:, None] & (i < inputs)[None, :])
    if tile // banks == 0:
        tl.store(out_bias + net * outputs + o, bias, mask=o < outputs)


@triton.jit
def _forward(
    x, weight, bias, out, weight_row, bias_row, count, inputs: tl.constexpr, outputs: tl.constexpr,
    relu: tl.constexpr, precision: tl.constexpr, PLACES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    _product(
        x, weight, bias, out, x, tl.program_id(1).to(tl.int64), tl.program_id(0), count * inputs, weight_row, bias_row,
        count, inputs, outputs, False, True, relu, False, precision, PLACES, OUT, TERMS,
    )  # fmt: skip


@triton.jit
def _back(
    slope, gate, x, weight, by_x, by_weight, by_bias, weight_row, count, tiles, inputs: tl.constexpr,
    outputs: tl.constexpr, gated: tl.constexpr, precision: tl.constexpr, PLACES: tl.constexpr,
    IN: tl.constexpr, TERMS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr,
):  # fmt: skip
    """Of one launch, the first `tiles` programs make the gradient of x, if anybody needs it, the others the rest."""
    net, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    if tile < tiles:
        _product(
            slope, weight, slope, by_x, gate, net, tile, count * outputs, weight_row, 0, count, outputs, inputs,
            True, False, False, gated, precision, PLACES, IN, TERMS,
        )  # fmt: skip
    else:
        _by_weight(
            x, slope, gate, by_weight, by_bias, net, tile - tiles, count, inputs, outputs, gated, precision,
            SIZE, WIDE, TALL,
        )  # fmt: skip


def dense(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    nets, count, inputs = x.shape
    outputs = weight.shape[1]
    weight, bias = rows_apart(weight), rows_apart(bias)
    out = torch.empty(nets, count, outputs, dtype=x.dtype, device=x.device)
    places, wide, step = rounded(count, 32), rounded(outputs, 32), rounded(inputs, 64)
    _forward[(triton.cdiv(count, places) * triton.cdiv(outputs, wide), nets)](
        x.contiguous(), weight, bias, out, weight.stride(0), bias.stride(0), count, inputs, outputs, relu,
        precision(), places, wide, step,
    )  # fmt: skip
    return out


def dense_back(
    slope: Tensor, gate: Tensor | None, x: Tensor, weight: Tensor, needs_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x (or nothing, if nobody needs it), of the weight and of the bias."""
    nets, count, inputs = x.shape
    outputs = slope.shape[-1]
    slope, weight = slope.contiguous(), rows_apart(weight)
    by_x = x.new_empty(nets, count, inputs) if needs_x else x.new_empty(nets, 0)
    by_weight, by_bias = x.new_empty(nets, outputs, inputs), x.new_empty(nets, outputs)
    places, narrow, step = rounded(count, 32), rounded(inputs, 32), rounded(outputs, 64)
    wide, tall = rounded(inputs, 64), rounded(outputs, 32)
    tiles = triton.cdiv(count, places) * triton.cdiv(inputs, narrow) if needs_x else 0
    _back[(tiles + triton.cdiv(inputs, wide) * triton.cdiv(outputs, tall), nets)](
        slope, slope if gate is None else gate.contiguous(), x.contiguous(), weight, by_x, by_weight, by_bias,
        weight.stride(0), count, tiles, inputs, outputs, gate is not None, precision(), places, narrow, step, 32,
        wide, tall,
    )  # fmt: skip
    return by_x, by_weight, by_bias
