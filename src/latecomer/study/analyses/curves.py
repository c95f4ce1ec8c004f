"""pFedHN, Fig. 5: accuracy throughout training.

A line a run, of the scores at its evaluations: the mean over seeds in a band of a standard deviation. Latecomers have
some where a run watched them (`--watch-unseen`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...errors import SettingError
from ...settings import setting
from ..compare import course
from ..figure import AXES, Figure, Score, banded
from ..finished import Finished, Group
from . import Analysis, labels

read = Finished.read


@dataclass(frozen=True, kw_only=True)
class Settings:
    who: Literal["latecomers", "members"] = setting("members", "whose scores")
    score: Score = setting("accuracy", "which score")


def analyse(runs: Sequence[Finished], asked: Settings) -> Analysis:
    group: Group = "seen" if asked.who == "members" else "unseen"
    rows, series = [], []
    for run, name in zip(runs, labels(runs), strict=True):
        points = [point for point in course(run, group, asked.score) if not math.isnan(point[1])]
        if not points:
            hint = ": --watch-unseen evaluates them throughout" if group == "unseen" else ""
            raise SettingError(f"The run in {run.path} has no {asked.score} of its {asked.who} on the way{hint}.")
        rows += [[name, *point] for point in points]
        rounds, means, around = (list(column) for column in zip(*points, strict=True))
        series.append(banded(name, rounds, means, around))
    title = f"Accuracy of {asked.who} throughout training"
    figure = Figure(title, "lines", "round", AXES[asked.score], series)
    return Analysis(title, ["run", "round", asked.score, "std"], rows, figure)
