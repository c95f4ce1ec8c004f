"""Runs beside each other: means with their spread, and differences pair by pair of clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy import stats

from ..errors import RunError
from .finished import Finished, Group, is_number

FEW = 5  # seeds; with less, an interval over them says nothing


@dataclass(frozen=True)
class Difference:
    """How much more one run scores than another on the same clients, in points, with Student's 95 % interval."""

    mean: float
    low: float
    high: float
    count: int  # of what the interval is over
    over: str  # seeds or clients

    @property
    def told(self) -> bool:
        """Whether the two can be told apart."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "none to compare"
        if not math.isfinite(self.low):
            return f"{self.mean:+.1f}".replace("-", "\N{MINUS SIGN}")
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]".replace("-", "\N{MINUS SIGN}")


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation; of one value the second is NaN."""
    if not values:
        return math.nan, math.nan
    return fmean(values), stdev(values) if len(values) > 1 else math.nan


def course(run: Finished, group: Group, column: str) -> list[tuple[int, float, float]]:
    """Round, mean and standard deviation over the seeds of every evaluation; NaN where a group was not watched."""
    found = []
    for line in run.metrics:
        told = [one[group].get(column) for one in line["runs"] if isinstance(one.get(group), dict)]
        found.append((int(line["round"]), *spread([value for value in told if is_number(value)])))
    return found


def same_clients(run: Finished, to: Finished) -> bool:
    """Whether clients of the same number are pairs. Where no splits are told, nobody knows whose clients they are."""
    return run is to or (bool(run.splits) and run.splits == to.splits)


def paired(run: Finished, to: Finished, group: Group, column: str = "accuracy", among: int = 1) -> Difference:
    """The difference of two runs, over the seeds' means where there are five or more, else over clients.

    Pairs are the same clients, so how hard their tasks are cancels out. Clients of a seed share one training: over them
    an interval says how sure the difference is for other clients of these trainings, and nothing about another one.
    """
    if not same_clients(run, to):
        raise RunError(f"{run.path} and {to.path} have other data or other splits: their clients are no pairs.")
    a, b = run.scores(group, column), to.scores(group, column)
    gaps = {key: a[key] - b[key] for key in a.keys() & b.keys()}
    by_seed: dict[int, list[float]] = {}
    for (seed, _), gap in gaps.items():
        by_seed.setdefault(seed, []).append(gap)
    if len(by_seed) >= FEW:
        return interval([fmean(some) for some in by_seed.values()], "seeds", among)
    weights = [1 / len(some) for some in by_seed.values() for _ in some]  # every seed counts as much, as in a mean
    return interval([gap for some in by_seed.values() for gap in some], "clients", among, weights)


def interval(values: Sequence[float], over: str, among: int = 1, weights: Sequence[float] = ()) -> Difference:
    """A mean with Student's 95 % interval. Of one value, or of equal ones, which show no spread, it is unbounded; of
    none there is no mean either. `weights` say how much each counts, none: all the same.

    One `among` so many is wide enough that all of them hold together with 95 % (Bonferroni): who looks for differences
    in many pairs finds some by chance. To say who may be the best, as many as there are others will do, although who is
    first is read off the scores: the best of all, whoever it is, is then found below the first in 5 % of tables at most
    (multiple comparisons with the best). Of equals somebody else may be, more often.
    """
    count, mean = len(values), fmean(values, weights or None) if values else math.nan
    if count < 2 or (mean and len({*values}) == 1):
        return Difference(mean, -math.inf, math.inf, count, over)
    parts = [weight / math.fsum(weights) for weight in weights] or [1 / count] * count
    squares = math.fsum((part * (value - mean)) ** 2 for part, value in zip(parts, values, strict=True))
    half = float(stats.t.ppf(1 - 0.025 / among, count - 1)) * math.sqrt(squares * count / (count - 1))
    return Difference(mean, mean - half, mean + half, count, over)


def unpaired(a: Sequence[float], b: Sequence[float]) -> Difference:
    """The difference of two means of seeds that have nothing to do with each other, with Welch's 95 % interval."""
    few = min(len(a), len(b))
    mean = fmean(a) - fmean(b) if few else math.nan
    if few < 2 or stdev(a) + stdev(b) == 0:  # without a spread, nobody knows how far the means could be off
        return Difference(mean, -math.inf, math.inf, few, "seeds")
    found = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return Difference(mean, float(found.low), float(found.high), min(len(a), len(b)), "seeds")
