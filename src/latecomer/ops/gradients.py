"""Gradients, by `torch.func` where somebody maps or differentiates them in turn, else by PyTorch's plain autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .mapping import untransformed


def gradient_of(function: Callable[[list[Tensor]], Tensor], at: list[Tensor]) -> list[Tensor]:
    """The gradient of a number that is a function of several tensors; zero where it does not depend on one."""
    if not untransformed():
        mapped: list[Tensor] = torch.func.grad(function)(at)
        return mapped
    inputs = [tensor.detach().requires_grad_() for tensor in at]  # plain autograd costs less
    with torch.enable_grad():
        value = function(inputs)
    if not value.requires_grad:
        return [torch.zeros_like(tensor) for tensor in at]
    found = torch.autograd.grad(value, inputs, allow_unused=True)
    return [torch.zeros_like(x) if by_x is None else by_x for x, by_x in zip(at, found, strict=True)]
