"""Local training, written once for all methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from . import tree
from .ops import gradients, sgd
from .ops.mapping import Number
from .schedule import CONSTANT, Schedule
from .task import Batch, Batches
from .tree import Tree

Loss = Callable[[Tree, Batch], Tensor]
Rule = Callable[[Batch], Tensor]
"""Whether a batch may move weights."""


def labelled(batch: Batch) -> Tensor:
    """Whether a batch has an example with a label, as a tensor: a step without any must not move weights."""
    return batch.weight.any() if batch.labelled is None else batch.labelled


def inhabited(batch: Batch) -> Tensor:
    """For losses that learn from examples without labels, too."""
    return batch.real.any()


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent: clip the gradient, add weight decay, then momentum, as torch's SGD does.

    A client calls it, for a step a batch. A batch without a labelled example changes nothing, not even by momentum or
    decay, unless the loss has another rule. A server takes one `step` a round and keeps the state, as with any
    optimiser (optim.py). Where several runs share a map (sweep/packed.py), any of the numbers may be a tensor.
    """

    lr: float | Tensor
    momentum: float | Tensor = 0.0
    weight_decay: float | Tensor = 0.0
    clip: float | Tensor = 0.0  # largest norm of a gradient; 0: no limit
    schedule: Schedule = CONSTANT

    def at(self, round: Tensor) -> SGD:  # noqa: A002
        """With the learning rate of a round."""
        return self if self.schedule == CONSTANT else replace(self, lr=self.lr * self.schedule.factor(round))

    @property
    def rates(self) -> tuple[Number, Number, Number, Number]:
        """What `ops.sgd` takes, in its order."""
        return self.lr, self.momentum, self.weight_decay, self.clip

    def __call__(self, loss: Loss, params: Tree, batches: Batches, moves: Rule = labelled) -> Tree:
        """The weights after one step a batch."""
        (weights,), _ = _trained(_of_first(loss), [Part(self, params)], batches, moves)
        return tree.unravel(weights, params)

    def change(self, loss: Loss, params: Tree, batches: Batches, moves: Rule = labelled) -> Tree:
        """What one step a batch adds to the weights."""
        (weights,), _ = _trained(_of_first(loss), [Part(self, params)], batches, moves)
        return tree.unravel(weights - tree.ravel(params), params)

    def init(self, params: Tree) -> Tree:
        """What a server keeps from step to step: the velocity, at rest."""
        return {"velocity": torch.zeros_like(tree.ravel(params))} if self.momentum else {}

    def step(self, params: Tree, gradient: Tree, state: Tree, moving: Tensor | None = None) -> tuple[Tree, Tree]:
        """One step along a gradient, and the state after it; if `moving` is given, only where that is true."""
        leaves, directions = tree.flatten(params), tree.flatten(gradient)
        weights, velocity = sgd.step_of_leaves(leaves, directions, state.get("velocity"), moving, *self.rates)
        return tree.unravel(weights, params), {"velocity": velocity} if self.momentum else state


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
    trained = zip(parts, *_trained(loss, parts, batches, moves), strict=True)
    return [Part(part.optimiser, tree.unravel(weights, part.params), velocity) for part, weights, velocity in trained]


def _trained(
    loss: Callable[[list[Tree], Batch], Tensor], parts: Sequence[Part], batches: Batches, moves: Rule
) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of every part, all end to end so that a step is few operations, and their velocities."""
    weights = [tree.ravel(part.params) for part in parts]
    velocities = [
        sgd.at_rest(weight, part.optimiser.momentum) if part.velocity is None else part.velocity
        for part, weight in zip(parts, weights, strict=True)
    ]
    for batch in batches:
        trees = [tree.unravel(weight, part.params) for weight, part in zip(weights, parts, strict=True)]
        found, moving = _gradients(loss, trees, batch), moves(batch)
        for k, part in enumerate(parts):
            directions = [leaf.reshape(-1) for leaf in found[k].values()]
            weights[k], velocities[k] = sgd.step(weights[k], directions, velocities[k], moving, *part.optimiser.rates)
    return weights, velocities


def _of_first(loss: Loss) -> Callable[[list[Tree], Batch], Tensor]:
    return lambda trees, batch: loss(trees[0], batch)


def _gradients(
    loss: Callable[[list[Tree], Batch], Tensor], trees: Sequence[Tree], batch: Batch
) -> list[dict[str, Tensor]]:
    """The gradients of a loss of several trees: of each its leaves, by their paths."""
    paths = [tree.flatten(part) for part in trees]

    def value(leaves: list[Tensor]) -> Tensor:
        rest = iter(leaves)
        return loss([tree.unflatten({path: next(rest) for path in some}) for some in paths], batch)

    found = iter(gradients.gradient_of(value, [leaf for some in paths for leaf in some.values()]))
    return [{path: next(found) for path in some} for some in paths]


def gradient(loss: Loss, params: Tree, batch: Batch) -> Tree:
    """The gradient of a loss at the weights, as a tree."""
    return tree.unflatten(_gradients(_of_first(loss), [params], batch)[0])


def flat_gradient(loss: Loss, like: Tree) -> Callable[[Tensor, Batch], Tensor]:
    """The gradient of a loss, for weights that lie end to end in one vector, in the order of `like`."""
    return lambda weights, batch: gradients.gradient_of(lambda at: loss(tree.unravel(at[0], like), batch), [weights])[0]


def mean_gradient(loss: Loss, params: Tree, batches: Iterable[Batch]) -> Tree:
    """The mean over batches of the gradient of a loss to which padding adds nothing; empty batches do not count."""
    total, counts = tree.map(torch.zeros_like, params), []
    for batch in batches:
        total = tree.add(total, gradient(loss, params, batch))
        counts.append(batch.real.any())
    count = torch.stack(counts).sum().clamp(min=1)
    return tree.map(lambda leaf: leaf / count, total)


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
