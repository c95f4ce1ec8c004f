"""A learned objective: a small network that judges predictions without knowing the labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..tree import Tree
from .net import Net


class LearnedLoss(Net):
    """From the logits of a batch to one number: the length of the vector with an entry for every example."""

    def __init__(self, classes: int, width: int, depth: int) -> None:
        def build() -> nn.Module:
            layers: list[nn.Module] = []
            for k in range(depth):
                layers += [nn.Linear(width if k else classes, width), nn.ReLU()]
            return nn.Sequential(*layers, nn.Linear(width, 1))

        super().__init__(build)

    def value(self, params: Tree, logits: Tensor, real: Tensor) -> Tensor:
        """Padding adds nothing. At length zero the gradient, which does not exist there, is taken as zero."""
        squares = (self(params, logits).squeeze(-1).square() * real).sum()
        some = squares > 0
        return torch.where(some, torch.where(some, squares, 1.0).sqrt(), 0.0)
