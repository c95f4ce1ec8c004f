"""Local training, written once for all methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vjp

from . import tree
from .task import Batch, Batches
from .tree import Tree

Loss = Callable[[Tree, Batch], Tensor]


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: clip the gradient, add weight decay, then momentum, as torch's SGD does.

    All weights lie end to end in one vector, so that a step is few operations. A batch without a labelled example
    changes nothing, not even by momentum or decay.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0  # largest norm of a gradient; 0: no limit

    def __call__(self, loss: Loss, params: Tree, batches: Batches) -> Tree:
        """The weights after one step a batch."""
        weights = tree.ravel(params)
        slope = grad(lambda weights, batch: loss(tree.unravel(weights, params), batch))
        velocity = torch.zeros_like(weights)
        for batch in batches:
            direction = slope(weights, batch)
            if self.clip:
                direction = direction * clip_factor(direction, self.clip)
            if self.weight_decay:
                direction = direction + self.weight_decay * weights
            moving = batch.weight.any()
            if self.momentum:
                direction = self.momentum * velocity + direction
                velocity = torch.where(moving, direction, velocity)
            weights = torch.where(moving, weights - self.lr * direction, weights)
        return tree.unravel(weights, params)

    def change(self, loss: Loss, params: Tree, batches: Batches) -> Tree:
        """What one step a batch adds to the weights."""
        return tree.sub(self(loss, params, batches), params)


def proximal(loss: Loss, anchor: Tree, strength: float | Tensor) -> Loss:
    """The loss, and half the squared distance from the anchor times `strength`."""

    def total(params: Tree, batch: Batch) -> Tensor:
        gaps = tree.map(lambda weight, start: (weight - start).square().sum(), params, anchor)
        return loss(params, batch) + strength / 2 * torch.stack(tree.leaves(gaps)).sum()

    return total


def clip_factor(vector: Tensor, limit: float) -> Tensor:
    """What to multiply a gradient with so that its norm does not exceed the limit."""
    factor: Tensor = limit / (torch.linalg.vector_norm(vector) + 1e-6)
    return factor.clamp(max=1.0)


def pullback(function: Callable[..., Any], *inputs: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """A function's value, and the way back: from an error vector at the value to one at every input."""
    value, back = vjp(function, *inputs)  # type: ignore[misc]
    return value, back
