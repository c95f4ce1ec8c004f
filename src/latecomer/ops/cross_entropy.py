"""Cross-entropy, the loss of classifiers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .mapping import HAS_TRITON, Rows, for_kernels, padded_size, transformed
from .triton_tools import whole_rows

LARGEST = 2**13  # numbers that the kernel holds at once
VECTOR = 64 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 32
"""Bytes that this CPU computes with at once. PyTorch's `log_softmax` of rows shorter than that goes number by number;
many rows take a fifth of the time if they are columns."""


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean over examples; labels below zero are unknown and must weigh nothing."""
    if for_kernels(logits) and logits.ndim == 2 and padded_size(logits.shape) <= LARGEST:
        loss: Tensor = _CrossEntropy.apply(logits[None], y[None], weight[None]).squeeze(0)  # type: ignore[no-untyped-call]
        return loss
    short = logits.ndim > 1 and logits.shape[-1] * logits.element_size() < VECTOR
    as_columns = short and not logits.is_cuda and transformed()
    scores = torch.log_softmax(logits.mT, -2).mT if as_columns else torch.log_softmax(logits, -1)
    each = -scores.gather(-1, y.clamp(min=0)[..., None]).squeeze(-1)
    return (each * weight).sum() / weight.sum().clamp(min=1)


class _CrossEntropy(Rows):
    @staticmethod
    def forward(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return losses(logits, y, weight)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None]:
        out: Tensor = _Gradient.apply(*ctx.saved_tensors, above)  # type: ignore[no-untyped-call]
        return out, None, None


class _Gradient(Rows):
    """Its own gradient is written in plain operations, so it can be differentiated as often as one likes."""

    @staticmethod
    def forward(logits: Tensor, y: Tensor, weight: Tensor, above: Tensor) -> Tensor:
        return gradients(logits, y, weight, above)

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, ...]:
        logits, y, weight, above = ctx.saved_tensors
        chance = logits.softmax(-1)
        share = (weight / weight.sum(-1, keepdim=True).clamp(min=1))[..., None]
        wrong = chance - (y.clamp(min=0)[..., None] == torch.arange(logits.shape[-1], device=y.device)).to(chance.dtype)
        pushed = error * share * above[:, None, None]
        by_logits = chance * (pushed - (chance * pushed).sum(-1, keepdim=True))
        return by_logits, None, None, (error * share * wrong).sum((1, 2))


if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def _cross_entropy_kernel(
        logits, y, weight, above, out, y_stride, weight_stride, size: tl.constexpr, classes: tl.constexpr,
        differentiate: tl.constexpr, SIZE: tl.constexpr, CLASSES: tl.constexpr,
    ):  # fmt: skip
        net = tl.program_id(0).to(tl.int64)
        row, column = tl.arange(0, SIZE), tl.arange(0, CLASSES)
        at = net * size * classes + row[:, None] * classes + column[None, :]
        good = (row < size)[:, None] & (column < classes)[None, :]
        score = tl.load(logits + at, mask=good, other=float("-inf"))
        label = tl.load(y + net * y_stride + row, mask=row < size, other=0)
        share = tl.load(weight + net * weight_stride + row, mask=row < size, other=0.0)
        share = share / tl.maximum(tl.sum(share, 0), 1.0)
        mine = column[None, :] == tl.maximum(label, 0)[:, None]
        highest = tl.max(tl.where(good, score, float("-inf")), 1)
        highest = tl.where(row < size, highest, 0.0)
        raised = tl.exp(score - highest[:, None])
        total = tl.sum(raised, 1)
        if differentiate:
            error = raised / total[:, None] - tl.where(mine, 1.0, 0.0)
            tl.store(out + at, error * share[:, None] * tl.load(above + net), mask=good)
        else:
            own = tl.sum(tl.where(mine & good, score, 0.0), 1)
            each = tl.where(row < size, tl.log(total) + highest - own, 0.0)
            tl.store(out + net, tl.sum(each * share, 0))


def losses(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The loss of every row of logits [rows, size, classes]."""
    return _launch(logits, y, weight, weight, logits.new_empty(len(logits)), False)


def gradients(logits: Tensor, y: Tensor, weight: Tensor, above: Tensor) -> Tensor:
    """Its gradient, times that of what comes after it [rows]."""
    return _launch(logits, y, weight, above.contiguous(), torch.empty_like(logits.contiguous()), True)


def _launch(logits: Tensor, y: Tensor, weight: Tensor, above: Tensor, out: Tensor, differentiate: bool) -> Tensor:
    nets, size, classes = logits.shape
    blocks = triton.next_power_of_2(size), triton.next_power_of_2(classes)
    y, weight = whole_rows(y), whole_rows(weight)
    _cross_entropy_kernel[(nets,)](
        logits.contiguous(), y, weight, above, out, y.stride(0), weight.stride(0), size, classes, differentiate, *blocks
    )
    return out
