"""What comes back from the clients: gathered part by part, as rows or folded into a mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from . import tree
from .tree import Tree

By = Literal["clients", "labelled", "examples"]  # a mean over all clients, those with labels, or labelled examples


@dataclass(frozen=True)
class Replies:
    """What came back: rows in the order of the cohort, zero where a client was silent."""

    each: Tree
    heard: Tensor  # [cohort] bool: who answered
    weight: Tensor  # [cohort]: labelled examples; zero where silent

    @property
    def labelled(self) -> Tensor:
        """How many of those that answered have labels, but at least one: it divides a sum into a mean over them."""
        return (self.weight > 0).sum().clamp(min=1)

    def share(self, by: By = "clients") -> Tensor:
        """What each client counts for in a mean; zero where silent, and the rest add up to one."""
        count = _count(self.heard, self.weight, by)
        return count / count.sum().clamp(min=1)

    def mean(self, by: By = "clients") -> Tree:
        return _weighted(self.share(by), self.each)

    def sum(self) -> Tree:
        return tree.map(lambda leaf: leaf.sum(0), self.each)


class Collector:
    """Gathers an exchange's answers part by part; with `fold` it keeps only their weighted sum."""

    def __init__(self, fold: By | None) -> None:
        self.fold = fold
        self.parts: list[Tree] = []
        self.weights: list[Tensor] = []
        self.heards: list[Tensor] = []
        self.up_each = 0

    def take(self, each: Tree, weight: Tensor, heard: Tensor) -> None:
        each, heard = _sound(tree.detach(each), heard)
        weight = weight * heard
        self.up_each = tree.nbytes(each) // max(len(heard), 1)
        self.heards.append(heard)
        self.weights.append(weight)
        if self.fold is None:
            self.parts.append(each)
            return
        total = _weighted(_count(heard, weight, self.fold), each)
        self.parts = [tree.add(self.parts[0], total)] if self.parts else [total]

    def replies(self) -> Replies:
        return Replies(tree.concatenate(self.parts), torch.cat(self.heards), torch.cat(self.weights))

    def mean(self) -> Tree:
        total = _count(torch.cat(self.heards), torch.cat(self.weights), self.fold or "clients").sum().clamp(min=1)
        return tree.map(lambda leaf: leaf / total.to(leaf.dtype), self.parts[0])


def _count(heard: Tensor, weight: Tensor, by: By) -> Tensor:
    """What each client counts for; zero where silent."""
    return weight if by == "examples" else heard.float() if by == "clients" else (weight > 0).float()


def _weighted(weight: Tensor, rows: Tree) -> Tree:
    """The sum of all rows, each times its weight; counts become fractions."""

    def total(leaf: Tensor) -> Tensor:
        leaf = leaf if leaf.is_floating_point() else leaf.float()
        summed: Tensor = torch.tensordot(weight.to(leaf.dtype), leaf, dims=1)
        return summed

    return tree.map(total, rows)


def _sound(rows: Tree, heard: Tensor) -> tuple[Tree, Tensor]:
    """Nonsense is silence: rows that are not finite, or not heard, become zeros. Leaves are laid end to end first,
    because what this costs on a GPU is the number of operations.
    """
    flat = tree.flatten(rows)
    kinds: dict[torch.dtype, list[str]] = {}
    for path, leaf in flat.items():
        kinds.setdefault(leaf.dtype, []).append(path)
    joined = {kind: _end_to_end([flat[path] for path in paths]) for kind, paths in kinds.items()}
    heard = heard & tree.finite({str(kind): leaf for kind, leaf in joined.items()}, rows=True).to(heard.device)
    for kind, paths in kinds.items():
        clean = torch.where(heard[:, None], joined[kind], joined[kind].new_zeros(()))
        parts = clean.split([flat[path][0].numel() if len(heard) else 0 for path in paths], 1)
        flat |= {path: part.view(flat[path].shape) for path, part in zip(paths, parts, strict=True)}
    return tree.unflatten(flat), heard


def _end_to_end(leaves: list[Tensor]) -> Tensor:
    """Rows of several leaves as rows of one matrix."""
    flat = [leaf.reshape(len(leaf), -1) for leaf in leaves]
    return flat[0] if len(flat) == 1 else torch.cat(flat, 1)
