"""Linear layers by kernels: how `vmap` and gradients reach them.

What only a gradient of a gradient needs is written in plain operations, so it can be differentiated as often as one
likes.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from . import rows
from .rows import Rows


def dense(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    out: Tensor = _Dense.apply(x[None], weight[None], bias[None], relu).squeeze(0)  # type: ignore[no-untyped-call]
    return out


class _Dense(Rows):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
        out: Tensor = rows.kernels().dense(x, weight, bias, relu)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, relu = inputs
        ctx.save_for_backward(x, weight, output if relu else None)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate = ctx.saved_tensors
        gate = None if gate is None else gate.detach()  # it only says where a slope passes
        needs_x = ctx.needs_input_grad[0]
        by_x, by_weight, by_bias = _DenseBack.apply(slope, gate, x, weight, needs_x)  # type: ignore[no-untyped-call]
        return by_x if needs_x else None, by_weight, by_bias, None


class _DenseBack(Rows):
    """Gradients of x (or nothing in its place), of the weight and of the bias."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        by_x, by_weight, by_bias = rows.kernels().dense_back(*inputs)
        return by_x, by_weight, by_bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.needs_x = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, by_x: Tensor, by_weight: Tensor, by_bias: Tensor) -> tuple[Tensor | None, ...]:
        slope, gate, x, weight = ctx.saved_tensors
        passed = slope if gate is None else slope * (gate > 0)
        full, at_weight = x @ by_weight.mT + by_bias[:, None], None
        if ctx.needs_x:
            full, at_weight = full + by_x @ weight.mT, passed.mT @ by_x
        return full if gate is None else full * (gate > 0), None, passed @ by_weight, at_weight, None
