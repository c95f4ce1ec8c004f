"""Vectors that come in parts, as a gradient does: kernels read them from where they are, as if they lay end to end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .mapping import HAS_TRITON
from .triton_tools import whole_rows

MOST_PARTS = 24  # that a kernel reads from where they are; more are laid end to end first

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


class Joined(NamedTuple):
    """Matrices whose rows a kernel reads as if they were laid end to end."""

    parts: tuple[Tensor, ...]  # [rows, size of the part]
    strides: tuple[int, ...]  # from row to row of each
    starts: tuple[Any, ...]  # where each begins, and the end; constants that a kernel is compiled for
    size: int  # of a row of all


def end_to_end(parts: Sequence[Tensor]) -> Joined:
    """Matrices with as many rows each; too many of them are laid end to end for real."""
    rows = tuple(map(whole_rows, parts if len(parts) <= MOST_PARTS else [torch.cat(list(parts), 1)]))
    starts = tuple(accumulate((part.shape[1] for part in rows), initial=0))
    return Joined(rows, tuple(part.stride(0) for part in rows), constants(starts), starts[-1])


def constants(numbers: Sequence[int]) -> tuple[Any, ...]:
    """Numbers that a kernel is compiled for. A tuple of constants, as Triton takes them."""
    return tuple(tl.constexpr(number) for number in numbers)
