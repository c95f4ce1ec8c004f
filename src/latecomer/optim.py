"""Server optimisers: state in, state out. They change nothing in place, so a round stays a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from . import tree
from .blocks import clip_factor
from .tree import Tree


@dataclass(frozen=True)
class SGD:
    """torch's SGD with momentum; `weight_decay` is added to the gradient after clipping."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0

    def init(self, params: Tree) -> Tree:
        return {"velocity": torch.zeros_like(tree.ravel(params))} if self.momentum else {}

    def step(self, params: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        weights, direction = tree.ravel(params), tree.ravel(gradient, like=params)
        if self.clip:
            direction = direction * clip_factor(direction, self.clip)
        if self.weight_decay:
            direction = direction + self.weight_decay * weights
        if self.momentum:
            direction = self.momentum * state["velocity"] + direction
            state = {"velocity": direction}
        return tree.unravel(weights - self.lr * direction, params), state


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015)."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    clip: float = 0.0

    def init(self, params: Tree) -> Tree:
        zeros = torch.zeros_like(tree.ravel(params))
        return {"first": zeros, "second": zeros.clone(), "count": torch.zeros(())}

    def step(self, params: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        weights, direction = tree.ravel(params), tree.ravel(gradient, like=params)
        if self.clip:
            direction = direction * clip_factor(direction, self.clip)
        slow, slower = self.betas
        first = state["first"].lerp(direction, 1 - slow)
        second = slower * state["second"] + (1 - slower) * direction.square()
        count = state["count"] + 1
        scale = (second / (1 - slower**count)).sqrt() + self.epsilon
        weights = weights - self.lr / (1 - slow**count) * first / scale
        return tree.unravel(weights, params), {"first": first, "second": second, "count": count}


@dataclass(frozen=True)
class Parts:
    """Several optimisers, each for the branch of its name; a branch without a gradient stays as it is."""

    rules: Mapping[str, SGD | Adam]

    def init(self, params: Tree) -> Tree:
        return {name: self.rules[name].init({name: part}) for name, part in params.items()}

    def step(self, params: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        for name in gradient:
            before, slope = {name: params[name]}, {name: gradient[name]}
            after, memory = self.rules[name].step(before, slope, state.get(name, {}))
            params, state = params | after, state | {name: memory}
        return params, state


def parts(kind: str, rates: Mapping[str, float], momentum: float, weight_decay: float, clip: float) -> Parts:
    """One kind of optimiser (adam, which has neither momentum nor decay of these, or sgd) at a rate for each branch."""
    adam = {name: Adam(rate, clip=clip) for name, rate in rates.items()}
    sgd = {name: SGD(rate, momentum, weight_decay, clip) for name, rate in rates.items()}
    return Parts(adam if kind == "adam" else sgd)
