"""kNN-Per, Fig. 11: accuracy where a few learned prototypes a class stand for a client's examples (ProtoNN).

Nothing of the common model is trained; prototypes are fitted by every client, as kNN-Per does when it personalises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...handover.trained import Trained
from ...settings import setting
from ..figure import AXES, Figure
from ..rescore import COLUMNS, Scoring, Voting, cells, chosen, line
from . import Analysis, labels

read = Trained.load


@dataclass(frozen=True, kw_only=True)
class Settings(Scoring):
    prototypes: tuple[int, ...] = setting((1, 2, 4, 8), "prototypes a class", low=1)
    projections: tuple[int, ...] = setting((0, 8, 32), "widths of the learned projection; 0: none", low=0)


def analyse(runs: Sequence[Trained], asked: Settings) -> Analysis:
    rows, series = [], []
    for run, name in zip(runs, labels(runs), strict=True):
        voting = Voting.of(run, asked)
        whole = voting.summary(prototypes=0)
        rows.append([name, "all examples", "", 1.0, *cells(whole)])
        for width in asked.projections:
            along = [voting.summary(prototypes=each, projection=width) for each in asked.prototypes]
            rows += [
                [name, each, width or "none", round(_memory(voting, each, width), 3), *cells(summary)]
                for each, summary in zip(asked.prototypes, along, strict=True)
            ]
            label = f"projection to {width}" if width else "no projection"
            series.append(line(f"{name}, {label}" if len(runs) > 1 else label, asked.prototypes, along, asked.score))
        series.append(line(f"{name}, all examples", asked.prototypes, [whole] * len(asked.prototypes), asked.score))
    title = "Accuracy with prototypes in the place of examples"
    figure = Figure(title, "lines", "prototypes a class", AXES[asked.score], series)
    notes = ["Memory is the numbers that prototypes, their scores and the projection take, of those of all examples."]
    return Analysis(title, ["run", "prototypes", "projection", "memory", *COLUMNS], rows, figure, notes)


def _memory(voting: Voting, each: int, width: int) -> float:
    """Numbers that a client stores, as a share of its features: prototypes of its own classes, not of all."""
    task = voting.method.task
    features = task.model.shapes[f"{task.model.last}.weight".lstrip(".")][1]
    shares = []
    for federation in voting.trained.federations:
        for client in chosen(federation, voting.asked.who).tolist():
            rows = federation.train[client]
            held = len(federation.examples.y[rows.long()].unique())
            stored = held * each * ((width or features) + task.classes) + width * features
            shares.append(stored / max(1, len(rows) * features))
    return float(torch.tensor(shares).mean())
