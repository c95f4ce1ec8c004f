"""PeFLL, Fig. 4: accuracy of new clients that are less alike, or more, than those of the training: other alphas.

One training, and groups of new clients whose class shares are drawn from Dirichlet distributions. The run is not
trained again; `--local` lets the same clients train alone, for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...handover.trained import Trained
from ...methods.local import Local
from ...settings import setting
from ..figure import AXES, Figure, Score
from ..meetings import met
from ..rescore import COLUMNS, cells, line
from . import Analysis, labels

read = Trained.load


@dataclass(frozen=True, kw_only=True)
class Settings:
    alphas: tuple[float, ...] = setting(
        (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0), "of the groups of new clients", above=0
    )
    clients: int = setting(
        0, "new clients in a group; 0: as many as came late, so that each has a member's share of the data", low=0
    )
    local: bool = setting(False, "also let the new clients of the first run train alone")
    local_lr: float = setting(0.01, "learning rate of those", above=0)
    fresh: bool = setting(True, "deal only what no member and no validator had to train or select by")
    score: Score = setting("accuracy", "what the figure shows; the table has all of them")
    device: str = setting("auto", "cpu, cuda, or auto: cuda where there is one")


def analyse(runs: Sequence[Trained], asked: Settings) -> Analysis:
    rows, series = [], []
    servers = dict(zip(labels(runs), runs, strict=True))
    if asked.local:
        servers["local, no server"] = _alone(runs[0], asked.local_lr)
    for name, trained in servers.items():
        along = [met(trained, alpha, asked.clients, asked.fresh, asked.device) for alpha in asked.alphas]
        rows += [
            [name, alpha, *cells(group.summary), group.examples]
            for alpha, group in zip(asked.alphas, along, strict=True)
        ]
        series.append(line(name, asked.alphas, [group.summary for group in along], asked.score))
    title = "Accuracy of new clients against alpha"
    figure = Figure(title, "lines", "alpha of new clients", AXES[asked.score], series)
    return Analysis(title, ["run", "alpha", *COLUMNS, "examples"], rows, figure)


def _alone(run: Trained, lr: float) -> Trained:
    """A server that does nothing, for clients that train alone."""
    method = Local(task=run.method.task, clients=run.method.clients, members=run.method.members, lr=lr)
    return replace(run, method=method, states=[{} for _ in run.states])
