"""A finished run scored again: its servers with other settings of their method. Nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .. import tree
from ..clients import Engine
from ..data import Federation
from ..engines import at_hand, make
from ..errors import SettingError, within_memory
from ..evaluate import Scores, evaluate, over_seeds
from ..handover.trained import Trained
from ..method import Method
from ..methods.knnper import KnnPer
from ..settings import setting
from ..sweep.lockstep import Lockstep
from .figure import Score, Series, banded

Who = Literal["auto", "latecomers", "members", "all"]
COLUMNS = ["accuracy", "std", "own classes", "pooled", "bottom decile"]
"""What a table says of scores, in percent; the spread is over seeds."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What analyses that score again can all be told."""

    who: Who = setting("auto", "whose scores; auto: the latecomers', or the members' where there are none")
    score: Score = setting("accuracy", "what the figure shows; the table has all of them")
    device: str = setting("auto", "cpu, cuda, or auto: cuda where there is one")


def chosen(federation: Federation, who: Who) -> Tensor:
    """The clients that are scored."""
    late = torch.arange(federation.first_late, len(federation))
    members = torch.arange(federation.members)
    if who == "latecomers" and not len(late):
        raise SettingError("The run had no latecomers; --who members scores its members.")
    if who == "auto":
        return late if len(late) else members
    return {"latecomers": late, "members": members, "all": torch.cat([members, late])}[who]


def engine_for(run: Trained, method: Method, federations: Sequence[Federation], device: str) -> Engine:
    """What scores a run again: client by client if it was trained so. There is nothing to replay."""
    name = "loop" if run.experiment.settings.engine == "loop" else "vector"
    return make(name, method, federations, at_hand(device), graphs=False)


@within_memory()
def rescored(
    trained: Trained, method: Method, states: Sequence[tree.Tree], federations: Sequence[Federation], asked: Scoring
) -> list[Scores]:
    """Scores under a method with these states, one a seed."""
    engine = engine_for(trained, method, federations, asked.device)
    here = [tree.to(state, engine.device) for state in states]
    ids = [chosen(federation, asked.who) for federation in federations]
    return evaluate([method] * len(here), here, Lockstep(engine), ids, 1)


@dataclass(frozen=True, eq=False)
class Voting:
    """Clients that vote by their neighbours: kNN-Per on the common model of a run."""

    trained: Trained
    method: KnnPer
    states: list[tree.Tree]
    asked: Scoring

    @staticmethod
    def of(trained: Trained, asked: Scoring) -> Voting:
        """A run of kNN-Per as it was set, or with kNN-Per's defaults any that has one model for all clients."""
        method, models = trained.method, [state.get("params", {}) for state in trained.states]
        shapes = method.task.model.shapes
        if any({name: getattr(leaf, "shape", None) for name, leaf in model.items()} != shapes for model in models):
            raise SettingError(
                f"{trained.path} is a run of {trained.name}, which has no model that is the same for all clients; "
                "this needs a run of knnper, or of fedavg, say."
            )
        known = {"task": method.task, "clients": method.clients, "members": method.members}
        voting = method if isinstance(method, KnnPer) else KnnPer(**known)  # type: ignore[arg-type]
        return Voting(trained, voting, [{"params": model} for model in models], asked)

    def scores(self, **settings: Any) -> list[Scores]:
        """With other settings of kNN-Per."""
        method = replace(self.method, **settings)
        return rescored(self.trained, method, self.states, self.trained.federations, self.asked)

    def summary(self, **settings: Any) -> dict[str, float]:
        return summarised(self.scores(**settings))


def summarised(scores: Sequence[Scores]) -> dict[str, float]:
    """Means over seeds, and deviations, of which a single seed has none."""
    alone = {"std": math.nan, "own_std": math.nan} if len(scores) == 1 else {}
    return over_seeds(scores) | alone


def cells(summary: Mapping[str, float]) -> list[float]:
    """A summary as `COLUMNS` has it."""
    return [summary[name] for name in ("accuracy", "std", "own_classes", "pooled", "bottom_decile")]


def line(name: str, x: Sequence[float], summaries: Sequence[Mapping[str, float]], score: Score) -> Series:
    """Scores along a setting; with several seeds the band is a standard deviation wide on either side."""
    spread = {"accuracy": "std", "own_classes": "own_std"}.get(score, "")
    around = [summary.get(spread, 0.0) for summary in summaries]
    return banded(name, list(x), [summary[score] for summary in summaries], around)
