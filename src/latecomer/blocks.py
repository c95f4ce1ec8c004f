"""What local training spends its time on, written plainly. An engine may put a kernel of its own in a block's place.

Blocks are functions of tensors alone, so an engine that watches calls (a `TorchFunctionMode`, as engines/convolve.py
has one) sees them as it sees PyTorch's own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

Pair = tuple[int, int]


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
def stage(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """Convolution, ReLU, and max pooling over 2x2."""
    return F.max_pool2d(F.relu(F.conv2d(x, weight, bias, stride, padding)), 2)


@replaceable
def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer and ReLU."""
    return F.relu(F.linear(x, weight, bias))


@replaceable
def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean over examples; labels below zero are unknown and must weigh nothing."""
    scores = torch.log_softmax(logits, -1)
    each = -scores.gather(-1, y.clamp(min=0)[..., None]).squeeze(-1)
    return (each * weight).sum() / weight.sum().clamp(min=1)


@replaceable
def move(
    weights: Tensor,
    direction: Tensor,
    velocity: Tensor,
    moving: Tensor,
    lr: float,
    momentum: float,
    decay: float,
    clip: float,
) -> tuple[Tensor, Tensor]:
    """One step along a gradient, from weights and velocity to the next; nothing moves unless `moving`."""
    if clip:
        direction = direction * clip_factor(direction, clip)
    if decay:
        direction = torch.add(direction, weights, alpha=decay)  # one pass over the weights, not two
    if momentum:
        direction = torch.add(direction, velocity, alpha=momentum)
        velocity = torch.where(moving, direction, velocity)
    return torch.where(moving, torch.sub(weights, direction, alpha=lr), weights), velocity


@replaceable
def take(x: Tensor, rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Images of bytes, [examples, channels, height, width], at these rows; scaled and shifted, by channel."""
    return x[rows].to(scale.dtype) * scale + shift


def clip_factor(vector: Tensor, limit: float) -> Tensor:
    """What to multiply a gradient with so that its norm does not exceed the limit."""
    norm: Tensor = torch.linalg.vector_norm(
        vector, keepdim=True
    )  # one number, but not a scalar: those cost more under vmap
    return ((norm + 1e-6).reciprocal() * limit).clamp(max=1.0)


class Stage(nn.Conv2d):
    """A convolution, its ReLU, and max pooling over 2x2, as one layer."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = stage(x, self.weight, self.bias, self.stride, self.padding)
        return out


class Dense(nn.Linear):
    """A linear layer and its ReLU, as one layer."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = dense(x, self.weight, self.bias)
        return out
