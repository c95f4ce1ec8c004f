"""ODPFL-HN, Fig. 5: accuracy of latecomers with private descriptors, against how many examples these describe.

Only the answer with which a client asks for its model is private, so one training serves every epsilon. It needs
features that are averaged and bounded (`--pool mean --bound 3`). Noise is drawn once for every epsilon and share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ...errors import SettingError
from ...handover.meet import thinned
from ...handover.trained import Trained
from ...methods.odpflhn import ODPFLHN
from ...settings import setting
from ..figure import Figure
from ..rescore import Scoring, line, rescored, summarised
from . import Analysis, labels

read = Trained.load


@dataclass(frozen=True, kw_only=True)
class Settings:
    epsilons: tuple[float, ...] = setting((100.0, 10.0, 1.0), "of a latecomer's answer; it also asks without", above=0)
    delta: float = setting(1e-5, "probability that this privacy fails", above=0, high=0.999)
    shares: tuple[float, ...] = setting((0.03, 0.1, 0.3, 1.0), "of its examples that a latecomer has", above=0, high=1)
    device: str = setting("auto", "cpu, cuda, or auto: cuda where there is one")


def analyse(runs: Sequence[Trained], asked: Settings) -> Analysis:
    rows, series = [], []
    scoring = Scoring(who="latecomers", device=asked.device)
    for run, name in zip(runs, labels(runs), strict=True):
        method = run.method
        if not isinstance(method, ODPFLHN):
            raise SettingError(f"{run.path} is a run of {run.name}; only descriptors of odpflhn can be private.")
        fewer = {share: [thinned(one, share) for one in run.federations] for share in sorted(asked.shares)}
        late = [[one.train.sizes[one.first_late :].double().mean().item() for one in some] for some in fewer.values()]
        sizes = [round(fmean(some), 1) for some in late]
        for epsilon in (0.0, *sorted(asked.epsilons, reverse=True)):
            private = replace(method, epsilon=epsilon, delta=asked.delta, epsilon_budget=0.0)
            along = [summarised(rescored(run, private, run.states, some, scoring)) for some in fewer.values()]
            label = f"epsilon {epsilon:g}" if epsilon else "no privacy"
            rows += [
                [name, label, share, size, found["accuracy"], found["std"]]
                for share, size, found in zip(fewer, sizes, along, strict=True)
            ]
            series.append(line(label if len(runs) == 1 else f"{name}, {label}", sizes, along, "accuracy"))
    title = "Accuracy of latecomers with private descriptors"
    figure = Figure(title, "lines", "examples of a latecomer, on average", "accuracy, %", series, log_x=True)
    return Analysis(title, ["run", "privacy", "share", "examples", "accuracy", "std"], rows, figure)
