"""What a training is asked for: how long, and with whom."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

from .settings import check_ranges, setting

Course = Literal["constant", "step", "cosine"]
"""How learning rates go over the rounds of training (schedule.py)."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long and with whom to train. Defaults are latecomer's own; a method's `paper` may say otherwise."""

    rounds: int = setting(
        5000,
        "rounds of training, those before --continue-from included; 0 with --start: its model is only personalised",
        low=0,
    )
    cohort: int = setting(5, "clients a round; 0: all members", low=0)
    cohort_labelled: float | None = setting(
        None, "share of a round's clients that are drawn among those with labels; -: all are drawn alike", low=0, high=1
    )
    evaluate_every: int = setting(30, "rounds between evaluations of the members", low=1)
    watch_unseen: bool = setting(False, "evaluate latecomers at every evaluation, not only at the end")
    select: Literal["accuracy", "own_classes", "pooled", "own_pooled"] = setting(
        "accuracy",
        "validation score, of the validators or else of the members, that selects the reported round: mean of clients, "
        "among all classes or a client's own, or pooled over examples, likewise",
    )
    silence: float = setting(0.0, "probability that a client falls silent at a step", low=0, below=1)

    def __post_init__(self) -> None:
        check_ranges(self)

    def with_members(self, members: int) -> Self:
        """The same plan for so many members; a cohort of 0 is all of them."""
        return self if self.cohort else replace(self, cohort=members)
