"""Differential privacy: how much noise a promise takes, and what several answers of a client give away together.

The noise is calibrated by the analytic Gaussian mechanism (Balle and Wang, ICML 2018). Answers with Gaussian noise add
up exactly, also where a server asks what earlier answers suggest (Dong, Roth, Su, JRSS B 2022): an answer with noise
sigma, at sensitivity 1, loses 1 / sigma^2, and answers that lose L in all are as private as one with noise 1 / sqrt(L).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch

from .errors import BudgetSpent, SettingError, need

ROUNDING = 2.0**-50  # a difference of two probabilities is off by less than this share of the larger
MOST = 10_000  # answers that a client writes down; it gives no more, whatever its budget
LARGEST = 1e6  # epsilon that is worth a calculation
TOLERANCE = 1 + 1e-9  # of a budget: one that is meant to be used up must not fail by its last bit


def delta(epsilon: float, sigma: float) -> float:
    """The smallest delta for which noise of this size on a query of sensitivity 1 is (epsilon, delta)-private.

    Balle and Wang's exact expression, Phi(1/2s - epsilon s) - e^epsilon Phi(-1/2s - epsilon s), rounded up.
    """
    centre, half = epsilon * sigma, 0.5 / sigma
    places = torch.tensor([half - centre, -half - centre], dtype=torch.float64)
    first, second = torch.special.log_ndtr(places).tolist()
    larger = math.exp(first)
    return larger - math.exp(min(epsilon + second, first)) + ROUNDING * larger


@lru_cache(maxsize=256)
def sigma(epsilon: float, target: float) -> float:
    """The least noise (its standard deviation) that makes a query of sensitivity 1 (epsilon, target)-private."""
    low = high = 1.0
    while delta(epsilon, high) > target:
        high *= 2
    while delta(epsilon, low) <= target:
        low /= 2
    while high - low > 1e-12 * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if delta(epsilon, middle) <= target else (middle, high)
    return high


def epsilon(loss: float, target: float) -> float:
    """What answers that lose so much in all spend together at delta `target`, rounded up."""
    noise = 1 / math.sqrt(loss) if loss else math.inf
    if not loss or delta(0.0, noise) <= target:
        return 0.0
    low, high = 0.0, 1.0
    while delta(high, noise) > target:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if delta(middle, noise) <= target else (middle, high)
    return high


@dataclass(frozen=True)
class Release:
    """What one answer gives away, and what a client may give away in all its answers."""

    epsilon: float
    delta: float
    sigma: float  # of the noise, for a query of sensitivity 1
    budget: float = 0.0  # largest epsilon of all answers together, at this delta; 0: no limit

    @staticmethod
    def gaussian(epsilon: float, delta: float, budget: float = 0.0) -> Release:
        """With the least Gaussian noise that keeps the promise."""
        if max(epsilon, budget) > LARGEST:
            raise SettingError(
                f"--epsilon and --epsilon-budget must be at most {LARGEST:g}, where nothing is private any more; "
                f"got {max(epsilon, budget):g}."
            )
        if budget and budget < epsilon:
            raise SettingError(
                f"--epsilon-budget must be 0, or at least the {epsilon:g} of --epsilon that one answer spends; "
                f"got {budget:g}."
            )
        return Release(epsilon, delta, sigma(epsilon, delta), budget)

    @property
    def loss(self) -> float:
        return self.sigma**-2

    @property
    def affordable(self) -> float:
        """The loss that the budget allows."""
        return TOLERANCE * sigma(self.budget, self.delta) ** -2 if self.budget else math.inf


@dataclass(frozen=True)
class Entry:
    """One answer of a client."""

    asked_by: str
    round: int  # as the server said
    time: float  # by the client's clock, in seconds since 1970
    epsilon: float
    delta: float
    sigma: float


@dataclass(frozen=True)
class Ledger:
    """All that one client has released."""

    entries: tuple[Entry, ...] = ()

    @property
    def loss(self) -> float:
        return math.fsum(entry.sigma**-2 for entry in self.entries)

    def epsilon(self, target: float) -> float:
        """What all answers spend together at delta `target`."""
        return epsilon(self.loss, target)

    def would_exceed(self, release: Release) -> bool:
        """Whether one more answer would spend more than its budget allows."""
        return self.loss + release.loss > release.affordable

    def with_one(self, release: Release, asked_by: str, number: int, time: float) -> Ledger:
        """With one more answer; raises where that would overspend the budget, or where there have been too many."""
        if len(self.entries) >= MOST:
            raise BudgetSpent(f"This client has given {MOST} answers that spend privacy; it does not answer any more.")
        if self.would_exceed(release):
            raise BudgetSpent(
                f"This client has spent epsilon {self.epsilon(release.delta):.4g} of its budget of {release.budget:g} "
                f"in {len(self.entries)} answers, and another one does not fit; it does not answer."
            )
        new = Entry(asked_by, number, time, release.epsilon, release.delta, release.sigma)
        return Ledger((*self.entries, new))

    def columns(self) -> dict[str, list[Any]]:
        """As lists, the way a record can hold it."""
        return {field.name: [getattr(entry, field.name) for entry in self.entries] for field in fields(Entry)}

    @staticmethod
    def of(columns: Mapping[str, Any]) -> Ledger:
        """The way back."""
        rows: Sequence[Sequence[Any]] = [columns[field.name] for field in fields(Entry)]
        return Ledger(tuple(Entry(*row) for row in zip(*rows, strict=True)))


def composed(noise: float, target: float, answers: int, step: float) -> float:
    """A second opinion, by dp-accounting: the epsilon of several answers, each of sensitivity 1 and with this noise.

    It rounds up to multiples of `step`. A loss spreads over some multiples of 1 / noise, so a much smaller step would
    cost memory.
    """
    need("dp_accounting", "privacy")
    try:
        module = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
        gaussian = module.from_gaussian_mechanism
    except ModuleNotFoundError:  # before version 0.1
        module = importlib.import_module("dp_accounting.privacy_loss_distribution")
        gaussian = module.PrivacyLossDistribution.from_gaussian_mechanism
    one = gaussian(noise, value_discretization_interval=max(step, 1e-3 / noise))
    return float(one.self_compose(answers).get_epsilon_for_delta(target))
