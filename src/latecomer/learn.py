"""Local training, written once for all methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vjp

from . import blocks, tree
from .task import Batch, Batches
from .tree import Tree

Loss = Callable[[Tree, Batch], Tensor]
Rule = Callable[[Batch], Tensor]
"""Whether a batch may move weights."""


def labelled(batch: Batch) -> Tensor:
    return batch.weight.any() if batch.labelled is None else batch.labelled


def inhabited(batch: Batch) -> Tensor:
    """For losses that learn from examples without labels, too."""
    return batch.real.any()


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: clip the gradient, add weight decay, then momentum, as torch's SGD does.

    All weights lie end to end in one vector, so that a step is few operations. A batch without a labelled example
    changes nothing, not even by momentum or decay, unless the loss has another rule. Where several runs share a map
    (engines/packed.py), any of the numbers may be a tensor.
    """

    lr: float | Tensor
    momentum: float | Tensor = 0.0
    weight_decay: float | Tensor = 0.0
    clip: float | Tensor = 0.0  # largest norm of a gradient; 0: no limit

    def __call__(self, loss: Loss, params: Tree, batches: Batches, moves: Rule = labelled) -> Tree:
        """The weights after one step a batch."""
        (part,) = jointly(lambda parts, batch: loss(parts[0], batch), [Part(self, params)], batches, moves)
        return part.params

    def change(self, loss: Loss, params: Tree, batches: Batches, moves: Rule = labelled) -> Tree:
        """What one step a batch adds to the weights."""
        return tree.sub(self(loss, params, batches, moves), params)

    def move(self, weights: Tensor, direction: Tensor, velocity: Tensor, moving: Tensor) -> tuple[Tensor, Tensor]:
        """One step along a gradient, from weights and velocity to the next; nothing moves unless `moving`."""
        after: tuple[Tensor, Tensor] = blocks.move(
            weights, direction, velocity, moving, self.lr, self.momentum, self.weight_decay, self.clip
        )
        return after


def slope_of(loss: Loss, like: Tree) -> Callable[[Tensor, Batch], Tensor]:
    """The gradient of a loss, for weights that lie end to end in one vector, in the order of `like`."""
    slope: Callable[[Tensor, Batch], Tensor] = grad(lambda weights, batch: loss(tree.unravel(weights, like), batch))
    return slope


def gradient(loss: Loss, params: Tree, batch: Batch) -> Tree:
    """The gradient of a loss at the weights, as a tree."""
    found: Tree = grad(loss)(params, batch)
    return found


def mean_gradient(loss: Loss, params: Tree, batches: Iterable[Batch]) -> Tree:
    """The mean over batches of the gradient of a loss to which padding adds nothing; empty batches do not count."""
    total, counts = tree.map(torch.zeros_like, params), []
    for batch in batches:
        total = tree.add(total, gradient(loss, params, batch))
        counts.append(batch.real.any())
    count = torch.stack(counts).sum().clamp(min=1)
    return tree.map(lambda leaf: leaf / count, total)


@dataclass(frozen=True)
class Part:
    """Some of a model's weights, with an optimiser of their own and the velocity it has reached (None: at rest)."""

    optimiser: SGD
    params: Tree
    velocity: Tensor | None = None


def jointly(
    loss: Callable[[list[Tree], Batch], Tensor], parts: Sequence[Part], batches: Batches, moves: Rule = labelled
) -> list[Part]:
    """Train several parts of a model at once, each by its own optimiser, on the same batches."""
    shapes = [part.params for part in parts]
    weights = [tree.ravel(part.params) for part in parts]
    velocities = [
        torch.zeros_like(weight) if part.velocity is None else part.velocity
        for part, weight in zip(parts, weights, strict=True)
    ]
    slope = grad(
        lambda weights, batch: loss([tree.unravel(w, like) for w, like in zip(weights, shapes, strict=True)], batch)
    )
    for batch in batches:
        directions, moving = slope(weights, batch), moves(batch)
        for k, part in enumerate(parts):
            weights[k], velocities[k] = part.optimiser.move(weights[k], directions[k], velocities[k], moving)
    return [
        Part(part.optimiser, tree.unravel(weight, part.params), velocity)
        for part, weight, velocity in zip(parts, weights, velocities, strict=True)
    ]


def proximal(loss: Loss, anchor: Tree, strength: float | Tensor) -> Loss:
    """The loss, and half the squared distance from the anchor times `strength`."""

    def total(params: Tree, batch: Batch) -> Tensor:
        gaps = tree.map(lambda weight, start: (weight - start).square().sum(), params, anchor)
        return loss(params, batch) + strength / 2 * torch.stack(tree.leaves(gaps)).sum()

    return total


def pullback(function: Callable[..., Any], *inputs: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """A function's value, and the way back: from an error vector at the value to one at every input."""
    value, back = vjp(function, *inputs)  # type: ignore[misc]
    return value, back
