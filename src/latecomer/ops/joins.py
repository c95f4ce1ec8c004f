"""Vectors split into parts, and parts laid end to end: between a model's leaves and the vector that optimisers work on.

It is the way back from a split that has a kernel: `cat`, which lays gradients end to end there, is slow where the
sizes of parts differ much.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .mapping import HAS_TRITON, Rows, differentiated, on_gpu
from .strides import whole_rows

MOST_PARTS = 24  # that a kernel reads from where they are; more are laid end to end first


def split(vector: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Parts of a vector, as views. On the way back their gradients are laid end to end."""
    if differentiated(vector) and vector.dtype == torch.float32 and on_gpu(vector):
        parts = _Split.apply(vector[None], tuple(sizes))  # type: ignore[no-untyped-call]
        return tuple(part.squeeze(0) for part in parts)
    views: tuple[Tensor, ...] = vector.split(list(sizes))
    return views


class _Split(Rows):
    @staticmethod
    def forward(vector: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = vector.split(list(sizes), 1)
        return parts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        joined: Tensor = _Join.apply(*gradients)  # type: ignore[no-untyped-call]
        return joined, None


class _Join(Rows):
    @staticmethod
    def forward(*parts: Tensor) -> Tensor:
        return join(*parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.sizes = [part.shape[1] for part in inputs]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = gradient.split(ctx.sizes, 1)
        return parts


if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def load_joined(parts, strides, row, first, starts, BLOCK: tl.constexpr):
        """BLOCK numbers, from `first` on, of a row of several matrices that are laid end to end."""
        at = first + tl.arange(0, BLOCK)
        value = tl.zeros((BLOCK,), tl.float32)
        for k in tl.static_range(len(parts)):
            if (first < starts[k + 1]) & (first + BLOCK > starts[k]):
                here = (at >= starts[k]) & (at < starts[k + 1])
                found = tl.load(parts[k] + row * strides[k] + at - starts[k], mask=here, other=0.0)
                value = tl.where(here, found, value)
        return value

    @triton.jit
    def _join_kernel(parts, strides, out, starts, total: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(1).to(tl.int64)
        first = tl.program_id(0) * BLOCK
        at = first + tl.arange(0, BLOCK)
        tl.store(out + row * total + at, load_joined(parts, strides, row, first, starts, BLOCK), mask=at < total)


class Parts(NamedTuple):
    """Matrices whose rows a kernel reads as if they were laid end to end."""

    parts: tuple[Tensor, ...]  # [rows, size of the part]
    strides: tuple[int, ...]  # from row to row of each
    starts: tuple[Any, ...]  # where each begins, and the end; constants that a kernel is compiled for
    size: int  # of a row of all


def end_to_end(parts: Sequence[Tensor]) -> Parts:
    rows = tuple(whole_rows(part) for part in parts)
    starts = tuple(accumulate((part.shape[1] for part in parts), initial=0))
    return Parts(rows, tuple(part.stride(0) for part in rows), constants(starts), starts[-1])


def constants(numbers: Sequence[int]) -> tuple[Any, ...]:
    """Numbers that a kernel is compiled for. A tuple of constants, as Triton takes them."""
    return tuple(tl.constexpr(number) for number in numbers)


def few(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """Matrices to be laid end to end, not more than a kernel reads from where they are."""
    return [join(*parts)] if len(parts) > MOST_PARTS else parts


def join(*parts: Tensor) -> Tensor:
    """Rows of several matrices end to end."""
    ends = end_to_end(parts)
    out = parts[0].new_empty(len(parts[0]), ends.size)
    block = 1024
    _join_kernel[(triton.cdiv(ends.size, block), len(out))](
        ends.parts, ends.strides, out, ends.starts, ends.size, block
    )
    return out
