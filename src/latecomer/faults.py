"""Who falls silent when: a pure function of (seed, round, client, step), the same on every engine.

And what went wrong without being asked for: replies that never came, or that were not finite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

from torch import Tensor

from .ops.shuffle import mix, purpose, uniform

Faults = Callable[[Tensor, int, str], Tensor]


def silence(rate: float, seed: int) -> Faults | None:
    """Every client falls silent at every step with probability `rate`; None where that never happens."""
    if not rate:
        return None
    return lambda ids, number, step: uniform(mix(ids, seed, number, purpose(step))) < rate


def failing_since(lines: Iterable[Mapping[str, Any]], before: int | None = None) -> int | None:
    """The round, the first being 1, since which every round got less than half of the replies that some step asked for.

    `lines` are those of the ledger in order, and `before` is what earlier ones came to. Whoever `silence` chose was not
    asked; a round that asked nobody changes nothing.
    """
    since = before
    for number, exchanges in groupby(lines, key=lambda line: line["round"]):
        asked: Counter[str] = Counter()
        answered: Counter[str] = Counter()
        for line in exchanges:  # a step may be asked of parts of a cohort, one after the other
            asked[line["step"]] += line["asked"]
            answered[line["step"]] += line["answered"]
        if asked.total():
            failing = any(2 * answered[step] < count for step, count in asked.items())
            since = (since or number + 1) if failing else None
    return since
