"""Trials in a file, and what to try next: Optuna's part.

The file, of SQLite, holds trials of packs that are over, and nothing else. What is tried next is a function of them and
of the seed. So whoever was interrupted tries the same once more, and ends where it would have ended. Those of a pack
that is half over lie beside it until the others are.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import RunError, need
from ...runs.files import write
from .search import Choice, Range, Space

NAME = "latecomer"  # of the study in its file
GROUP = 4  # trials in a row that differ in sweepable settings alone, so that they share exchanges; at most
USUAL = 16  # trials, in which every combination of settings that are not sweepable should have its turn


@dataclass
class Trial:
    """Settings that were tried, and how they did."""

    number: int
    settings: dict[str, Any]
    scores: dict[int, float] = field(default_factory=dict)  # by round: the best validation score so far
    ended: bool = False  # early, as others did better

    @property
    def score(self) -> float:
        return max(self.scores.values())

    @property
    def round(self) -> int:
        """The round that is best, the first of several."""
        return min(number for number, score in self.scores.items() if score == self.score)


class Trials:
    """All trials of one search so far."""

    def __init__(self, path: Path, space: Space) -> None:
        self.optuna, self.space, self.path = need("optuna", "tune"), space, path
        self.optuna.logging.set_verbosity(self.optuna.logging.WARNING)  # it would tell of every trial
        distributions = self.optuna.distributions
        self.distributions = {
            name: distributions.CategoricalDistribution(some.values)
            if isinstance(some, Choice)
            else (distributions.IntDistribution if some.whole else distributions.FloatDistribution)(
                some.low, some.high, log=some.log
            )
            for name, some in space.items()
        }
        try:  # by `creator`, as a path within an address would be read as one
            engine = {"creator": partial(sqlite3.connect, path)}
            storage = self.optuna.storages.RDBStorage("sqlite://", engine_kwargs=engine)
            self.study = self.optuna.create_study(
                storage=storage, study_name=NAME, direction="maximize", load_if_exists=True
            )
            self.known = [self._known(one) for one in self.study.get_trials(deepcopy=False)]
        except Exception as error:  # of SQLite, of SQLAlchemy or of Optuna
            raise RunError(f"{path} cannot be used as a file of trials: {_first_line(error)}.") from error

    def _known(self, one: Any) -> Trial:
        ended = one.state == self.optuna.trial.TrialState.PRUNED
        if one.params.keys() != self.space.keys() or not one.intermediate_values:
            raise ValueError(f"trial {one.number} is not one of this search, or has no scores")
        return Trial(one.number, dict(one.params), dict(one.intermediate_values), ended)

    def add(self, trials: Sequence[Trial]) -> None:
        """Keep trials that are over."""
        states = self.optuna.trial.TrialState
        for trial in trials:
            kept = self.optuna.trial.create_trial(
                state=states.PRUNED if trial.ended else states.COMPLETE,
                value=trial.score,
                params=trial.settings,
                distributions=self.distributions,
                intermediate_values=trial.scores,
            )
            try:
                self.study.add_trial(kept)
            except Exception as error:  # of SQLite, of SQLAlchemy or of Optuna: a full disk, say
                raise RunError(
                    f"{self.path} cannot be written: {_first_line(error)}; the same command goes on."
                ) from error
            self.known.append(trial)

    def next(self, begin: int, end: int, usual: Mapping[str, Any], fixed: Sequence[str], seed: int) -> list[Trial]:
        """The trials `begin` to `end`, chosen with those before `begin` in mind.

        The very first has the `usual` settings, if they are in the space. `fixed` are those that runs that share
        exchanges cannot differ in: GROUP trials in a row have the same, and the first groups go through all there are.
        """
        sampler = self.optuna.samplers.TPESampler(seed=seed + begin, n_startup_trials=end - begin)
        study = self.optuna.create_study(direction="maximize", sampler=sampler)  # in memory
        study.add_trials(self.study.get_trials(deepcopy=False)[:begin])
        trials = self.known[:begin]
        first = usual if all(usual[name] in some for name, some in self.space.items()) else {}
        groups = self._groups(first, fixed, seed)
        size = max(1, min(GROUP, USUAL // max(1, len(groups))))
        for number in range(begin, end):
            leader = number - number % size
            if number == 0 and first:
                study.enqueue_trial(first)
            elif fixed and number > leader:
                study.enqueue_trial({name: trials[leader].settings[name] for name in fixed})
            elif leader // size < len(groups):
                study.enqueue_trial(groups[leader // size])
            asked = study.ask(self.distributions).params
            trials.append(Trial(number, {name: self._rounded(name, asked[name]) for name in self.space}))
        return trials[begin:]

    def _groups(self, first: Mapping[str, Any], fixed: Sequence[str], seed: int) -> list[dict[str, Any]]:
        """All combinations of the fixed settings, the usual one first; none where one of them has a range."""
        choices = [some.values for name in fixed if isinstance(some := self.space[name], Choice)]
        if not fixed or len(choices) < len(fixed):
            return []
        groups = [dict(zip(fixed, values, strict=True)) for values in itertools.product(*choices)]
        random.Random(seed).shuffle(groups)
        return sorted(groups, key=lambda group: any(first.get(name) != value for name, value in group.items()))

    def _rounded(self, name: str, value: Any) -> Any:
        some = self.space[name]
        return some.rounded(value) if isinstance(some, Range) else value


class Aside:
    """A file of the trials of one pack that are over while others of it are not, so that they need not be trained
    again. Whoever comes later in the pack was chosen before, and is ended by the same rule with them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def recall(self, pack: Sequence[Trial]) -> None:
        """Give those of a pack that are over their scores; what cannot be read is trained once more."""
        try:
            over = {one["number"]: one for one in json.loads(self.path.read_text(encoding="utf-8"))}
            scores = {number: {int(k): float(v) for k, v in one["scores"].items()} for number, one in over.items()}
            for trial in pack:
                if trial.number in over and over[trial.number]["settings"] == trial.settings:
                    trial.scores, trial.ended = scores[trial.number], over[trial.number]["ended"] is True
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass

    def keep(self, trials: Sequence[Trial]) -> None:
        write(self.path, json.dumps([asdict(trial) for trial in trials]))

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
