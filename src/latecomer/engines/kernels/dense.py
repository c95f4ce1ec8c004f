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
    a, b, bias, out, gate, a_row, b_row, bias_row, count, terms: tl.constexpr, outputs: tl.constexpr,
    turned: tl.constexpr, biased: tl.constexpr, relu: tl.constexpr, gated: tl.constexpr,
    precision: tl.constexpr, PLACES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """out[p, o] = sum over t of a[p, t] b[o, t], or, turned, of a[p, t] b[t, o]; the gate lies like a."""
    net = tl.program_id(1).to(tl.int64)
    a += net * a_row
    gate += net * a_row
    b += net * b_row
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    to = tl.program_id(2) * OUT + tl.arange(0, OUT)
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
    x, slope, gate, out, out_bias, size, inputs: tl.constexpr, outputs: tl.constexpr,
    gated: tl.constexpr, precision: tl.constexpr, SIZE: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    net = tl.program_id(1).to(tl.int64)
    x += net * size * inputs
    slope += net * size * outputs
    gate += net * size * outputs
    i = tl.program_id(0) * IN + tl.arange(0, IN)
    o = tl.program_id(2) * OUT + tl.arange(0, OUT)
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
    if tl.program_id(0) == 0:
        tl.store(out_bias + net * outputs + o, bias, mask=o < outputs)


def dense(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    return _multiply(x, rows_apart(weight), rows_apart(bias), None, False, relu)


def dense_by_x(slope: Tensor, gate: Tensor | None, weight: Tensor) -> Tensor:
    return _multiply(slope, rows_apart(weight), None, gate, True, False)


def dense_by_weight(x: Tensor, slope: Tensor, gate: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of the weight and of the bias."""
    nets, size, inputs = x.shape
    outputs = slope.shape[-1]
    out, bias = x.new_empty(nets, outputs, inputs), x.new_empty(nets, outputs)
    tall, wide = rounded(outputs, 32), rounded(inputs, 64)
    slope = slope.contiguous()
    _by_weight[(triton.cdiv(inputs, wide), nets, triton.cdiv(outputs, tall))](
        x.contiguous(), slope, slope if gate is None else gate.contiguous(), out, bias, size, inputs, outputs,
        gate is not None, precision(), 32, wide, tall,
    )  # fmt: skip
    return out, bias


def _multiply(a: Tensor, b: Tensor, bias: Tensor | None, gate: Tensor | None, turned: bool, relu: bool) -> Tensor:
    nets, count, terms = a.shape
    outputs = b.shape[2 if turned else 1]
    a = a.contiguous()
    out = torch.empty(nets, count, outputs, dtype=a.dtype, device=a.device)
    places, wide, step = rounded(count, 32), rounded(outputs, 32), rounded(terms, 64)
    _product[(triton.cdiv(count, places), nets, triton.cdiv(outputs, wide))](
        a, b, a if bias is None else bias, out, a if gate is None else gate.contiguous(),
        count * terms, b.stride(0), 0 if bias is None else bias.stride(0), count, terms, outputs,
        turned, bias is not None, relu, gate is not None, precision(), places, wide, step,
    )  # fmt: skip
    return out
