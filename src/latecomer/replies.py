"""What comes back from the clients: gathered part by part, as rows or folded into a mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from . import tree
from .ops.sums import chosen, weighted_sum
from .tree import Tree

By = Literal["clients", "labelled", "examples"]  # a mean over all clients, those with labels, or labelled examples


@dataclass(frozen=True)
class Replies:
    """What came back: rows in the order of the cohort, zero where a client was silent."""

    each: Tree
    heard: Tensor  # [cohort] bool: who answered
    weight: Tensor  # [cohort]: labelled examples in a round of training, else one; zero where silent

    @property
    def labelled(self) -> Tensor:
        """How many of those that answered have labels, but at least one: it divides a sum into a mean over them."""
        return (self.weight > 0).sum().clamp(min=1)

    def share(self, by: By = "clients") -> Tensor:
        """What each client counts for in a mean; zero where silent, and the rest add up to one."""
        count = _count(self.heard, self.weight, by)
        return count / count.sum().clamp(min=1)

    def mean(self, by: By = "clients") -> Tree:
        """The mean of the replies that came: every client weighs one, or by its `examples`."""
        share = self.share(by)
        return _Table.of(self.each).map(lambda rows: weighted_sum(share, rows)).tree()

    def sum(self) -> Tree:
        """The sum of the replies that came; a silent client's row is zero."""
        return tree.map(lambda leaf: leaf.sum(0), self.each)


class Collector:
    """Gathers an exchange's answers part by part; with `fold` it keeps only their weighted sum.

    How many labelled examples a client has is counted in training alone: elsewhere whoever answers weighs one.
    """

    def __init__(self, fold: By | None, counted: bool = True) -> None:
        self.fold, self.counted = fold, counted
        self.parts: list[_Table] = []  # folded: one, of sums
        self.weights: list[Tensor] = []
        self.heards: list[Tensor] = []
        self.up_each = 0

    def take(self, each: Tree, weight: Tensor, heard: Tensor) -> None:
        table = _Table.of(tree.detach(each))
        heard = heard & table.finite().to(heard.device)  # nonsense is silence
        weight = weight * heard if self.counted else heard.to(weight.dtype)
        self.up_each = tree.nbytes(each) // max(len(heard), 1)
        self.heards.append(heard)
        self.weights.append(weight)
        if self.fold is None:
            self.parts.append(table.map(lambda rows: chosen(heard, rows)))
            return
        count = _count(heard, weight, self.fold)
        sums = table.map(lambda rows: weighted_sum(count, rows))
        self.parts = [self.parts[0].add(sums)] if self.parts else [sums]

    def alike(self) -> Collector:
        """One for a part of the clients, to be added."""
        return Collector(self.fold, self.counted)

    def add(self, part: Collector, device: torch.device) -> None:
        """What was gathered elsewhere, of the clients that come next."""
        self.up_each = part.up_each
        self.heards += [heard.to(device) for heard in part.heards]
        self.weights += [weight.to(device) for weight in part.weights]
        tables = [table.map(lambda rows: rows.to(device)) for table in part.parts]
        self.parts = [self.parts[0].add(tables[0])] if self.fold and self.parts else self.parts + tables

    def replies(self) -> Replies:
        return Replies(
            tree.concatenate([part.tree() for part in self.parts]), torch.cat(self.heards), torch.cat(self.weights)
        )

    def mean(self) -> Tree:
        total = _count(torch.cat(self.heards), torch.cat(self.weights), self.fold or "clients").sum().clamp(min=1)
        return self.parts[0].map(lambda sums: sums / total.to(sums.dtype)).tree()


def _count(heard: Tensor, weight: Tensor, by: By) -> Tensor:
    """What each client counts for; zero where silent."""
    return weight if by == "examples" else heard.float() if by == "clients" else (weight > 0).float()


@dataclass(frozen=True)
class _Table:
    """A tree of rows as one matrix a kind of number, because what work costs on a GPU is often its operations."""

    shapes: dict[str, torch.Size]  # of a row, by the path to its leaf
    paths: dict[torch.dtype, list[str]]  # by the kind of number that clients send
    rows: dict[torch.dtype, Tensor]  # [clients, columns], or a sum over clients [columns]

    @staticmethod
    def of(each: Tree) -> _Table:
        flat = tree.flatten(each)
        paths: dict[torch.dtype, list[str]] = {}
        for path, leaf in flat.items():
            paths.setdefault(leaf.dtype, []).append(path)
        rows = {kind: _end_to_end([flat[path] for path in some]) for kind, some in paths.items()}
        return _Table({path: leaf.shape[1:] for path, leaf in flat.items()}, paths, rows)

    def tree(self) -> Tree:
        """The way back; leaves are views."""
        flat: dict[str, Tensor] = {}
        for kind, some in self.paths.items():
            parts = self.rows[kind].split([self.shapes[path].numel() for path in some], -1)
            flat |= {
                path: part.reshape(part.shape[:-1] + self.shapes[path]) for path, part in zip(some, parts, strict=True)
            }
        return tree.unflatten({path: flat[path] for path in self.shapes})

    def finite(self) -> Tensor:
        """Which rows are."""
        return tree.finite({str(kind): rows for kind, rows in self.rows.items()}, rows=True)

    def map(self, function: Callable[[Tensor], Tensor]) -> _Table:
        """What a function makes of every matrix; it may sum rows up, but must leave columns alone."""
        return replace(self, rows={kind: function(rows) for kind, rows in self.rows.items()})

    def add(self, other: _Table) -> _Table:
        return replace(self, rows={kind: rows + other.rows[kind] for kind, rows in self.rows.items()})


def _end_to_end(leaves: list[Tensor]) -> Tensor:
    """Rows of several leaves as rows of one matrix; no copy is made where they lie so already, as `unravel` does it."""
    flat = [leaf.flatten(1) if leaf.ndim > 1 else leaf[:, None] for leaf in leaves]
    first, columns, several = flat[0], sum(part.shape[1] for part in flat), len(flat[0]) > 1
    end = first.storage_offset()
    for part in flat:
        same = part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        spread = several and part.stride(0) != first.stride(0)
        if not same or spread or part.stride(1) != 1 or part.storage_offset() != end:
            return torch.cat(flat, 1)
        end += part.shape[1]
    return first.as_strided((len(first), columns), (first.stride(0) if several else columns, 1))
