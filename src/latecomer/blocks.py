"""What local training spends its time on, written plainly. An engine may put a kernel of its own in a block's place.

Blocks are functions of tensors alone, so an engine that watches calls (a `TorchFunctionMode`, as engines/reroute.py
has one) sees them as it sees PyTorch's own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.overrides import handle_torch_function, has_torch_function

VECTOR = 64 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 32
"""Bytes that this CPU computes with at once. PyTorch's `log_softmax` of rows shorter than that goes number by number;
many rows take a fifth of the time if they are columns."""
Number = float | Tensor  # where several runs share a map (sweep/packed.py), a setting may be one number a row


def replaceable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets an engine see the calls of a function. The function as it is written stays at `__wrapped__`."""

    @wraps(function)
    def call(*args: Any) -> Any:
        tensors = [value for value in args if isinstance(value, Tensor)]
        if has_torch_function(tensors):
            return handle_torch_function(call, tensors, *args)
        return function(*args)

    return call


@replaceable
def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean over examples; labels below zero are unknown and must weigh nothing."""
    short = logits.ndim > 1 and logits.shape[-1] * logits.element_size() < VECTOR
    narrow = short and not logits.is_cuda and mapped()
    scores = torch.log_softmax(logits.mT, -2).mT if narrow else torch.log_softmax(logits, -1)
    each = -scores.gather(-1, y.clamp(min=0)[..., None]).squeeze(-1)
    return (each * weight).sum() / weight.sum().clamp(min=1)


@replaceable
def move(
    weights: Tensor,
    velocity: Tensor,
    moving: Tensor,
    lr: Number,
    momentum: Number,
    decay: Number,
    clip: Number,
    *slopes: Tensor,
) -> tuple[Tensor, Tensor]:
    """One step along a gradient, which comes in parts; from weights and velocity to the next, if it is `moving`."""
    moves = moving[None].to(weights.dtype)
    direction = slopes[0] if len(slopes) == 1 else torch.cat(slopes)
    factor = clip_factor(direction, clip) if used(clip) else None
    if used(momentum):
        # factors of one number each let be what does not move; choosing by `where` is one more pass over the weights
        kept = velocity * (1 - moves * (1 - _like(momentum, moves)))
        velocity = torch.addcmul(kept, direction, moves if factor is None else moves * factor)
        if used(decay):
            velocity = torch.addcmul(velocity, weights, moves * _like(decay, moves))
        direction = velocity
    else:
        direction = direction if factor is None else direction * factor
        direction = plus(direction, weights, decay) if used(decay) else direction
    if isinstance(lr, Tensor):
        return torch.addcmul(weights, direction, moves * -_like(lr, moves)), velocity
    return torch.addcmul(weights, direction, moves, value=-lr), velocity


@replaceable
def split(vector: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Parts of a vector, as views. On the way back their gradients are laid end to end."""
    parts: tuple[Tensor, ...] = vector.split(list(sizes))
    return parts


@replaceable
def take(x: Tensor, rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Images of bytes, [examples, channels, height, width], at these rows; scaled and shifted, by channel."""
    return x[rows].to(scale.dtype) * scale + shift


def kernels_for(array: Tensor) -> Any:
    """The kernels, for what is not a block, if an array is of float32, on a GPU, and nobody maps over it."""
    if not array.is_cuda or array.dtype != torch.float32 or mapped():
        return None
    from .engines.fused import kernels  # here: engines know blocks

    return kernels()


def mapped() -> bool:
    """Whether somebody maps or differentiates what runs now."""
    return _functorch.peek_interpreter_stack() is not None


def used(number: Number) -> bool:
    """Whether a setting whose 0 means "not at all" is in use. One number a row is, even if some of them are 0."""
    return isinstance(number, Tensor) or bool(number)


def plus(a: Tensor, b: Tensor, factor: Number) -> Tensor:
    """a + factor b, in one pass over the weights and not two."""
    if isinstance(factor, Tensor):
        return torch.addcmul(a, b, _like(factor, a)[None])
    return torch.add(a, b, alpha=factor)


def _like(number: Any, array: Tensor) -> Any:
    """A setting, in the precision of an array."""
    return number.to(array.dtype) if isinstance(number, Tensor) else number


def clip_factor(vector: Tensor, limit: Number) -> Tensor:
    """What to multiply a gradient with so that its norm does not exceed the limit, if that is above 0."""
    norm: Tensor = torch.linalg.vector_norm(
        vector, keepdim=True
    )  # one number, but not a scalar: those cost more under vmap
    return shortened(norm, limit)


def shortened(norm: Tensor, limit: Number) -> Tensor:
    """The same, by the norm."""
    factor = ((norm + 1e-6).reciprocal() * limit).clamp(max=1.0)
    return torch.where(limit > 0, factor, 1.0) if isinstance(limit, Tensor) else factor
