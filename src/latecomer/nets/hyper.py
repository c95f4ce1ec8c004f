"""Hypernetworks: from a client's descriptor to the weights of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import tree
from ..clients import Clients, Replies, Step
from ..learn import pullback
from ..tree import Tree
from .net import Net


class Hypernetwork(Net):
    """ReLU layers and one linear head that emits all weights of the target, end to end.

    The papers describe one head per target tensor. PyTorch draws a linear layer's initial weights by its inputs alone,
    so a single wide head is the same network, evaluated in one product.
    """

    def __init__(self, descriptor: int, target: Mapping[str, torch.Size], hidden: int = 100, depth: int = 3) -> None:
        self.target = dict(target)
        self.sizes = [shape.numel() for shape in target.values()]

        def build() -> nn.Module:
            layers: list[nn.Module] = [nn.Linear(descriptor, hidden)]
            for _ in range(depth):
                layers += [nn.ReLU(), nn.Linear(hidden, hidden)]
            return nn.Sequential(*layers, nn.Linear(hidden, sum(self.sizes)))

        super().__init__(build)

    def generate(self, params: Tree, descriptors: Tensor) -> Tree:
        """One model for every row of descriptors."""
        parts = self(params, descriptors).split(self.sizes, -1)
        return {name: part.unflatten(-1, shape) for (name, shape), part in zip(self.target.items(), parts, strict=True)}


def fitted(
    clients: Clients,
    fit: Step,
    generate: Callable[..., Tree],
    *inputs: Any,
    shared: Tree | None = None,
    each: Tree | None = None,
) -> tuple[Replies, Callable[[Tree], tuple[Any, ...]]]:
    """An exchange in which every client fits the model that was generated for it.

    Returns the replies, and the way back: from what the models changed by to gradients at the inputs of `generate`.
    What the cohort shares gets the sum over clients, to which the silent, whose rows are zero, add nothing.
    """
    params, pull = pullback(generate, *inputs)
    replies = clients.run(fit, shared=shared, each={"params": params} | (each or {}))
    return replies, lambda change: pull(tree.scale(change, -1))
