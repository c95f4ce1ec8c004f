"""pFedHN, Fig. 2, 7: accuracy of latecomers against how far their classes are from those of the nearest member.

The distance is the total variation between class shares. With `--alphas` groups of new clients come, one for every
alpha, as in the paper (0.1, 0.25, 0.5 and 1, for members of 0.1); without, the run's own latecomers, from its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from ...errors import SettingError
from ...settings import setting
from ..described import class_shares
from ..figure import Figure, Panels, Series
from ..finished import Finished
from . import Analysis, labels

read = Finished.read


@dataclass(frozen=True, kw_only=True)
class Settings:
    alphas: tuple[float, ...] = setting((), "of the groups of new clients; none: the run's own latecomers", above=0)
    clients: int = setting(
        0, "new clients in a group; 0: as many as came late, so that each has a member's share of the data", low=0
    )
    fresh: bool = setting(True, "deal new clients only what no member and no validator had to train or select by")
    device: str = setting("auto", "cpu, cuda, or auto: cuda where there is one")


def analyse(runs: Sequence[Finished], asked: Settings) -> Analysis:
    rows, points, gaps = [], [], []
    for run, name in zip(runs, labels(runs), strict=True):
        members = run.clients("seen")
        if not (reach := run.scores("seen")):
            raise SettingError(f"The members of {run.path} have no test examples, so there is no gap to theirs.")
        acc_train = fmean(reach.values())
        groups = _new(run, asked) if asked.alphas else {"own": run.clients("unseen")}
        line = []
        for group, late in groups.items():
            late = [row for row in late if not np.isnan(row["accuracy"])]
            if not late:
                raise SettingError(f"The run in {run.path} had no latecomers; --alphas 0.1,1 lets new clients come.")
            far = [value for seed in run.seeds for value in distances(late, members, seed)]
            reached = [row["accuracy"] for seed in run.seeds for row in late if row["seed"] == seed]
            gap = fmean(reached) - acc_train
            examples = fmean(row["train_examples"] for row in late)
            rows.append([name, group, len(late), fmean(far), fmean(reached), acc_train, gap, examples])
            line.append((fmean(far), gap))
            label = name if group == "own" else f"{name}, alpha {group}"
            text = [f"client {row['client']}" for seed in run.seeds for row in late if row["seed"] == seed]
            points.append(Series(label, far, reached, text=text))
        x, y = (list(column) for column in zip(*sorted(line), strict=True))
        gaps.append(Series(name, x, y))
    distance = "total variation to the nearest member"
    each = Figure("Each latecomer", "points", distance, "accuracy, %", points)
    mean = Figure("Latecomers less members", "lines", distance, "accuracy gap, points", gaps)
    title = "Accuracy of latecomers against their distance to members"
    columns = ["run", "alpha", "latecomers", "distance", "accuracy", "members", "gap", "examples"]
    return Analysis(title, columns, rows, Panels(title, [each, mean]))


def distances(late: Sequence[dict[str, Any]], members: Sequence[dict[str, Any]], seed: int) -> list[float]:
    """The total variation between the class shares of each latecomer of a seed and its nearest member."""
    two = [[row for row in rows if row["seed"] == seed] for rows in (late, members)]
    if not two[0]:
        return []
    known = class_shares([*two[0], *two[1]])
    far = cdist(known[: len(two[0])], known[len(two[0]) :], "cityblock") / 2
    nearest: list[float] = far.min(1).tolist()
    return nearest


def _new(run: Finished, asked: Settings) -> dict[str, list[dict[str, Any]]]:
    """The rows of new clients, a group for every alpha."""
    from ...handover.trained import Trained  # which brings PyTorch
    from ..meetings import met

    trained = Trained.load(run.path)
    return {f"{alpha:g}": met(trained, alpha, asked.clients, asked.fresh, asked.device).rows for alpha in asked.alphas}
