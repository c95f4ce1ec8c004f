"""PeFLL, Fig. 3: whether clients with similar data have similar descriptors, by Spearman's rank correlation.

For every latecomer: its descriptor's distances to those of all n clients, itself included, against the distances of
their class shares; the mean over latecomers. With `--trace-descriptors` a run keeps them at every evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        rows += [[name, at, mean, std, len(run.seeds)] for at, mean, std in (*course, ("selected", *selected))]
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
    late = np.array([row["role"] == "latecomer" for row in rows])
    each = correlations(known, class_shares(rows), late)
    return float(np.nanmean(each)) if not np.isnan(each).all() else np.nan


def correlations(
    descriptors: NDArray[np.floating], shares: NDArray[np.floating], of: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Of each of these clients: the rank correlation of its distances to all; NaN where all are as far."""
    a, b = (stats.rankdata(np.round(cdist(x[of], x), DIGITS), axis=1) for x in (descriptors, shares))
    a, b = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    size = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return np.where(size > 0, (a * b).sum(1) / np.where(size > 0, size, 1), np.nan)
