"""What a training is asked for: how long, and with whom."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

from .settings import check_ranges, setting

Course = Literal["constant", "step", "cosine"]
"""How learning rates go over the rounds of training (schedule.py)."""
Average = Literal["mean", "median", "trimmed", "krum", "geometric"]
"""What takes the place of a mean of replies (robust.py)."""


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
    min_replies: int = setting(
        0, "replies that every exchange of a round needs; with fewer the round is skipped", low=0
    )
    timeout: float = setting(600.0, "seconds that an exchange waits for replies, where clients are real", above=0)
    faults: str = setting(
        "",
        "what goes wrong on purpose, as shares of all replies: drop=0.3,nan=0.01,slow=0.1,huge=0.05,flip=0.05 "
        "(not there; not a number; too late; a hundred times too large; pointing the other way)",
    )
    clip_update: float = setting(
        0.0, "largest norm of a change that a client answers; a larger one is scaled down; 0: no limit", low=0
    )
    average: Average = setting(
        "mean", "how replies are averaged; all but mean withstand some hostile clients, and count every client once"
    )
    trim: float = setting(0.2, "share of a round's clients that a robust average takes to be hostile", low=0, below=0.5)

    def __post_init__(self) -> None:
        from .faults import parse  # here, as it brings PyTorch: who only reads the names of settings does without

        check_ranges(self)
        parse(self.faults)

    def with_members(self, members: int) -> Self:
        """The same plan for so many members; a cohort of 0 is all of them."""
        return self if self.cohort else replace(self, cohort=members)
