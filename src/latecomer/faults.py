"""Who falls silent when: a pure function of (seed, round, client, step), the same on every engine."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .data.shuffle import mix, purpose, uniform

Faults = Callable[[Tensor, int, str], Tensor]


def silence(rate: float, seed: int) -> Faults | None:
    """Every client falls silent at every step with probability `rate`; None where that never happens."""
    if not rate:
        return None
    return lambda ids, number, step: uniform(mix(ids, seed, number, purpose(step))) < rate
