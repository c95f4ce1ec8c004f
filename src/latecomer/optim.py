"""Server optimisers: state in, state out. They change nothing in place, so a round stays a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch._C import _functorch

from . import tree
from .blocks import clip_factor, kernels_for, shortened
from .tree import Tree

MANY, BLOCK = 2**20, 2**16  # weights, from which on a CPU works in blocks, and those of a block


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

    def step(
        self, params: Tree, gradient: Tree, state: Tree, shrink: Mapping[str, float] | None = None
    ) -> tuple[Tree, Tree]:
        """One step; `shrink` says by what to multiply the weights of every branch before it."""
        many = state["first"].device.type == "cpu" and state["first"].numel() >= MANY
        if many and _functorch.peek_interpreter_stack() is None:  # blocks are written in place, which cannot be mapped
            return self._in_blocks(params, gradient, state, shrink)
        slow, slower = self.betas
        count = state["count"] + 1
        pace, reach = self.lr / (1 - slow**count), 1 - slower**count
        if (kernels := kernels_for(state["first"])) is not None:
            flat, slopes = tree.flatten(params), tree.flatten(gradient)
            parts = [leaf.reshape(-1) for leaf in flat.values()], [slopes[path].reshape(-1) for path in flat]
            rests = [shrink[path.partition("/")[0]] if shrink else 1.0 for path in flat]
            factor = shortened(kernels.length(*parts[1]), self.clip) if self.clip else torch.ones_like(pace)
            scalars = factor, pace, reach
            after = kernels.adam(*parts, rests, state["first"], state["second"], scalars, self.betas, self.epsilon)
            weights, first, second = after
        else:
            if shrink:
                params = {name: tree.scale({name: part}, shrink[name])[name] for name, part in params.items()}
            weights, direction = tree.ravel(params), tree.ravel(gradient, like=params)
            if self.clip:
                direction = direction * clip_factor(direction, self.clip)
            first = state["first"].lerp(direction, 1 - slow)
            second = slower * state["second"] + (1 - slower) * direction.square()
            weights = weights - pace * first / ((second / reach).sqrt() + self.epsilon)
        return tree.unravel(weights, params), {"first": first, "second": second, "count": count}

    def _in_blocks(
        self, params: Tree, gradient: Tree, state: Tree, shrink: Mapping[str, float] | None
    ) -> tuple[Tree, Tree]:
        """The same for many weights on a CPU: block by block, so that what is in between never leaves the cache."""
        slopes = tree.flatten(gradient)
        leaves = tree.flatten(params).items()
        rest = [shrink[path.partition("/")[0]] if shrink else 1.0 for path, _ in leaves]
        pairs = [(leaf.reshape(-1), slopes[path].reshape(-1)) for path, leaf in leaves]
        factor = torch.ones(1)
        if self.clip:
            factor = clip_factor(torch.stack([torch.linalg.vector_norm(slope) for _, slope in pairs]), self.clip)
        slow, slower = self.betas
        count = state["count"] + 1
        pace, reach = self.lr / (1 - slow ** float(count)), 1 - slower ** float(count)
        weights, first, second = (torch.empty_like(state["first"]) for _ in range(3))
        begin = 0
        for (leaf, slope), left in zip(pairs, rest, strict=True):
            for weight, direction in zip(leaf.split(BLOCK), slope.split(BLOCK), strict=True):
                span = slice(begin, begin := begin + len(weight))
                direction = direction * factor
                torch.lerp(state["first"][span], direction, 1 - slow, out=first[span])
                torch.mul(state["second"][span], slower, out=second[span]).addcmul_(
                    direction, direction, value=1 - slower
                )
                scale = torch.div(second[span], reach, out=direction).sqrt_().add_(self.epsilon)
                torch.mul(weight, left, out=weights[span]).addcdiv_(first[span], scale, value=-pace)
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
