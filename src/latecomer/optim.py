"""Server optimisers: state in, state out. They change nothing in place, so a round stays a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from . import tree
from .blocks import clip_factor, kernels_for, mapped, shortened
from .schedule import CONSTANT, Schedule
from .tree import Tree

SMALL = 2**15  # numbers of a leaf that is updated together with its neighbours, on a CPU


@dataclass(frozen=True)
class SGD:
    """torch's SGD with momentum; `weight_decay` is added to the gradient after clipping."""

    lr: float | Tensor
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0
    schedule: Schedule = CONSTANT

    def at(self, round: Tensor) -> SGD:  # noqa: A002
        """With the learning rate of a round."""
        return self if self.schedule == CONSTANT else replace(self, lr=self.lr * self.schedule.factor(round))

    def init(self, params: Tree) -> Tree:
        return {"velocity": torch.zeros_like(tree.ravel(params))} if self.momentum else {}

    def step(self, params: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        if _on_cpu(params):
            return self._by_torch(params, gradient, state)
        weights, direction = tree.ravel(params), tree.ravel(gradient, like=params)
        if self.clip:
            direction = direction * clip_factor(direction, self.clip)
        if self.weight_decay:
            direction = direction + self.weight_decay * weights
        if self.momentum:
            direction = self.momentum * state["velocity"] + direction
            state = {"velocity": direction}
        return tree.unravel(weights - self.lr * direction, params), state

    def _by_torch(self, params: Tree, gradient: Tree, state: Tree) -> tuple[Tree, Tree]:
        weights, after = tree.ravel(params), {name: velocity.clone() for name, velocity in state.items()}
        blocks = _blocks(params)
        parts = _parts(weights, params, blocks)
        sgd(
            parts,
            _slopes(gradient, params, blocks, self.clip),
            [*_parts(after["velocity"], params, blocks)] if self.momentum else [None] * len(parts),
            fused=True,
            lr=self.lr,  # type: ignore[arg-type]  # a tensor will do
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        return tree.unravel(weights, params), after


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
        if _on_cpu(params):
            return self._by_torch(params, gradient, state, shrink)
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

    def _by_torch(
        self, params: Tree, gradient: Tree, state: Tree, shrink: Mapping[str, float] | None
    ) -> tuple[Tree, Tree]:
        weights, first, second = tree.ravel(params), state["first"].clone(), state["second"].clone()
        blocks = _blocks(params)
        parts = _parts(weights, params, blocks)
        for paths, part in zip(blocks, parts, strict=True):
            if shrink:
                part.mul_(shrink[_branch(paths[0])])
        counts = [state["count"].clone() for _ in parts]
        adam(
            parts,
            _slopes(gradient, params, blocks, self.clip),
            _parts(first, params, blocks),
            _parts(second, params, blocks),
            [],
            counts,
            fused=True,
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            eps=self.epsilon,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )
        return tree.unravel(weights, params), {"first": first, "second": second, "count": counts[0]}


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
            before, slope = {name: params[name]}, {name: gradient[name]}
            after, memory = self.rules[name].step(before, slope, state.get(name, {}))
            params, state = params | after, state | {name: memory}
        return params, state


def parts(
    kind: str,
    rates: Mapping[str, float],
    momentum: float,
    weight_decay: float,
    clip: float,
    schedule: Schedule = CONSTANT,
) -> Parts:
    """One kind of optimiser (adam, which has neither momentum nor decay of these, or sgd) at a rate for each branch."""
    adam = {name: Adam(rate, clip=clip, schedule=schedule) for name, rate in rates.items()}
    sgd = {name: SGD(rate, momentum, weight_decay, clip, schedule) for name, rate in rates.items()}
    return Parts(adam if kind == "adam" else sgd)


def _on_cpu(params: Tree) -> bool:
    """Whether PyTorch's own fused kernels will do. They work in place, on copies; what is mapped cannot be written."""
    kinds = {(leaf.device.type, leaf.dtype) for leaf in tree.leaves(params)}
    return len(kinds) == 1 and kinds.pop()[0] == "cpu" and not mapped()


def _blocks(params: Tree) -> list[list[str]]:
    """Paths of leaves that are updated together: neighbours of one branch, if they are small; large ones by themselves.

    What an operation on a small leaf costs is the call.
    """
    large = {path: leaf.numel() >= SMALL for path, leaf in tree.flatten(params).items()}
    kinds = groupby(large, lambda path: (_branch(path), large[path] and path))
    return [list(paths) for _, paths in kinds]


def _branch(path: str) -> str:
    return path.partition("/")[0]


def _parts(vector: Tensor, like: Tree, blocks: list[list[str]]) -> list[Tensor]:
    """A vector's parts, one a block of leaves, as views."""
    flat = tree.flatten(like)
    return list(vector.split([sum(flat[path].numel() for path in block) for block in blocks]))


def _slopes(gradient: Tree, like: Tree, blocks: list[list[str]], clip: float) -> list[Tensor]:
    """A gradient's blocks as vectors, laid out as `like`; large ones are copied only if they have to be."""
    flat, weights = tree.flatten(gradient), tree.flatten(like)
    leaves = [[flat[path].to(weights[path].dtype).reshape(-1) for path in block] for block in blocks]
    slopes = [torch.cat(block) if len(block) > 1 else block[0].contiguous() for block in leaves]
    if not clip:
        return slopes
    factor = clip_factor(torch.stack([torch.linalg.vector_norm(slope) for slope in slopes]), clip)
    return slopes if bool(factor == 1) else [slope * factor for slope in slopes]
