"""PeFLL, Fig. 3: whether clients with similar data have similar descriptors, by Spearman's rank correlation.

For every latecomer: its descriptor's distances to those of all n clients, itself included, against the distances of
their class shares; the mean over latecomers. With `--trace-descriptors` a run keeps them at every evaluation.

An embedding network takes the mean over examples, so a descriptor is nearly linear in class shares, whatever was
learned. `random` is what linear maps drawn at random come to, with as many dimensions: what there is to beat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial.distance import cdist

from ...errors import SettingError
from ..compare import spread
from ..described import class_shares, descriptors
from ..figure import Figure, banded
from ..finished import Finished
from . import Analysis, labels

read = Finished.read
MAPS = 20  # drawn at random
DIGITS = 9  # of a distance: those that are equal shall not differ by rounding


@dataclass(frozen=True, kw_only=True)
class Settings:
    pass


def analyse(runs: Sequence[Finished], asked: Settings) -> Analysis:
    rows, series, notes = [], [], []
    for run, name in zip(runs, labels(runs), strict=True):
        if not run.clients("unseen"):
            raise SettingError(f"The run in {run.path} had no latecomers, whose descriptors are compared here.")
        course = [(at, *spread([_seed(run, seed, at) for seed in run.seeds])) for at in run.traced()]
        selected = spread([_seed(run, seed) for seed in run.seeds])
        if np.isnan(selected[0]):
            raise SettingError(f"All clients of {run.path} have the same class shares, or the same descriptor.")
        chance = spread([_by_chance(run, seed) for seed in run.seeds])
        told = [*course, ("selected", *selected), ("random", *chance)]
        rows += [[name, at, mean, std, len(run.seeds)] for at, mean, std in told]
        if course:
            at, means, stds = (list(column) for column in zip(*course, strict=True))
            series.append(banded(name, [float(one) for one in at], means, stds))
        else:
            notes.append(f"{name} kept the descriptors of the selected round alone; --trace-descriptors keeps more.")
    title = "Rank correlation of descriptors with class shares"
    figure = Figure(title, "lines", "round", "Spearman's correlation", series) if series else None
    return Analysis(title, ["run", "round", "correlation", "std", "seeds"], rows, figure, notes)


def _seed(run: Finished, seed: int, at: int | None = None) -> float:
    """The mean over latecomers; NaN where distances say nothing."""
    rows, known = descriptors(run, seed, at)
    return _mean(known, class_shares(rows), rows)


def _by_chance(run: Finished, seed: int) -> float:
    """The same of class shares after linear maps that are drawn at random."""
    rows, known = descriptors(run, seed)
    shares, random = class_shares(rows), np.random.default_rng(0)
    maps = [random.standard_normal((shares.shape[1], known.shape[1])) for _ in range(MAPS)]
    return float(np.mean([_mean(shares @ each, shares, rows) for each in maps]))


def _mean(known: NDArray[np.floating], shares: NDArray[np.floating], rows: Sequence[Mapping[str, Any]]) -> float:
    each = correlations(known, shares, np.array([row["role"] == "latecomer" for row in rows]))
    return float(np.nanmean(each)) if not np.isnan(each).all() else np.nan


def correlations(
    descriptors: NDArray[np.floating], shares: NDArray[np.floating], of: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Of each of these clients: the rank correlation of its distances to all; NaN where all are as far."""
    a, b = (stats.rankdata(np.round(cdist(x[of], x), DIGITS), axis=1) for x in (descriptors, shares))
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    size = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.where(size > 0, (a * b).sum(1) / np.where(size > 0, size, 1), np.nan)
