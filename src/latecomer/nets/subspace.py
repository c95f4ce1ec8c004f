"""Models in a random subspace: theta = theta_0 + P v (Li et al., ICLR 2018).

P and theta_0 follow from a seed. Server and clients each make their own, and neither ever travels: v is all it takes to
know a model. A dense P has a number for every weight and every coordinate of v; a Kronecker product P = A (x) B (Lotfi
et al., NeurIPS 2022) has only its two factors, a few megabytes for millions of weights, and applies as two products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from .. import tree
from ..errors import SettingError
from ..tree import Tree
from .net import Net

Kind = Literal["kronecker", "dense"]
DENSE_LIMIT = 8 * 2**30  # bytes


@dataclass(frozen=True, eq=False)
class Dense:
    """Gaussian columns of norm one."""

    matrix: Tensor  # [weights, size]

    @staticmethod
    def draw(weights: int, size: int, generator: torch.Generator) -> Dense:
        needed = 4 * weights * size
        if needed > DENSE_LIMIT:
            raise SettingError(
                f"--subspace dense would hold {needed / 2**30:.0f} GiB for {weights:,} weights and a subspace of "
                f"{size:,}; use --subspace kronecker."
            )
        matrix = torch.randn(weights, size, generator=generator)
        return Dense(matrix / torch.linalg.vector_norm(matrix, dim=0))

    @property
    def size(self) -> int:
        return self.matrix.shape[1]

    def __call__(self, v: Tensor) -> Tensor:
        return self.matrix @ v

    def to(self, device: torch.device, dtype: torch.dtype) -> Dense:
        return Dense(self.matrix.to(device, dtype))


@dataclass(frozen=True, eq=False)
class Kronecker:
    """P = A (x) B for Gaussian A and B, cut to as many rows and columns as are asked for.

    With v laid out as a matrix V, P v is A V B^T, row by row. Cutting takes the end of the last row, so the norms of
    columns are no longer products of the factors' norms; `norms` holds them as they are, and they are divided out.
    """

    left: Tensor  # A: [rows, heads]
    right: Tensor  # B: [columns, tails]
    norms: Tensor  # [size]: of every column of the cut product
    weights: int

    @staticmethod
    def draw(weights: int, size: int, generator: torch.Generator) -> Kronecker:
        columns, tails = (math.isqrt(count - 1) + 1 for count in (weights, size))  # square roots, rounded up
        whole, rest = divmod(weights, columns)  # rows of A V B^T that are kept as a whole, and what is kept of the next
        if whole * tails + min(rest, tails) < size:  # the cut would take a direction from so large a subspace
            tails = columns
        rows, heads = -(-weights // columns), -(-size // tails)
        left, right = (torch.randn(*shape, generator=generator) for shape in ((rows, heads), (columns, tails)))
        squares = torch.outer(left[:whole].double().square().sum(0), right.double().square().sum(0))
        if rest:
            squares += torch.outer(left[whole].double().square(), right[:rest].double().square().sum(0))
        return Kronecker(left, right, squares.sqrt().flatten()[:size].float(), weights)

    @property
    def size(self) -> int:
        return len(self.norms)

    def __call__(self, v: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(v / self.norms, (0, self.left.shape[1] * self.right.shape[1] - len(v)))
        laid_out = padded.unflatten(0, (self.left.shape[1], self.right.shape[1]))
        expanded: Tensor = self.left @ (laid_out @ self.right.t())
        return expanded.flatten()[: self.weights]

    def to(self, device: torch.device, dtype: torch.dtype) -> Kronecker:
        left, right, norms = (part.to(device, dtype) for part in (self.left, self.right, self.norms))
        return Kronecker(left, right, norms, self.weights)


KINDS: dict[Kind, type[Dense | Kronecker]] = {"kronecker": Kronecker, "dense": Dense}


def expansion(kind: Kind, weights: int, size: int, generator: torch.Generator) -> Dense | Kronecker:
    """P, drawn from a generator."""
    if size > weights:
        raise SettingError(f"--dimension must be at most the number of the model's weights, {weights:,}; got {size:,}.")
    return KINDS[kind].draw(weights, size, generator)


@dataclass(frozen=True, eq=False)
class Subspace:
    """theta_0 and P for a network."""

    net: Net
    start: Tensor  # theta_0, end to end
    expansion: Dense | Kronecker

    def __post_init__(self) -> None:
        object.__setattr__(self, "_elsewhere", {})  # copies on other devices

    @staticmethod
    def draw(net: Net, kind: Kind, size: int, seed: int, dtype: torch.dtype = torch.float32) -> Subspace:
        """From a seed: theta_0 as the network draws its own initial weights, then P."""
        generator, here = torch.Generator().manual_seed(seed), torch.device("cpu")
        start = tree.ravel(net.fresh(generator)).to(dtype)
        return Subspace(net, start, expansion(kind, net.size, size, generator).to(here, dtype))

    def on(self, device: torch.device) -> Subspace:
        """The same on another device. To be called outside a gradient: what is made within one ends with it."""
        if device == self.start.device:
            return self
        copies: dict[torch.device, Subspace] = self.__dict__["_elsewhere"]
        if device not in copies:
            there = self.expansion.to(device, self.start.dtype)
            copies[device] = replace(self, start=self.start.to(device), expansion=there)
        return copies[device]

    def __call__(self, v: Tensor) -> Tree:
        """The weights of the model at v."""
        return tree.unravel(self.start + self.expansion(v), dict(self.net.skeleton.named_parameters()))

    @property
    def size(self) -> int:
        """k: the coordinates of v."""
        return self.expansion.size

    @property
    def bytes(self) -> int:
        """What a client holds for P; theta_0 is as large as a model."""
        return tree.nbytes({name: part for name, part in vars(self.expansion).items() if isinstance(part, Tensor)})
