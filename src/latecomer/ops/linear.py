"""Linear layers, with or without a ReLU.

Where `vmap` maps over float32 inputs on a GPU, and weights or their gradients differ from client to client, kernels
take the place of PyTorch's `F.linear`, up to a size from which on cuBLAS is better. x is [rows, size, inputs], weight
[rows, outputs, inputs], bias [rows, outputs]. On the way back, the layer's own output, the `gate`, says where ReLU let
a gradient through.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .mapping import HAS_TRITON, Rows, for_kernels, varies
from .triton_tools import precision, rounded, whole_rows

if HAS_TRITON:
    import triton
    import triton.language as tl

LARGEST = 2**18  # weights that the kernels are made for


class LinearReLU(nn.Linear):
    """A linear layer and its ReLU, as one layer."""

    def forward(self, x: Tensor) -> Tensor:
        return linear_relu(x, self.weight, self.bias)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer and ReLU."""
    if bias is not None and _takes(x, weight):
        return _apply(x, weight, bias, relu=True)
    return F.relu(F.linear(x, weight, bias))


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """Stands in for `F.linear` where an engine maps on a GPU."""
    if bias is not None and _takes(input, weight):
        return _apply(input, weight, bias, relu=False)
    if bias is not None and varies(weight):
        return input @ weight.t() + bias  # one operation less than PyTorch makes of it under vmap
    return F.linear(input, weight, bias)


def _takes(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels take it."""
    return for_kernels(x) and x.ndim == 2 and varies(weight) and weight.numel() <= LARGEST


def _apply(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    out: Tensor = _Linear.apply(x[None], weight[None], bias[None], relu).squeeze(0)  # type: ignore[no-untyped-call]
    return out


class _Linear(Rows):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        return linear_rows(x, weight, bias, relu)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, relu = inputs
        ctx.save_for_backward(x, weight, output if relu else None)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate = ctx.saved_tensors
        gate = None if gate is None else gate.detach()  # it only says where a gradient passes
        needs_x = ctx.needs_input_grad[0]
        by_x, by_weight, by_bias = _LinearGradients.apply(gradient, gate, x, weight, needs_x)  # type: ignore[no-untyped-call]
        return by_x if needs_x else None, by_weight, by_bias, None


class _LinearGradients(Rows):
    """Gradients of x (or nothing in its place), of the weight and of the bias; their own in plain operations."""

    @staticmethod
    def forward(
        gradient: Tensor, gate: Tensor | None, x: Tensor, weight: Tensor, needs_x: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        return linear_gradient_rows(gradient, gate, x, weight, needs_x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.needs_x = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, by_x: Tensor, by_weight: Tensor, by_bias: Tensor) -> tuple[Tensor | None, ...]:
        gradient, gate, x, weight = ctx.saved_tensors
        passed = gradient if gate is None else gradient * (gate > 0)
        full, at_weight = x @ by_weight.mT + by_bias[:, None], None
        if ctx.needs_x:
            full, at_weight = full + by_x @ weight.mT, passed.mT @ by_x
        return full if gate is None else full * (gate > 0), None, passed @ by_weight, at_weight, None


# kernels


def linear_rows(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    nets, count, inputs = x.shape
    outputs = weight.shape[1]
    weight, bias = whole_rows(weight), whole_rows(bias)
    out = torch.empty(nets, count, outputs, dtype=x.dtype, device=x.device)
    places, wide, step = rounded(count, 32), rounded(outputs, 32), rounded(inputs, 64)
    _forward_kernel[(triton.cdiv(count, places) * triton.cdiv(outputs, wide), nets)](
        x.contiguous(), weight, bias, out, weight.stride(0), bias.stride(0), count, inputs, outputs, relu,
        precision(), places, wide, step,
    )  # fmt: skip
    return out


def linear_gradient_rows(
    gradient: Tensor, gate: Tensor | None, x: Tensor, weight: Tensor, needs_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x (or nothing, if nobody needs it), of the weight and of the bias."""
    nets, count, inputs = x.shape
    outputs = gradient.shape[-1]
    gradient, weight = gradient.contiguous(), whole_rows(weight)
    by_x = x.new_empty(nets, count, inputs) if needs_x else x.new_empty(nets, 0)
    by_weight, by_bias = x.new_empty(nets, outputs, inputs), x.new_empty(nets, outputs)
    places, narrow, step = rounded(count, 32), rounded(inputs, 32), rounded(outputs, 64)
    wide, tall = rounded(inputs, 64), rounded(outputs, 32)
    tiles = triton.cdiv(count, places) * triton.cdiv(inputs, narrow) if needs_x else 0
    _backward_kernel[(tiles + triton.cdiv(inputs, wide) * triton.cdiv(outputs, tall), nets)](
        gradient, gradient if gate is None else gate.contiguous(), x.contiguous(), weight, by_x, by_weight, by_bias,
        weight.stride(0), count, tiles, inputs, outputs, gate is not None, precision(), places, narrow, step, 32,
        wide, tall,
    )  # fmt: skip
    return by_x, by_weight, by_bias


if HAS_TRITON:

    @triton.jit
    def _product(
        a, b, bias, out, gate, net, tile, a_stride, b_stride, bias_stride, count, terms: tl.constexpr,
        outputs: tl.constexpr, transposed: tl.constexpr, biased: tl.constexpr, relu: tl.constexpr, gated: tl.constexpr,
        precision: tl.constexpr, PLACES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
    ):  # fmt: skip
        """out[p, o] = sum over t of a[p, t] b[o, t], or, transposed, of a[p, t] b[t, o]; the gate lies like a."""
        a += net * a_stride
        gate += net * a_stride
        b += net * b_stride
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
            own = k[:, None] * outputs + to[None, :] if transposed else to[None, :] * terms + k[:, None]
            right = tl.load(b + own, mask=(k < terms)[:, None] & (to < outputs)[None, :], other=0.0)
            total = tl.dot(left, right, total, input_precision=precision)
        if biased:
            total += tl.load(bias + net * bias_stride + to, mask=to < outputs, other=0.0)[None, :]
        if relu:
            total = tl.where(total <= 0, 0.0, total)  # so written, NaN stays NaN
        at = net * count * outputs + place[:, None] * outputs + to[None, :]
        tl.store(out + at, total, mask=(place < count)[:, None] & (to < outputs)[None, :])

    @triton.jit
    def _weight_gradient(
        x, gradient, gate, out, out_bias, net, tile, size, inputs: tl.constexpr, outputs: tl.constexpr,
        gated: tl.constexpr, precision: tl.constexpr, SIZE: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    ):  # fmt: skip
        x += net * size * inputs
        gradient += net * size * outputs
        gate += net * size * outputs
        banks: tl.constexpr = (outputs + OUT - 1) // OUT
        i = tile // banks * IN + tl.arange(0, IN)
        o = tile % banks * OUT + tl.arange(0, OUT)
        total = tl.zeros((OUT, IN), tl.float32)
        bias = tl.zeros((OUT,), tl.float32)
        for first in range(0, size, SIZE):
            k = first + tl.arange(0, SIZE)
            at, good = k[None, :] * outputs + o[:, None], (k < size)[None, :] & (o < outputs)[:, None]
            error = tl.load(gradient + at, mask=good, other=0.0)
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
    def _forward_kernel(
        x, weight, bias, out, weight_stride, bias_stride, count, inputs: tl.constexpr, outputs: tl.constexpr,
        relu: tl.constexpr, precision: tl.constexpr, PLACES: tl.constexpr, OUT: tl.constexpr, TERMS: tl.constexpr,
    ):  # fmt: skip
        _product(
            x, weight, bias, out, x, tl.program_id(1).to(tl.int64), tl.program_id(0), count * inputs, weight_stride,
            bias_stride, count, inputs, outputs, False, True, relu, False, precision, PLACES, OUT, TERMS,
        )  # fmt: skip

    @triton.jit
    def _backward_kernel(
        gradient, gate, x, weight, by_x, by_weight, by_bias, weight_stride, count, tiles, inputs: tl.constexpr,
        outputs: tl.constexpr, gated: tl.constexpr, precision: tl.constexpr, PLACES: tl.constexpr,
        IN: tl.constexpr, TERMS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr,
    ):  # fmt: skip
        """Of one launch, the first `tiles` programs make the gradient of x, if it is needed, the others the rest."""
        net, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
        if tile < tiles:
            _product(
                gradient, weight, gradient, by_x, gate, net, tile, count * outputs, weight_stride, 0, count, outputs,
                inputs, True, False, False, gated, precision, PLACES, IN, TERMS,
            )  # fmt: skip
        else:
            _weight_gradient(
                x, gradient, gate, by_weight, by_bias, net, tile - tiles, count, inputs, outputs, gated, precision,
                SIZE, WIDE, TALL,
            )  # fmt: skip
