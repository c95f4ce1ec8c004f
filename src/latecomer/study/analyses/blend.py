"""kNN-Per, Fig. 2, 7: accuracy against the weight of the vote (lambda), for datastores and sigmas of several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

from ...handover.trained import Trained
from ...nets.neighbours import room
from ...settings import setting
from ..figure import AXES, Figure
from ..rescore import COLUMNS, Scoring, Voting, cells, chosen, line
from . import Analysis, labels

read = Trained.load


@dataclass(frozen=True, kw_only=True)
class Settings(Scoring):
    blends: tuple[float, ...] = setting(
        (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), "weights of the vote, the same for all", low=0, high=1
    )
    capacities: tuple[float, ...] = setting((1.0,), "shares of its examples that a client keeps", above=0, high=1)
    sigmas: tuple[float, ...] = setting((), "scales of distances; none: as in the run", above=0)


def analyse(runs: Sequence[Trained], asked: Settings) -> Analysis:
    rows, series = [], []
    for run, name in zip(runs, labels(runs), strict=True):
        voting = Voting.of(run, asked)
        for share, sigma in product(asked.capacities, asked.sigmas or (None,)):
            fixed = {"capacity": share, "weak": 0.0} | ({} if sigma is None else {"sigma": (sigma,)})
            along = [voting.summary(blends=(blend,), **fixed) for blend in asked.blends]
            kept, scale = _kept(voting, share), sigma or " or ".join(f"{one:g}" for one in voting.method.sigma)
            rows += [
                [name, share, kept, scale, blend, *cells(summary)]
                for blend, summary in zip(asked.blends, along, strict=True)
            ]
            parts = [name] * (len(runs) > 1) + [f"{kept:g} examples"] * (len(asked.capacities) > 1)
            parts += [] if sigma is None else [f"sigma {sigma:g}"]
            series.append(line(", ".join(parts), asked.blends, along, asked.score))
    title = "Accuracy against the weight of the vote"
    figure = Figure(title, "lines", "lambda: 0 the model alone, 1 the vote alone", AXES[asked.score], series)
    return Analysis(title, ["run", "capacity", "examples kept", "sigma", "lambda", *COLUMNS], rows, figure)


def _kept(voting: Voting, share: float) -> float:
    """How many training examples a client keeps, on average."""
    federations, who = voting.trained.federations, voting.asked.who
    sizes = [room(federation.weight[chosen(federation, who)], share) for federation in federations]
    return round(float(torch.cat(sizes).mean()), 1)
