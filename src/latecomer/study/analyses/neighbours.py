"""kNN-Per, Fig. 5: accuracy against the number of neighbours that vote (k)."""

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
    counts: tuple[int, ...] = setting((1, 2, 3, 5, 7, 10, 14, 20), "numbers of neighbours, the same for all", low=1)


def analyse(runs: Sequence[Trained], asked: Settings) -> Analysis:
    rows, series = [], []
    for run, name in zip(runs, labels(runs), strict=True):
        voting = Voting.of(run, asked)
        along = [voting.summary(neighbours=(count,), prototypes=0) for count in asked.counts]
        rows += [[name, count, *cells(summary)] for count, summary in zip(asked.counts, along, strict=True)]
        series.append(line(name, asked.counts, along, asked.score))
    title = "Accuracy against the number of neighbours"
    figure = Figure(title, "lines", "neighbours (k)", AXES[asked.score], series)
    return Analysis(title, ["run", "neighbours", *COLUMNS], rows, figure)
