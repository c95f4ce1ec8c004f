"""What comes back from the clients: gathered part by part, as rows or folded into a mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from . import tree
from .ops.sums import chosen, weighted_sum
from .plan import Average, Plan
from .processors import Noise, Processors
from .robust import average
from .secure.fixed import Fixed
from .secure.sizes import FEWEST, WORD, threshold
from .steps import Answers, Phase
from .tree import Tree

By = Literal["clients", "labelled", "examples"]  # a mean over all clients, those with labels, or labelled examples


@dataclass(frozen=True)
class Rules:
    """What a server does with replies, whoever sends them."""

    clip_update: float = 0.0  # largest norm of a change; 0: no limit
    average: Average = "mean"
    trim: float = 0.2  # the share of clients that a robust average takes to be hostile
    processors: Processors = Processors()  # what replies went through on the client's side
    secure: Fixed | None = None  # how numbers are rounded that come under masks: nobody sees them, but their sum

    @staticmethod
    def of(plan: Plan, processors: Processors, secure: Fixed | None) -> Rules:
        """As a plan has them, for replies that went through these on the client's side."""
        return Rules(plan.clip_update, plan.average, plan.trim, processors, secure)

    def for_answers(self, answers: Answers, phase: Phase) -> Rules:
        """Those for one step; only a change has a size that can be too large, and only rounds have masks, on means."""
        secure = self.secure if answers == "averaged" and phase == "round" else None
        return replace(self, secure=secure, clip_update=0.0 if answers == "message" else self.clip_update)


@dataclass(frozen=True)
class Replies:
    """What came back: rows in the order of the cohort, zero where a client was silent."""

    each: Tree
    heard: Tensor  # [cohort] bool: who answered
    weight: Tensor  # [cohort]: labelled examples in a round of training, else one; zero where silent
    rules: Rules = field(default_factory=Rules)

    @property
    def labelled(self) -> Tensor:
        """How many of those that answered have labels, but at least one: it divides a sum into a mean over them."""
        return (self.weight > 0).sum().clamp(min=1)

    def share(self, by: By = "clients") -> Tensor:
        """What each client counts for in a mean; zero where silent, and the rest add up to one."""
        count = _count(self.heard, self.weight, by)
        return count / count.sum().clamp(min=1)

    def mean(self, by: By = "clients") -> Tree:
        """The mean of the replies that came: every client weighs one, or by its `examples`.

        A robust average takes its place where the rules say so. It counts every client once, for what a client says
        that it weighs may be a lie.
        """
        table = _Table.of(self.each)
        if self.rules.average != "mean":
            counted = _count(self.heard, self.weight, by) > 0
            return table.whole(lambda rows: average(rows, counted, self.rules.average, self.rules.trim)).tree()
        share = self.share(by)
        return table.map(lambda rows: weighted_sum(share, rows)).tree()

    def sum(self) -> Tree:
        """The sum of the replies that came; a silent client's row is zero."""
        return tree.map(lambda leaf: leaf.sum(0), self.each)


class Collector:
    """Gathers an exchange's answers part by part; with `fold` it keeps only their weighted sum, or rows if it must.

    How many labelled examples a client has is counted in training alone: elsewhere whoever answers weighs one.
    """

    def __init__(self, fold: By | None, counted: bool = True, rules: Rules | None = None) -> None:
        self.counted, self.rules = counted, rules or Rules()
        if self.rules.processors.central and fold == "examples":
            fold = "labelled"  # how much noise a sum needs is known only where each client weighs one
        self.by: By = fold or "clients"
        self.fold = fold if self.rules.average == "mean" else None  # a robust average has to see all rows
        self.parts: list[_Table] = []  # folded: one, of sums
        self.weights: list[Tensor] = []
        self.heards: list[Tensor] = []
        self.total: Tensor | None = None  # what all count together, where a sum came as one
        self.up_each = 0

    def take(self, each: Tree, weight: Tensor, heard: Tensor) -> None:
        self.up_each = tree.nbytes(each) // max(len(heard), 1)
        if self.rules.secure is None:
            table = _Table.of(self.rules.processors.incoming(tree.detach(each)))
        else:  # as it is, since nobody could look under masks; in double precision, where such sums are exact
            table = _Table.of(tree.detach(each)).map(torch.Tensor.double)
            self.up_each = WORD * (1 + sum(leaf[0].numel() for leaf in tree.leaves(each)))
        heard = heard & table.finite().to(heard.device)  # nonsense is silence
        weight = weight * heard if self.counted else heard.to(weight.dtype)
        if self.rules.clip_update:
            table = table.clipped(self.rules.clip_update)
        self.heards.append(heard)
        self.weights.append(weight)
        if self.fold is None:
            self.parts.append(table.map(lambda rows: chosen(heard, rows)))
            return
        count = _count(heard, weight, self.fold)
        sums = table.map(lambda rows: weighted_sum(count, rows))
        self.parts = [self.parts[0].add(sums)] if self.parts else [sums]

    def take_sum(self, sums: Tree, count: int, heard: Tensor, like: Tree) -> None:
        """What was summed up under masks: weighted replies, in double precision, and what all heard count together.

        `like` is a reply, of which only the kinds of number are looked at.
        """
        table = _Table.of(tree.map(lambda leaf: leaf[None], like)).with_row(sums)
        self.parts, self.heards, self.weights = [table], [heard], [heard.float()]
        self.total = torch.tensor(float(count), dtype=torch.float64)
        self.up_each = WORD * (1 + sum(leaf.numel() for leaf in tree.leaves(like)))

    def heard(self, asked: Tensor) -> Tensor:
        """Who was. Under masks that is nobody unless enough were: else no sum could be unmasked."""
        heard = torch.cat(self.heards)
        if self.rules.secure is not None and self.total is None:
            enough = (asked.sum() >= FEWEST) & (heard.sum() >= threshold(asked.sum()))
            heard = heard & enough
            self.heards, self.weights = [heard], [torch.cat(self.weights) * enough]
            self.parts = [sums.map(lambda part: torch.where(enough, part, 0)) for sums in self.parts]
        return heard

    def alike(self) -> Collector:
        """One for a part of the clients, to be added."""
        return Collector(self.fold, self.counted, self.rules)

    def joined(self) -> Collector:
        """This one, with all that it gathered in one piece, which travels better than many."""
        self.heards, self.weights = [torch.cat(self.heards)], [torch.cat(self.weights)]
        if len(self.parts) > 1:
            first, parts = self.parts[0], self.parts
            self.parts = [
                replace(first, rows={kind: torch.cat([part.rows[kind] for part in parts]) for kind in first.rows})
            ]
        return self

    def add(self, part: Collector, device: torch.device) -> None:
        """What was gathered elsewhere, of the clients that come next."""
        self.up_each = part.up_each
        self.heards += [heard.to(device) for heard in part.heards]
        self.weights += [weight.to(device) for weight in part.weights]
        tables = [table.map(lambda rows: rows.to(device)) for table in part.parts]
        self.parts = [self.parts[0].add(tables[0])] if self.fold and self.parts else self.parts + tables

    def replies(self) -> Replies:
        return Replies(
            tree.concatenate([part.tree() for part in self.parts]),
            torch.cat(self.heards),
            torch.cat(self.weights),
            self.rules,
        )

    def mean(self, noise: Noise | None = None) -> Tree:
        """The mean; with `noise` where the rules say that the server adds some to every sum."""
        if self.fold is None:
            return self.replies().mean(self.by)
        count, sums = self.total, self.parts[0]
        if count is None:
            counts = _count(torch.cat(self.heards), torch.cat(self.weights), self.fold)
            count = (counts if self.rules.secure is None else counts.double()).sum()
        if (central := self.rules.processors.central) is not None and noise is not None:
            noisy = central.add(sums.tree(), noise)
            sums = sums.with_row(
                tree.map(lambda leaf: leaf * (count > 0), noisy)
            )  # of nobody's replies there is no sum
        return sums.map(lambda part: part / count.clamp(min=1).to(part.dtype)).as_sent().tree()


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

    def whole(self, function: Callable[[Tensor], Tensor]) -> _Table:
        """As `map`, for a function that has to see whole rows: all kinds of number side by side, as the widest."""
        if len(self.rows) < 2:
            return self.map(function)
        made = function(torch.cat([*self.rows.values()], -1))  # cat promotes
        parts = made.split([rows.shape[-1] for rows in self.rows.values()], -1)
        return replace(self, rows={kind: part.to(kind) for kind, part in zip(self.rows, parts, strict=True)})

    def clipped(self, most: float) -> _Table:
        """With every row scaled down to this norm, if it has a larger one."""
        floats = [rows.double() for kind, rows in self.rows.items() if kind.is_floating_point]
        if not floats:
            return self
        norms = torch.stack([rows.square().sum(-1) for rows in floats]).sum(0).sqrt()
        share = (most / norms.clamp(min=1e-30)).clamp(max=1)
        return self.map(lambda rows: rows * share[:, None].to(rows.dtype) if rows.is_floating_point() else rows)

    def with_row(self, row: Tree) -> _Table:
        """Of the same leaves another row, which may be of another precision."""
        flat = tree.flatten(row)
        joined = {kind: torch.cat([flat[path].reshape(-1) for path in some]) for kind, some in self.paths.items()}
        return replace(self, rows=joined)

    def as_sent(self) -> _Table:
        """With the kinds of number that clients sent; means of whole numbers are fractions."""
        return replace(
            self, rows={kind: rows.to(kind) if kind.is_floating_point else rows for kind, rows in self.rows.items()}
        )

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
