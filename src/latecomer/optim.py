"""Server optimisers: state in, state out. They change nothing in place, so a round stays a pure function.

`learn.SGD` is one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import tree
from .learn import SGD
from .ops import adam
from .schedule import CONSTANT, Schedule
from .tree import Tree


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015)."""

    lr: float | Tensor
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    clip: float = 0.0
    schedule: Schedule = CONSTANT

    def at(self, round: Tensor) -> Adam:  # noqa: A002
        """With the learning rate of a round."""
        return self if self.schedule == CONSTANT else replace(self, lr=self.lr * self.schedule.factor(round))

    def init(self, params: Tree) -> Tree:
        zeros = torch.zeros_like(tree.ravel(params))
        return {"first": zeros, "second": zeros.clone(), "count": torch.zeros(())}

    def step(
        self, params: Tree, gradient: Tree, state: Tree, shrink: Mapping[str, float] | None = None
    ) -> tuple[Tree, Tree]:
        """One step; `shrink` says by what to multiply the weights of every branch before it."""
        moments = state["first"], state["second"], state["count"]
        settings = self.lr, self.betas, self.epsilon, self.clip, shrink
        weights, moments = adam.step(tree.flatten(params), tree.flatten(gradient), moments, *settings)
        return tree.unravel(weights, params), dict(zip(("first", "second", "count"), moments, strict=True))


@dataclass(frozen=True)
class Parts:
    """Several optimisers, each for the branch of its name; a branch without a gradient stays as it is."""

    rules: Mapping[str, SGD | Adam]

    def at(self, round: Tensor) -> Parts:  # noqa: A002
        """With the learning rates of a round."""
        return Parts({name: rule.at(round) for name, rule in self.rules.items()})

    def init(self, params: Tree) -> Tree:
        return {name: self.rules[name].init({name: part}) for name, part in params.items()}

    def step(self, params: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        for name in gradient:
            before, direction = {name: params[name]}, {name: gradient[name]}
            after, memory = self.rules[name].step(before, direction, state.get(name, {}))
            params, state = params | after, state | {name: memory}
        return params, state


def carried(rule: SGD | Adam | Parts, state: Tree, params: Tree, change: Callable[[Tree], Tree]) -> Tree:
    """An optimiser's state after a `change` of rows in its weights: its moments, which have their shape, go along."""
    if isinstance(rule, Parts):
        return {name: carried(rule.rules[name], part, {name: params[name]}, change) for name, part in state.items()}
    return tree.map(
        lambda leaf: tree.ravel(change(tree.unravel(leaf, params))) if leaf.ndim else leaf,  # or it counts steps
        state,
    )


def parts(
    kind: str,
    rates: Mapping[str, float],
    momentum: float,
    weight_decay: float,
    clip: float,
    schedule: Schedule = CONSTANT,
) -> Parts:
    """One kind of optimiser (adam, which has neither momentum nor decay of these, or sgd) at a rate for each branch."""
    if kind == "adam":
        return Parts({name: Adam(rate, clip=clip, schedule=schedule) for name, rate in rates.items()})
    return Parts({name: SGD(rate, momentum, weight_decay, clip, schedule) for name, rate in rates.items()})
