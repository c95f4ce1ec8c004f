"""Local training, written once for all methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vjp

from . import blocks, tree
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

    All weights lie end to end in one vector, so that a step is few operations. A batch without a labelled example
    changes nothing, not even by momentum or decay, unless the loss has another rule. Where several runs share a map
    (sweep/packed.py), any of the numbers may be a tensor.
    """

    lr: float | Tensor
    momentum: float | Tensor = 0.0
    weight_decay: float | Tensor = 0.0
    clip: float | Tensor = 0.0  # largest norm of a gradient; 0: no limit
    schedule: Schedule = CONSTANT

    def at(self, round: Tensor) -> SGD:  # noqa: A002
        """With the learning rate of a round."""
        return self if self.schedule == CONSTANT else replace(self, lr=self.lr * self.schedule.factor(round))

    def __call__(self, loss: Loss, params: Tree, batches: Batches, moves: Rule = labelled) -> Tree:
        """The weights after one step a batch."""
        return tree.unravel(self._after(loss, params, batches, moves), params)

    def change(self, loss: Loss, params: Tree, batches: Batches, moves: Rule = labelled) -> Tree:
        """What one step a batch adds to the weights."""
        return tree.unravel(self._after(loss, params, batches, moves) - tree.ravel(params), params)

    def _after(self, loss: Loss, params: Tree, batches: Batches, moves: Rule) -> Tensor:
        """The weights after one step a batch, end to end."""
        parts = [Part(self, params)]
        weights, _ = _trained(lambda several, batch: loss(several[0], batch), parts, batches, moves)
        return weights[0]

    def at_rest(self, weights: Tensor) -> Tensor:
        """The velocity to begin with; without momentum there is none."""
        return torch.zeros_like(weights if blocks.used(self.momentum) else weights[:0])

    def move(
        self, weights: Tensor, slopes: Sequence[Tensor], velocity: Tensor, moving: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One step along a gradient, whose parts follow each other; nothing moves unless `moving`."""
        rates = self.lr, self.momentum, self.weight_decay, self.clip
        if weights.device.type == "cpu" and _plainly() and not any(isinstance(rate, Tensor) for rate in rates):
            return self._move_apart(weights, slopes, velocity) if moving else (weights, velocity)
        after: tuple[Tensor, Tensor] = blocks.move(weights, velocity, moving, *rates, *slopes)
        return after

    def _move_apart(self, weights: Tensor, slopes: Sequence[Tensor], velocity: Tensor) -> tuple[Tensor, Tensor]:
        """The same for one client on a CPU, part by part, so that a gradient is neither joined nor scaled first."""
        lr, factor, sizes = float(self.lr), 1.0, [len(slope) for slope in slopes]
        if self.clip:
            norms = torch.stack([torch.linalg.vector_norm(slope) for slope in slopes])
            factor = float(blocks.clip_factor(norms, self.clip))
        out, faster = torch.empty_like(weights), torch.empty_like(velocity)
        parts = zip(weights.split(sizes), slopes, out.split(sizes), strict=True)
        if not self.momentum:
            for weight, slope, after in parts:
                torch.add(weight, slope, alpha=-lr * factor, out=after)
                if self.weight_decay:
                    after.add_(weight, alpha=-lr * self.weight_decay)
            return out, velocity
        for (weight, slope, after), old, new in zip(parts, velocity.split(sizes), faster.split(sizes), strict=True):
            torch.mul(old, self.momentum, out=new).add_(slope, alpha=factor)
            if self.weight_decay:
                new.add_(weight, alpha=self.weight_decay)
            torch.add(weight, new, alpha=-lr, out=after)
        return out, faster


def slope_of(loss: Loss, like: Tree) -> Callable[[Tensor, Batch], Tensor]:
    """The gradient of a loss, for weights that lie end to end in one vector, in the order of `like`."""
    if not _plainly():
        mapped: Callable[[Tensor, Batch], Tensor] = grad(lambda w, batch: loss(tree.unravel(w, like), batch))
        return mapped
    slopes = _slopes(lambda parts, batch: loss(parts[0], batch))
    return lambda weights, batch: torch.cat(slopes([tree.unravel(weights, like)], batch)[0])


def _slopes(loss: Callable[[list[Tree], Batch], Tensor]) -> Callable[[list[Tree], Batch], list[list[Tensor]]]:
    """The gradients of a loss of several trees: of each its leaves, as vectors."""
    if not _plainly():
        mapped = grad(loss)
        return lambda trees, batch: [[leaf.reshape(-1) for leaf in tree.leaves(part)] for part in mapped(trees, batch)]

    def slopes(trees: list[Tree], batch: Batch) -> list[list[Tensor]]:
        parts = [tree.map(lambda leaf: leaf.detach().requires_grad_(), part) for part in trees]
        inputs = [tree.leaves(part) for part in parts]
        found = iter(_by_autograd(loss, parts, batch, [leaf for some in inputs for leaf in some]))
        return [[next(found).reshape(-1) for _ in some] for some in inputs]

    return slopes


def _by_autograd(loss: Callable[[Any, Batch], Tensor], params: Any, batch: Batch, inputs: list[Tensor]) -> list[Tensor]:
    """The gradient at the inputs, which are the leaves of the parameters; zero where the loss does not know them."""
    with torch.enable_grad():
        value = loss(params, batch)
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in inputs]
    found = torch.autograd.grad(value, inputs, allow_unused=True)
    return [torch.zeros_like(leaf) if slope is None else slope for slope, leaf in zip(found, inputs, strict=True)]


def _plainly() -> bool:
    """Whether PyTorch's plain autograd will do, which costs less than `torch.func`: nobody maps or differentiates us.

    The loop engine runs its steps without gradients. Where they are on, somebody may want ours to have gradients too.
    """
    return not torch.is_grad_enabled() and not blocks.mapped()


def gradient(loss: Loss, params: Tree, batch: Batch) -> Tree:
    """The gradient of a loss at the weights, as a tree."""
    if not _plainly():
        found: Tree = grad(loss)(params, batch)
        return found
    flat = {path: leaf.detach().requires_grad_() for path, leaf in tree.flatten(params).items()}
    return tree.unflatten(
        dict(zip(flat, _by_autograd(loss, tree.unflatten(flat), batch, list(flat.values())), strict=True))
    )


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
    trained = zip(parts, *_trained(loss, parts, batches, moves), strict=True)
    return [Part(part.optimiser, tree.unravel(weights, part.params), velocity) for part, weights, velocity in trained]


def _trained(
    loss: Callable[[list[Tree], Batch], Tensor], parts: Sequence[Part], batches: Batches, moves: Rule
) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of every part, end to end, and their velocities."""
    weights = [tree.ravel(part.params) for part in parts]
    velocities = [
        part.optimiser.at_rest(weight) if part.velocity is None else part.velocity
        for part, weight in zip(parts, weights, strict=True)
    ]
    slopes = _slopes(loss)
    for batch in batches:
        trees = [tree.unravel(weight, part.params) for weight, part in zip(weights, parts, strict=True)]
        directions, moving = slopes(trees, batch), moves(batch)
        for k, part in enumerate(parts):
            weights[k], velocities[k] = part.optimiser.move(weights[k], directions[k], velocities[k], moving)
    return weights, velocities


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
