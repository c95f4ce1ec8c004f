"""One search: a method on a split of its own, many settings side by side, judged by validation data alone."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from ... import methods, train
from ...data.federation import Federation
from ...engines import pick_device, waking
from ...engines.auto import faster
from ...errors import RunError, SettingError
from ...plan import Plan
from ...runs.experiment import Experiment
from ...runs.files import locked, reading, write
from ...runs.settings import HOST
from ...settings import dump, flag, settings_of
from .search import Choice, Space, Tuning, space
from .trials import Aside, Trial, Trials

RUNGS = (1 / 4, 1 / 2)  # of the rounds, after which the worse half of the trials ends
FEWEST = 4  # trials that were there, before any is told to be worse than others
Progress = Callable[[str], None]
"""Told in words how far a search is."""


@dataclasses.dataclass(frozen=True)
class Search:
    """A method, and what is tried of it."""

    base: Experiment  # a trial with the usual settings
    values: Mapping[str, Any]  # what it was made of
    tuning: Tuning
    space: Space

    @staticmethod
    def of(name: str, values: Mapping[str, Any], tuning: Tuning, given: str | Mapping[str, Any] = "") -> Search:
        """Checked, as far as can be without data. `values` are settings of a run, `given` a search as a table."""
        values = {**values, **tuning.settings}
        base = Experiment.parse(name, values)
        for word in ("start", "continue_from"):
            if getattr(base.settings, word):
                raise SettingError(f"Every trial begins anew; leave {flag(word)} out.")
        return Search(base, values, tuning, space(given or tuning.search, base, methods.get(name)))

    def with_settings(self, settings: Mapping[str, Any]) -> Experiment:
        """A trial with these settings."""
        return Experiment.parse(self.base.settings.method, {**self.values, **settings})

    def chosen(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """These settings, which may be text, as numbers."""
        experiment = self.with_settings(settings)
        every = {**dataclasses.asdict(experiment.settings), **experiment.own}
        return {name: every[name] for name in settings}

    @property
    def usual(self) -> dict[str, Any]:
        """What is searched, as it would be without a search."""
        every = {**dataclasses.asdict(self.base.settings), **self.base.own}
        return {name: self._spelt(name, every[name]) for name in self.space}

    def _spelt(self, name: str, value: Any) -> Any:
        """A value as the search has it, where that is a text."""
        some = self.space[name]
        words = some.values if isinstance(some, Choice) else ()
        return next((word for word in words if self.chosen({name: word})[name] == value), value)

    @property
    def fixed(self) -> list[str]:
        """The settings that runs which share exchanges cannot differ in."""
        own = settings_of(methods.get(self.base.settings.method))
        return [name for name in self.space if name not in own or not own[name].metadata["sweepable"]]

    def plan(self) -> dict[str, Any]:
        """What must be the same for a search to go on, as its file holds it."""
        s = self.base.settings  # the engine counts: others round differently, and another setting may come out best
        run = {name: value for name, value in dataclasses.asdict(s).items() if name not in HOST - {"engine"}}
        budget = {"pack": self.tuning.pack, "prune": self.tuning.prune}
        tried = {name: str(some) for name, some in self.space.items()}
        return tomllib.loads(dump({"search": tried, "budget": budget, "run": run, "method": dict(self.base.own)}))


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What a search came to."""

    path: Path
    search: Search
    trials: Sequence[Trial]

    @property
    def best(self) -> Trial:
        return max(self.trials, key=lambda trial: trial.score)  # the first of several

    @property
    def settings(self) -> dict[str, Any]:
        return self.search.chosen(self.best.settings)


def tune(search: Search, path: Path, progress: Progress = lambda _: None) -> Tuned:
    """Try settings until the budget is spent, in a folder where trials are kept; what is there already counts.

    Interrupted, it loses the trials that were under way: those that share exchanges with the one at work, not those of
    the pack that are over. The best settings are in `tuned.toml` at the end.
    """
    s = search.base.settings
    with waking(s.device):
        federations = search.base.federations()
    _check_judges(federations[0])
    method = search.base.method(federations)
    with _held(path, search.plan()) as plan:
        engine = plan["run"]["engine"]
        if engine == "auto":  # engines round differently: whoever goes on takes the same
            engine = faster(method, federations, pick_device(s.device), s.graphs)
            write(path / "plan.toml", dump(plan | {"run": plan["run"] | {"engine": engine}}))
        trials, budget = Trials(path / "trials.db", search.space), search.tuning
        while len(trials.known) < budget.trials:
            begin = len(trials.known) - len(trials.known) % budget.pack
            end = min(begin + budget.pack, budget.trials)
            pack = trials.next(begin, end, search.usual, search.fixed, budget.tune_seed)
            pack = pack[len(trials.known) - begin :]  # some are known, if somebody asks for more of them
            aside = Aside(path / "pack.json")
            aside.recall(pack)
            _train(search, federations, engine, pack, trials.known, progress, aside.keep)
            trials.add(pack)
            aside.clear()
        tuned = Tuned(path, search, trials.known[: budget.trials])
        write(path / "tuned.toml", dump(tuned.settings))
    return tuned


def over(search: Search, path: Path) -> Tuned | None:
    """What a search came to whose budget is spent, without its data; None: it is not, or has not begun."""
    if not (path / "trials.db").is_file():
        return None
    with _held(path, search.plan()):
        known = Trials(path / "trials.db", search.space).known
    trials = search.tuning.trials  # no more than others may try, though some were tried when there were more
    return Tuned(path, search, known[:trials]) if len(known) >= trials else None


def _check_judges(federation: Federation) -> None:
    """A sentence where no validation score could be had."""
    start, judges = federation.rows("val").start, federation.validators
    first, last = (federation.members, federation.first_late) if judges else (0, federation.members)
    if start[first] == start[last]:
        raise SettingError("Nothing is held out to choose settings by; give --validation a share above 0.")


def _all_alike(search: Search, federations: Sequence[Federation]) -> bool:
    """Whether a trial's rounds all come to the same: strangers judge, and no server learns anything to give them."""
    s = search.base.settings
    if not federations[0].validators or s.lr_schedule != "constant":
        return False
    return not search.base.method(federations).init(torch.Generator().manual_seed(s.seed))


def _train(
    search: Search,
    federations: Sequence[Federation],
    engine: str,
    pack: Sequence[Trial],
    known: Sequence[Trial],
    progress: Progress,
    keep: Callable[[Sequence[Trial]], None],
) -> None:
    """Train the trials of a pack that have no scores yet side by side; the worse of them end early.

    `keep` is told of those that are over whenever trials that share exchanges are.
    """
    s, runs = search.base.settings, []
    batch = [trial for trial in pack if not trial.scores]
    rounds, every = (1, 1) if _all_alike(search, federations) else (s.rounds, s.evaluate_every)
    for trial in batch:
        experiment = search.with_settings(trial.settings)
        plan = {name: getattr(experiment.settings, name) for name in settings_of(Plan)}
        plan |= {"rounds": rounds, "evaluate_every": every}
        runs.append((experiment.method(federations), federations, plan))
    rungs = {_evaluated(rounds * share, every, rounds) for share in RUNGS}
    best = [[0.0] * len(federations) for _ in batch]

    def score(place: int, metrics: dict[str, Any]) -> None:
        """Every seed selects its round, as in a run."""
        best[place] = [
            max(pair) for pair in zip(best[place], (run["validation"] for run in metrics["runs"]), strict=True)
        ]
        batch[place].scores[metrics["round"]] = fmean(best[place])

    def stop(places: Sequence[int]) -> Sequence[int]:
        number = max(batch[places[0]].scores)
        leading = max(trial.score for trial in (*known, *pack) if trial.scores)
        first, last = (batch[place].number for place in (places[0], places[-1]))
        progress(
            f"trials {first} to {last} of {search.tuning.trials}: {len(places)} going, "
            f"round {number} of {rounds}, best {leading:.1f} %"
        )
        if number >= rounds:
            keep([trial for trial in pack if trial.scores])
            return places  # before anybody looks at latecomers, who are for tests
        if not search.tuning.prune or number not in rungs:
            return []
        there = [trial.scores[number] for trial in (*known, *pack) if number in trial.scores]
        worse = (
            [place for place in places if batch[place].scores[number] < median(there)] if len(there) >= FEWEST else []
        )
        for place in worse:
            batch[place].ended = True
        if len(worse) == len(places):
            keep([trial for trial in pack if trial.scores])
        return worse

    train.together(runs, engine, s.device, chunk=s.chunk, graphs=s.graphs, progress=score, stop=stop, judged=True)


def _evaluated(number: float, every: int, rounds: int) -> int:
    """The first evaluation after so many rounds."""
    return min(-int(-number // every) * every, rounds)


@contextmanager
def _held(path: Path, plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The plan of a search in its folder, which no other process works in; new, or the same as when it began."""
    file = path / "plan.toml"
    if not os.path.lexists(file):
        write(file, dump(plan))
    with reading(path):
        try:
            lock = locked(path)
        except BlockingIOError as error:
            raise RunError(f"Another process is at work in {path}; wait for it, or stop it first.") from error
    try:
        yield _same(file, plan)
    finally:
        os.close(lock)


def _same(file: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """The plan that a search began with, if this one agrees."""
    try:
        stored = tomllib.loads(file.read_text(encoding="utf-8"))
        before = {key: {**stored[key]} for key in plan}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise RunError(f"{file} cannot be read as the plan of a search: {error}.") from error
    if plan["run"]["engine"] == "auto":
        plan["run"]["engine"] = before["run"].get("engine", "auto")
    for key, table in plan.items():
        for name in {**before[key], **table}:
            if before[key].get(name) != table.get(name):
                raise RunError(
                    f"{file.parent} holds a search with another {name}: {_told(before[key], name)} there, "
                    f"{_told(table, name)} here; choose another --name, or with --recipe another --out."
                )
    return before


def _told(table: Mapping[str, Any], name: str) -> str:
    return repr(table[name]) if name in table else "none"
