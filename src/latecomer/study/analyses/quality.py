"""kNN-Per, Fig. 3, 12, 13: what neighbours gain against how good the common model is, over runs of several lengths.

Each run is a point: the accuracy of its model alone, and of its clients' votes, alone and blended as they choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...handover.trained import Trained
from ..figure import AXES, Figure, Panels, Series
from ..rescore import Scoring, Voting
from . import Analysis, labels

read = Trained.load
KINDS = {"vote alone": {"blends": (1.0,)}, "blended": {}}


@dataclass(frozen=True, kw_only=True)
class Settings(Scoring):
    pass


def analyse(runs: Sequence[Trained], asked: Settings) -> Analysis:
    rows, points = [], []
    several = len({run.experiment.settings.data for run in runs}) > 1
    for run, name in zip(runs, labels(runs), strict=True):
        voting = Voting.of(run, asked)
        alone = voting.summary(blends=(0.0,))[asked.score]
        reached = [voting.summary(**settings)[asked.score] for settings in KINDS.values()]
        rows.append([name, max(run.rounds), alone, *reached])
        data = f"{run.experiment.settings.data}, " if several else ""
        points.append((data + _heterogeneity(run), alone, reached, name))
    groups = dict.fromkeys(group for group, *_ in points)
    figures, notes = [], []
    for k, kind in enumerate(KINDS):
        series = []
        for group in groups:
            mine = sorted((alone, reached[k], name) for other, alone, reached, name in points if other == group)
            x, y, text = (list(column) for column in zip(*mine, strict=True))
            series.append(Series(group, x, y, text=text))
            notes += _linear(f"{kind}, {group}", x, y)
        figures.append(Figure(kind, "lines", "the model alone, %", AXES[asked.score], series))
    title = "What neighbours gain against the quality of the model"
    return Analysis(title, ["run", "selected round", "model alone", *KINDS], rows, Panels(title, figures), notes)


def _heterogeneity(run: Trained) -> str:
    """How a run's clients differ, in a few words: runs that share it are one line."""
    s = run.experiment.settings
    drawn = f" {s.unseen_alpha or s.alpha:g}" if s.partition in ("dirichlet", "pachinko") else ""
    return f"{s.partition}{drawn}"


def _linear(what: str, x: Sequence[float], y: Sequence[float]) -> list[str]:
    """How much of a straight line the points are; the paper finds nearly one."""
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        return []
    slope = np.polyfit(x, y, 1)[0]
    return [f"{what}: {slope:.2f} points for every point of the model, correlation {np.corrcoef(x, y)[0, 1]:.3f}."]
