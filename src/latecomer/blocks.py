"""Layers of networks, written plainly. An engine may put a kernel of its own in a block's place.

Blocks are functions of tensors alone, so an engine that watches calls (a `TorchFunctionMode`, as engines/reroute.py
has one) sees them as it sees PyTorch's own functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

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
    """Convolution, ReLU, and max pooling over 2x2; ReLU last gives the same, on a quarter of the numbers."""
    return F.relu(F.max_pool2d(F.conv2d(x, weight, bias, stride, padding), 2))


@replaceable
def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear layer and ReLU."""
    return F.relu(F.linear(x, weight, bias))


@replaceable
def norm(
    x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None, groups: int, epsilon: float, relu: bool
) -> Tensor:
    """GroupNorm; then what a short cut brings is added, and ReLU follows, each if asked for."""
    x = x.contiguous()  # with channels last, it cannot be mapped on a CPU
    out = F.group_norm(x, groups, weight, bias, epsilon)
    out = out if other is None else out + other
    return F.relu(out) if relu else out


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


class Norm(nn.GroupNorm):
    """GroupNorm, the sum with a short cut if there is one, and ReLU if asked for, as one layer."""

    def __init__(self, groups: int, channels: int, relu: bool = False) -> None:
        super().__init__(groups, channels)
        self.relu = relu

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        out: Tensor = norm(x, self.weight, self.bias, other, self.num_groups, self.eps, self.relu)
        return out
