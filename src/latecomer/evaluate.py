"""Scores of members and latecomers: per client, their mean, pooled over examples, and the bottom decile.

Every score stands twice, from the same logits: among all classes, and among the client's own, those of which it has
training examples. A client that knows its classes could leave the others out whatever its method; so a method is
compared with another in the same column only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, stdev
from typing import Any, Literal

import torch
from torch import Tensor

from . import tree
from .clients import Clients, Engine
from .method import Method
from .tree import Tree

AT_ONCE = 1024  # clients personalised and scored together; only their scores are kept
SCORED = ("val", "test")
RIGHT, KNOWN, RIGHT_AMONG_OWN = range(3)
MOST_EXAMPLES = 10**7  # that a client may say it has, labelled or held out; whoever claims more counts nothing

Together = Callable[[Sequence[Callable[[Engine], Any]]], list[Any]]
"""Does the server work of several runs so that they share exchanges (sweep/lockstep.py)."""
Among = Literal["all", "own"]
"""Which classes a model chooses from: all there are, or those of which its client has training examples."""


@dataclass(frozen=True, eq=False)
class Scores:
    """For every client and held-out split: examples it gets right, examples there are, and right among its own classes.

    A client that gave no score, or an impossible one, has `failed`: it counts as one that gets nothing right, and that
    has as many examples as the others.
    """

    ids: Tensor  # [clients]
    counts: Tree  # "val", "test": [clients, 3]
    failed: Tensor = field(default=None)  # type: ignore[assignment]  # [clients] bool
    report: Tree = field(default_factory=dict)  # what clients say of themselves besides: [clients], by name

    def __post_init__(self) -> None:
        if self.failed is None:
            object.__setattr__(self, "failed", torch.zeros(len(self.ids), dtype=torch.bool))

    @staticmethod
    def of(ids: Tensor, replies: Tree, heard: Tensor) -> Scores:
        """From what clients answered, which is believed only as far as it is possible."""
        counts = {split: replies[split] for split in SCORED}
        possible = torch.stack([_possible(part) for part in counts.values()]).all(0) & heard
        kept = tree.where(possible, counts, tree.map(torch.zeros_like, counts))
        report = tree.map(lambda leaf: torch.where(possible, leaf, torch.nan), replies.get("report", {}))
        return Scores(ids, kept, ~possible, report)

    def accuracy(self, split: str = "test", among: Among = "all") -> Tensor:
        """Percent, per client; NaN for a client with nothing to score, 0 for one that failed."""
        counts = self.counts[split]
        right, total = counts[:, RIGHT if among == "all" else RIGHT_AMONG_OWN], counts[:, KNOWN]
        percent: Tensor = 100 * right / torch.where(total > 0, total, torch.nan)
        return torch.where(self.failed, 0.0, percent)

    def summary(self, split: str = "test") -> dict[str, float]:
        """In percent, among all classes and among own: the mean over clients, over all examples, the bottom decile."""
        return self._among(split, "all", "accuracy", "") | self._among(split, "own", "own_classes", "own_")

    def _among(self, split: str, among: Among, mean: str, prefix: str) -> dict[str, float]:
        each = self.accuracy(split, among)
        each = each[~each.isnan()].double()
        counts, failed = self.counts[split].double(), int(self.failed.sum())
        right, known, own = counts.sum(0).tolist()
        scored = int((counts[:, KNOWN] > 0).sum())
        pooled = 100 * (right if among == "all" else own) / known if known else 0.0 if failed else math.nan
        if failed and scored:  # how many examples they have is unknown: as many as others
            pooled *= scored / (scored + failed)
        return {
            mean: float(each.mean()) if len(each) else math.nan,
            f"{prefix}pooled": pooled,
            f"{prefix}bottom_decile": bottom_decile(each),
        }


def bottom_decile(each: Tensor) -> float:
    """What the (M/10)-th worst of M clients reaches, rounded up: with ten clients, the worst."""
    return float(each.sort().values[math.ceil(len(each) / 10) - 1]) if len(each) else math.nan


def over_seeds(scores: Sequence[Scores]) -> dict[str, float]:
    """Means over seeds, the standard deviations of the two mean accuracies, and how many clients gave no score."""
    each = [score.summary() for score in scores]
    found = {key: round(fmean(summary[key] for summary in each), 3) for key in each[0]}
    for mean, spread in (("accuracy", "std"), ("own_classes", "own_std")):
        known = len(each) > 1 and not math.isnan(found[mean])
        found[spread] = round(stdev(summary[mean] for summary in each), 3) if known else 0.0
    return found | {"failed": sum(int(score.failed.sum()) for score in scores)}


def evaluate(
    methods: Sequence[Method], states: Sequence[Tree], lockstep: Together, ids: Sequence[Tensor], number: int
) -> list[Scores]:
    """Personalise and score, for every run in lockstep, the clients `ids`. Nothing a client does here is kept."""
    runs = enumerate(zip(methods, states, ids, strict=True))
    return lockstep([partial(_one, method, state, run, some, number) for run, (method, state, some) in runs])


def _one(method: Method, state: Tree, run: int, ids: Tensor, number: int, engine: Engine) -> Scores:
    answers, heard = [], []
    for some in ids.split(AT_ONCE) if len(ids) else ():
        clients = Clients(engine, some, -1, run_index=run, scratch=number)  # below zero: not a round of training
        sent = method.personalise(state, clients)
        again = Clients(engine, some, -1, run_index=run, scratch=number, held=clients.held, silent=clients.silent)
        replies = again.send(method.score, sent)
        answers.append(tree.to(replies.each, torch.device("cpu")))
        heard.append(replies.heard.cpu())
    return Scores.of(ids, tree.concatenate(answers), torch.cat(heard)) if answers else Scores(ids, {})


def described(
    methods: Sequence[Method], states: Sequence[Tree], lockstep: Together, ids: Sequence[Tensor]
) -> list[Tensor | None]:
    """What tells the clients `ids` of every run apart, a row each, on the CPU; None where a method describes nobody."""
    runs = enumerate(zip(methods, states, ids, strict=True))
    return lockstep([partial(_described, method, state, run, some) for run, (method, state, some) in runs])


def _described(method: Method, state: Tree, run: int, ids: Tensor, engine: Engine) -> Tensor | None:
    found = []
    for some in ids.split(AT_ONCE):
        rows = method.described(state, Clients(engine, some, -1, run_index=run, scratch=0))
        if rows is None:
            return None
        found.append(rows.float().cpu())
    return torch.cat(found)


def _possible(counts: Tensor) -> Tensor:
    """Which rows are numbers of examples, none of them right twice."""
    right, known, own = counts.unbind(-1)
    whole = (counts == counts.round()) & (counts >= 0) & (counts <= MOST_EXAMPLES)  # NaN is neither
    return whole.all(-1) & (right <= known) & (own <= known)
