"""kNN-Per, Fig. 1, 6, 10: accuracy against the share of its examples that a client keeps.

With `--by datastore` the datastores of kNN-Per hold a part of the clients' examples. With `--by data` clients have no
more than that part of their training examples, whatever the method, so that methods can be set beside each other.
The table says of every part how much more it gives than no examples, and how much less than all, where these are asked
for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...handover.meet import thinned
from ...handover.trained import Trained
from ...settings import setting
from ..figure import AXES, Figure
from ..rescore import COLUMNS, Scoring, Voting, cells, line, rescored, summarised
from . import Analysis, labels

read = Trained.load


@dataclass(frozen=True, kw_only=True)
class Settings(Scoring):
    capacities: tuple[float, ...] = setting(
        (0.0, 0.1, 0.2, 0.33, 0.5, 0.75, 1.0), "shares of a client's examples; 0: the model alone", low=0, high=1
    )
    by: Literal["datastore", "data"] = setting(
        "datastore", "what is made smaller: kNN-Per's datastores, or the latecomers' data (any method; 0 is left out)"
    )


def analyse(runs: Sequence[Trained], asked: Settings) -> Analysis:
    rows, series = [], []
    for run, name in zip(runs, labels(runs), strict=True):
        along = _datastores(run, asked) if asked.by == "datastore" else _data(run, asked)
        alone, whole = (along.get(share, {}).get(asked.score, math.nan) for share in (0.0, 1.0))
        for share, summary in along.items():
            rows.append([name, share, *cells(summary), summary[asked.score] - alone, whole - summary[asked.score]])
        series.append(line(name, [*along], [*along.values()], asked.score))
    title = "Accuracy against capacity"
    figure = Figure(title, "lines", "capacity, share of a client's examples", AXES[asked.score], series)
    return Analysis(title, ["run", "capacity", *COLUMNS, "over none", "below all"], rows, figure)


def _datastores(run: Trained, asked: Settings) -> dict[float, dict[str, float]]:
    """Nobody is weak: all clients have the same share."""
    voting = Voting.of(run, asked)
    return {
        share: voting.summary(**({"capacity": share, "weak": 0.0} if share else {"blends": (0.0,)}))
        for share in asked.capacities
    }


def _data(run: Trained, asked: Settings) -> dict[float, dict[str, float]]:
    late = replace(asked, who="latecomers")  # what a member keeps was learned from all its data
    return {
        share: summarised(rescored(run, run.method, run.states, [thinned(one, share) for one in run.federations], late))
        for share in asked.capacities
        if share
    }
