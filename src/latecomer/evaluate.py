"""Scores of members and latecomers: per client, their mean, pooled over examples, and the bottom decile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev

import torch
from torch import Tensor

from . import tree
from .clients import Clients, Engine
from .lockstep import Lockstep
from .method import Method
from .tree import Tree

AT_ONCE = 1024  # clients personalised and scored together; only their scores are kept


@dataclass(frozen=True, eq=False)
class Scores:
    """For every client and held-out split: examples it gets right, and examples there are."""

    ids: Tensor  # [clients]
    counts: Tree  # "val", "test": [clients, 2]

    def accuracy(self, split: str = "test") -> Tensor:
        """Percent, per client; NaN for a client with nothing to score."""
        right, total = self.counts[split].unbind(-1)
        percent: Tensor = 100 * right / torch.where(total > 0, total, torch.nan)
        return percent

    def summary(self, split: str = "test") -> dict[str, float]:
        """In percent: the mean over clients, over all examples together, and what all but a tenth of clients reach."""
        each = self.accuracy(split)
        each = each[~each.isnan()].double()
        right, total = self.counts[split].double().sum(0).tolist()
        if not len(each):
            return {"accuracy": float("nan"), "pooled": float("nan"), "bottom_decile": float("nan")}
        return {
            "accuracy": float(each.mean()),
            "pooled": 100 * right / total,
            "bottom_decile": float(each.quantile(0.1)),
        }


def over_seeds(scores: Sequence[Scores]) -> dict[str, float]:
    """Means over seeds, and the standard deviation of the accuracy."""
    each = [score.summary() for score in scores]
    mean = {key: round(fmean(summary[key] for summary in each), 3) for key in each[0]}
    known = len(each) > 1 and not math.isnan(mean["accuracy"])
    spread = stdev(summary["accuracy"] for summary in each) if known else 0.0
    return {"accuracy": mean["accuracy"], "std": round(spread, 3), **mean}


def evaluate(
    methods: Sequence[Method], states: Sequence[Tree], lockstep: Lockstep, ids: Sequence[Tensor], number: int
) -> list[Scores]:
    """Personalise and score, for every run in lockstep, the clients `ids`. Nothing a client does here is kept."""
    runs = enumerate(zip(methods, states, ids, strict=True))
    return lockstep([partial(_one, method, state, run, some, number) for run, (method, state, some) in runs])


def _one(method: Method, state: Tree, run: int, ids: Tensor, number: int, engine: Engine) -> Scores:
    parts: list[Tree] = []
    for some in ids.split(AT_ONCE) if len(ids) else ():
        clients = Clients(engine, some, round=-1, run_index=run, scratch=number)  # below zero: not a round of training
        sent = method.personalise(state, clients)
        again = Clients(engine, some, round=-1, run_index=run, scratch=number, held=clients.held)
        replies = again.send(method.score, sent)
        parts.append(tree.to(replies.each, torch.device("cpu")))
    return Scores(ids, tree.concatenate(parts) if parts else {})
