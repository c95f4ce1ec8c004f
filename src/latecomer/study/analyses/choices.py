"""kNN-Per, Fig. 8: the weight of the vote (lambda) that clients chose, against how many examples they keep.

From clients.csv alone. Clients chose on validation examples; the paper's figure has what is best on test examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from ...errors import SettingError
from ...settings import setting
from ..figure import Figure, Series
from ..finished import Finished
from . import Analysis, labels

read = Finished.read


@dataclass(frozen=True, kw_only=True)
class Settings:
    groups: int = setting(4, "groups of clients of about equal number, by their examples, in the table", low=1)


def analyse(runs: Sequence[Finished], asked: Settings) -> Analysis:
    rows, series, notes = [], [], []
    for run, name in zip(runs, labels(runs), strict=True):
        told = [row for row in run.rows if not np.isnan(row.get("blend", np.nan))]
        if not told:
            raise SettingError(f"{run.path} is a run of {run.method}, whose clients choose no lambda; knnper's do.")
        if run.own.get("weak") or run.own.get("prototypes") or run.own.get("datastore", "all") != "all":
            raise SettingError(
                f"clients.csv of {run.path} does not say how many examples a client keeps where some are weak, "
                "examples arrive, or prototypes stand for them."
            )
        capacity = float(run.own.get("capacity", 1.0))
        labelled = [row["train_examples"] if row.get("labelled", True) else 0 for row in told]
        kept = np.ceil(np.array(labelled) * capacity - 1e-4).clip(min=0)
        chosen = np.array([row["blend"] for row in told])
        order = kept.argsort(kind="stable")
        for some in np.array_split(order, min(asked.groups, len(order))):
            span = f"{kept[some[0]]:g} to {kept[some[-1]]:g}"
            rows.append([name, span, len(some), float(chosen[some].mean()), float((chosen[some] > 0.5).mean())])
        text = [f"client {row['client']}, {row['role']}" for row in told]
        series.append(Series(name, kept.tolist(), chosen.tolist(), text=text))
        if np.ptp(kept) and np.ptp(chosen):
            notes.append(f"{name}: rank correlation {stats.spearmanr(kept, chosen)[0]:.3f} over {len(told)} clients.")
        else:
            notes.append(f"{name}: no rank correlation, as all clients keep or chose the same.")
    title = "The weight of the vote that clients chose"
    figure = Figure(title, "points", "examples in the datastore", "lambda", series)
    return Analysis(title, ["run", "examples kept", "clients", "mean lambda", "above 1/2"], rows, figure, notes)
