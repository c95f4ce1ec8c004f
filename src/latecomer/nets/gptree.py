"""A tree of binary Gaussian process classifiers over the classes of one client (GP-Tree). It has no weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..task import one_hot
from ..tree import Tree
from .classtree import Level, grow
from .gp import Kernel, Noise, Posterior, gibbs, positive

UNLIKELY = 1e-12  # what is left to a class that a client does not have; and no probability in a loss is smaller


@dataclass(frozen=True)
class Labelled:
    """Embedded examples and their labels."""

    z: Tensor  # [n, size]
    y: Tensor  # [n]
    known: Tensor  # [n] bool: real and labelled

    def take(self, rows: Tensor, known: Tensor) -> Labelled:
        return Labelled(self.z[rows], self.y[rows], known[rows])

    def apart(self, share: float, classes: int) -> tuple[Labelled, Labelled]:
        """Every class in two: this share of its examples, rounded down, is the second part. Both are padded."""
        hot = one_hot(self.y, classes) * self.known[:, None]
        earlier = ((hot.cumsum(0) - hot) * hot).sum(1)  # examples of the same class before this one
        allowed = (share * hot.sum(0) + 1e-6).floor()  # what is a whole number stays one, whatever rounding says
        held = self.known & (earlier < hot @ allowed)
        most = max(1, int(share * len(self.y) + 1e-6))
        rest = min(len(self.y), len(self.y) - most + classes)
        kept = self.known & ~held
        first, second = (torch.argsort(~which, stable=True) for which in (kept, held))  # those in the part come first
        return self.take(first[:rest], kept), self.take(second[:most], held)


@dataclass(frozen=True)
class GPTree:
    """The settings of the classifier. `draws` and `noise` are given with every use: training and prediction differ."""

    kernel: Kernel
    classes: int
    steps: int  # of Gibbs sampling
    of_log: bool  # how probabilities are averaged over a latent value, see `positive`

    def fit(self, mine: Labelled, draws: int, noise: Noise) -> Tree:
        """All that it takes to predict: the examples, and of every level how it parts classes, and the posterior."""
        fitted = enumerate(self._fitted(mine, self.grow(mine), draws, noise))
        levels = {str(number): vars(level) | vars(posterior) for number, (level, posterior) in fitted}
        return {"examples": dict(vars(mine)), "levels": levels}

    def log_probability(self, fitted: Tree, new: Tensor) -> Tensor:
        """Of every class, for new embeddings: [new, classes]. A path down the tree multiplies its decisions."""
        mine, total = Labelled(**fitted["examples"]), new.new_zeros(new.shape[0], self.classes, dtype=torch.double)
        for number, parts in fitted["levels"].items():
            level = Level(parts["node"], parts["right"], parts["parts"])
            posterior = Posterior(parts["factor"], parts["white"])
            left = self._left(*self._latent(posterior, level, int(number), mine, new))[:, level.node]
            side = torch.where(level.right, 1 - left, left).clamp(min=UNLIKELY).log()
            total = total + torch.where(level.parts, side, 0.0)
        present = (one_hot(mine.y, self.classes) * mine.known[:, None]).sum(0) > 0
        return torch.where(present, total, torch.full_like(total, UNLIKELY).log())

    def predictive_loss(self, mine: Labelled, held_out: float, draws: int, noise: Noise) -> Tensor:
        """Minus the log likelihood of held-out labels given the others: the mean at each node, summed over nodes."""
        given, new = mine.apart(held_out, self.classes)
        total = mine.z.new_zeros((), dtype=torch.double)
        for number, (level, posterior) in enumerate(self._fitted(given, self.grow(mine), draws, noise)):
            own = one_hot(level.node[new.y], 2**number).double()
            at_own_node = [(part * own).sum(-1) for part in self._latent(posterior, level, number, given, new.z)]
            left = self._left(at_own_node[0], at_own_node[1])
            side = torch.where(level.right[new.y], 1 - left, left).clamp(min=UNLIKELY)
            total = total - (_share_of_node(level, new) * side.log()).sum()
        return total

    def marginal_loss(self, mine: Labelled, draws: int, noise: Noise) -> Tensor:
        """Minus the log marginal likelihood of all labels: per example at each node, summed over nodes."""
        total = mine.z.new_zeros((), dtype=torch.double)
        for level, posterior in self._fitted(mine, self.grow(mine), draws, noise):
            total = total + (_share_of_node(level, mine) * posterior.unlikelihood()).sum()
        return total

    def grow(self, mine: Labelled) -> list[Level]:
        """The tree, by the mean embedding of every class."""
        hot = (one_hot(mine.y, self.classes) * mine.known[:, None]).double()
        count = hot.sum(0)
        return grow(hot.mT @ mine.z.double() / count.clamp(min=1)[:, None], count > 0)

    def _fitted(
        self, mine: Labelled, levels: list[Level], draws: int, noise: Noise
    ) -> Iterator[tuple[Level, Posterior]]:
        for number, level in enumerate(levels):
            active = mine.known & level.parts[mine.y]
            covariance = self.kernel.within(mine.z, level.node[mine.y], active)
            kappa = torch.where(active, torch.where(level.right[mine.y], -0.5, 0.5), 0.0).double()
            omega = gibbs(covariance, kappa, draws, self.steps, partial(_at, noise, number))
            yield level, Posterior.of(covariance, kappa, omega)

    def _latent(
        self, posterior: Posterior, level: Level, number: int, mine: Labelled, new: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance at every node of the level of this number: 1, 2, 4 and so on."""
        active = mine.known & level.parts[mine.y]
        member = one_hot(level.node[mine.y], 2**number) * active[:, None]
        return posterior.latent(self.kernel(new, mine.z), self.kernel.scale + self.kernel.jitter, member)

    def _left(self, mean: Tensor, variance: Tensor) -> Tensor:
        """The probability of going left, averaged over draws."""
        return positive(mean, variance, self.of_log).mean(0)


def _at(noise: Noise, level: int, size: int, purpose: str) -> Tensor:
    return noise(size, f"level {level} {purpose}")


def _share_of_node(level: Level, examples: Labelled) -> Tensor:
    """One over the number of examples at an example's node; zero where there is nothing to decide."""
    active = examples.known & level.parts[examples.y]
    node = level.node[examples.y]
    together = (node[:, None] == node) & active[:, None] & active
    return active / together.sum(1).clamp(min=1)
