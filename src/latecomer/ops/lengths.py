"""The norm of a gradient, which may come in parts, and what clipping by it comes to."""

from __future__ import annotations

import torch
from torch import Tensor

from .mapping import HAS_TRITON, Number
from .parts import Joined

BLOCK = 2048  # numbers that one program squares and sums up


def length(*parts: Tensor) -> Tensor:
    """The norm of a vector that comes in parts. It is one number, but no scalar: those cost more under `vmap`."""
    vector = parts[0] if len(parts) == 1 else torch.stack([torch.linalg.vector_norm(part) for part in parts])
    whole: Tensor = torch.linalg.vector_norm(vector, keepdim=True)
    return whole


def clip_factor(length: Tensor, limit: Number) -> Tensor:
    """What to multiply a gradient of this length with so that it does not exceed the limit, if that is above 0."""
    factor = ((length + 1e-6).reciprocal() * limit).clamp(max=1.0)
    return torch.where(limit > 0, factor, 1.0) if isinstance(limit, Tensor) else factor


if HAS_TRITON:
    import triton
    import triton.language as tl

    from .parts import load_joined

    @triton.jit
    def _squares_kernel(parts, strides, out, starts, BLOCK: tl.constexpr):
        row = tl.program_id(1).to(tl.int64)
        value = load_joined(parts, strides, row, tl.program_id(0) * BLOCK, starts, BLOCK)
        tl.store(out + row * tl.num_programs(0) + tl.program_id(0), tl.sum(value * value, 0))


def sums_of_squares(vectors: Joined) -> Tensor:
    """The squares of every row, summed up in blocks: [rows, blocks]."""
    first = vectors.parts[0]
    out = first.new_empty(len(first), triton.cdiv(vectors.size, BLOCK))
    _squares_kernel[(out.shape[1], len(first))](vectors.parts, vectors.strides, out, vectors.starts, BLOCK)
    return out
