"""Hypernetworks: from a client's descriptor to the weights of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import tree
from ..tree import Tree
from .net import Net


class Hypernetwork(Net):
    """ReLU layers and one linear head that emits all weights of the target, end to end.

    As in the authors' code of pFedHN and PeFLL, `depth` times a ReLU and a layer follow the first layer, and the head
    follows the last of them without a ReLU; with `relu_before_head` there is one, as in PeFLL's Table 4.
    The papers describe one head per target tensor. PyTorch draws a linear layer's initial weights by its inputs alone,
    so a single wide head is the same network, evaluated in one product. The target is a tree of shapes: a model's, or
    those of one model a branch. With `spectral`, every layer (in the head, the rows of every tensor) is divided by its
    spectral norm.
    """

    def __init__(
        self,
        descriptor: int,
        target: Mapping[str, Any],
        hidden: int = 100,
        depth: int = 3,
        spectral: bool = False,
        relu_before_head: bool = False,
    ) -> None:
        self.target: Mapping[str, Any] = tree.flatten(dict(target))
        self.descriptor, self.spectral = descriptor, spectral
        outputs = sum(shape.numel() for shape in self.target.values())

        def build() -> nn.Module:
            layers: list[nn.Module] = [nn.Linear(descriptor, hidden)]
            for _ in range(depth):
                layers += [nn.ReLU(), nn.Linear(hidden, hidden)]
            layers += [nn.ReLU()] if relu_before_head else []
            return nn.Sequential(*layers, nn.Linear(hidden, outputs))

        super().__init__(build)

    def generate(self, params: Tree, descriptors: Tensor, branch: str = "") -> Tree:
        """One model for every row of descriptors; of a target with branches one of them, and nothing else is made."""
        prefix = f"{branch}/" * bool(branch)
        wanted = {path: shape for path, shape in self.target.items() if path.startswith(prefix)}
        sizes = [shape.numel() for shape in wanted.values()]
        used = params if len(wanted) == len(self.target) else self._narrowed(params, next(iter(wanted)), sum(sizes))
        used = self._normalised(used, sizes) if self.spectral else used
        head = {name: torch.Size([sum(sizes), *self.shapes[name][1:]]) for name in self._head}
        inputs = descriptors.to(used[f"{self.last}.bias"].dtype)
        parts = self(used, inputs, also=[self.shapes | head]).split(sizes, -1)
        weights = {path: part.unflatten(-1, wanted[path]) for path, part in zip(wanted, parts, strict=True)}
        return tree.unflatten({path.removeprefix(prefix): leaf for path, leaf in weights.items()})

    def _narrowed(self, params: Tree, first: str, count: int) -> Tree:
        """Of the head only the rows that emit `count` numbers, from the tensor `first` on."""
        paths = list(self.target)
        start = sum(self.target[path].numel() for path in paths[: paths.index(first)])
        return params | {name: params[name][start : start + count] for name in self._head}

    @property
    def _head(self) -> tuple[str, str]:
        return f"{self.last}.weight", f"{self.last}.bias"

    def _normalised(self, params: Tree, sizes: Sequence[int]) -> Tree:
        """Every layer's matrix divided by its spectral norm; the head is one layer a tensor."""
        matrices = {name: leaf for name, leaf in params.items() if leaf.ndim == 2}
        head = f"{self.last}.weight"
        return params | {name: normalised(w, sizes if name == head else [len(w)]) for name, w in matrices.items()}


def normalised(weight: Tensor, rows: Sequence[int]) -> Tensor:
    """Blocks of so many rows, each divided by its largest singular value.

    Miyato et al. (ICLR 2018) keep a running estimate of that value by power iteration; this is what it estimates, from
    the small matrix W'W, so that the result is a function of the weights alone. The gradient passes through both.
    """
    blocks = weight.split(list(rows))
    squares = torch.stack([block.t() @ block for block in blocks])
    largest = torch.linalg.eigvalsh(squares)[:, -1]  # [blocks]
    norms = largest.clamp(min=torch.finfo(weight.dtype).tiny).sqrt()
    return torch.cat([block / norm for block, norm in zip(blocks, norms, strict=True)])
