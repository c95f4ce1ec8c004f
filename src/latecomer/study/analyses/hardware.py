"""kNN-Per, Fig. 9: half of the clients have less room for examples than the others, in sum as much as before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...handover.trained import Trained
from ...settings import setting
from ..figure import AXES, Figure
from ..rescore import COLUMNS, Scoring, Voting, cells, line
from . import Analysis, labels

read = Trained.load


@dataclass(frozen=True, kw_only=True)
class Settings(Scoring):
    gaps: tuple[float, ...] = setting(
        (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
        "weak clients have a capacity of 1/2 less this, strong ones more",
        low=0,
        high=0.5,
    )


def analyse(runs: Sequence[Trained], asked: Settings) -> Analysis:
    rows, series = [], []
    for run, name in zip(runs, labels(runs), strict=True):
        voting = Voting.of(run, asked)
        along = [voting.summary(weak=0.5, capacity=0.5 + gap, weak_capacity=0.5 - gap) for gap in asked.gaps]
        rows += [[name, gap, *cells(summary)] for gap, summary in zip(asked.gaps, along, strict=True)]
        series.append(line(name, asked.gaps, along, asked.score))
    title = "Accuracy against unequal capacities"
    figure = Figure(title, "lines", "capacity of strong clients above 1/2", AXES[asked.score], series)
    note = "Who is weak is drawn by lot, half of the clients on average."
    return Analysis(title, ["run", "gap", *COLUMNS], rows, figure, [note])
