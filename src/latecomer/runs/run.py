"""A run: an experiment in its folder, from the first round to the result, stopped and resumed as often as need be."""

from __future__ import annotations

import dataclasses
import os
import re
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch

from .. import tree
from ..data import Federation
from ..engines import at_hand, computes_on
from ..errors import RunError
from ..evaluate import Scores
from ..train import Best, Training
from .earlier import Earlier, introduction
from .experiment import Experiment, surroundings
from .files import check_name
from .folder import Folder
from .settings import Settings
from .track import Tracked, tracked

Progress = Callable[[Training, dict[str, Any] | None], None]
"""Called after every round, with the metrics where it was evaluated."""
Make = Callable[[Experiment], Training]
"""How an experiment becomes a training: by `Experiment.training`, unless its clients are elsewhere."""


class Run:
    """An experiment in its folder."""

    def __init__(self, experiment: Experiment, folder: Folder, training: Training, told: Tracked) -> None:
        self.experiment, self.folder, self.training, self.told = experiment, folder, training, told
        self.stop = False  # set from outside (Ctrl-C): the round is finished, then a checkpoint is written
        self._saved = time.monotonic()

    @staticmethod
    def begin(experiment: Experiment, make: Make = Experiment.training, files: Mapping[str, str] | None = None) -> Run:
        """A new run; whatever can be wrong is found before the folder appears, with further `files` in it."""
        s = experiment.settings
        path = Path(s.out) / _name(s)
        if s.name and os.path.lexists(path):
            raise RunError(f"The run folder {path} exists already; choose another --name, or latecomer resume {path}.")
        told = tracked(s)
        training = make(experiment)
        if s.start:
            start(training, Path(s.start))
        if s.continue_from:
            Earlier(Path(s.continue_from)).go_on(training)
        # Engines, devices and thread counts round differently: whoever resumes or repeats this must take the same ones.
        chosen: dict[str, Any] = {
            "engine": type(training.engine).__name__.lower(),
            "device": s.device if s.device != "auto" else computes_on(training.engine),
            "threads": torch.get_num_threads(),
        }
        experiment = dataclasses.replace(experiment, settings=dataclasses.replace(s, **chosen))
        folder = Folder.create(path, experiment.toml(training.federations), another=not s.name, files=files)
        return Run(experiment, folder, training, told)

    @staticmethod
    def resume(
        path: Path,
        prepare: Callable[[Settings], None] = lambda _: None,
        make: Make = Experiment.training,
        **place: Any,
    ) -> Run:
        """Go on where a stopped run's last checkpoint is. The folder is held from here to the end of `go`.

        `prepare` is called with the run's settings before anything is computed; `host.prepare` gives the process the
        threads that the run began with, without which its last bits may differ (and a note says so). `place` are
        settings of a `Place` that a run by --engine ray goes on with, and of `Tracking`, in the place of its own.
        """
        folder = Folder.open(path)
        folder.hold()
        try:
            return Run._resumed(folder, prepare, make, place)
        except BaseException:
            folder.release()
            raise

    @staticmethod
    def _resumed(folder: Folder, prepare: Callable[[Settings], None], make: Make, place: Mapping[str, Any]) -> Run:
        path = folder.path
        if folder.finished:
            raise RunError(f"The run in {path} is finished; its result is in {path / 'result.json'}.")
        experiment = Experiment.read(folder.settings, path / "settings.toml")
        settings, found = experiment.settings, folder.load()
        there = dataclasses.replace(settings, device=at_hand(settings.device), **place)
        here = dataclasses.replace(experiment, settings=there)
        prepare(dataclasses.replace(settings, track=there.track))
        told = tracked(there)
        training = make(here)
        if _about(folder).get("splits") != [federation.digest() for federation in training.federations]:
            raise RunError(f"The data or their split are not those that the run in {path} began with; put them back.")
        if found is not None:
            _check_facts(found[1], training, path)
            restore(training, *found)
        elif settings.start:
            start(training, Path(settings.start))
        elif settings.continue_from:
            Earlier(Path(settings.continue_from)).go_on(training)
        if found is None:
            training.notes.append(
                f"The run in {path} was stopped before its first checkpoint and starts from round {training.round}."
            )
        training.notes += _changes(_about(folder), surroundings(here.settings.device))
        folder.rewind()
        return Run(experiment, folder, training, told)

    def go(self, progress: Progress = lambda *_: None) -> dict[str, Any] | None:
        """Train to the end and return the result; None if it was stopped (a checkpoint lies in the folder)."""
        with self.folder.held(), self.told.following(self.folder):
            return self._go(progress)

    def _go(self, progress: Progress) -> dict[str, Any] | None:
        if self.experiment.settings.trace_descriptors and not self.training.round:
            self._describe(f"round-{0:08d}", self.training.states)  # before training, to compare with
        for metrics in self.training.go():
            if metrics is not None:
                self._log(metrics)
                if self.experiment.settings.trace_descriptors:
                    self._describe(f"round-{self.training.round:08d}", self.training.states)
            progress(self.training, metrics)
            if self.stop:
                self.checkpoint()
                return None
            if metrics is not None and time.monotonic() - self._saved >= self.experiment.settings.checkpoint_seconds:
                self.checkpoint()
        self.checkpoint()
        result, scores = self.training.finish()
        s = self.experiment.settings
        result = {"method": s.method, "data": s.data, **result}
        self._describe("selected")
        self.folder.write_result(result, client_table(self.training.federations, scores))
        self.told.finished(result)
        return result

    def _describe(self, name: str, states: Sequence[tree.Tree] | None = None) -> None:
        """Keep what describes the clients, for whoever studies the run. Real clients are not asked once more."""
        if self.experiment.settings.engine != "flower" and (found := self.training.described(states)):
            self.folder.keep(f"descriptors/{name}", found)

    def _log(self, metrics: dict[str, Any]) -> None:
        self._drain()
        self.folder.append("metrics.jsonl", [metrics])
        self.told.evaluated(metrics)

    def _drain(self) -> None:
        lines = self.training.drain()
        self.folder.append("ledger.jsonl", lines)
        self.told.exchanged(lines)

    def checkpoint(self) -> None:
        """Write all that is needed to go on from here; `go` does it now and then, and at the end."""
        self._drain()
        self.folder.save(*snapshot(self.training))
        self._saved = time.monotonic()


def snapshot(training: Training) -> tuple[tree.Tree, dict[str, Any]]:
    """All that a training needs to go on bit for bit."""
    tensors: tree.Tree = {}
    for run, state in enumerate(training.states):
        part: tree.Tree = {"state": state, "data": training.federations[run].fingerprints}
        if kept := training.engine.memories(run):
            part["memory"] = kept
        if released := training.tally.snapshot(run):
            part["released"] = released
        if (best := training.best[run]) is not None:
            scores = best.scores
            found = {"counts": scores.counts, "failed": scores.failed, "report": scores.report}
            part["best"] = {"state": best.state, "scores": found}
        tensors[str(run)] = part
    facts = {
        "round": training.round,
        "evaluations": training.evaluations,
        "seconds": training.seconds,
        "sent": [dict(sent) for sent in training.sent],
        "diverged": training.diverged,
        "skipped": training.skipped,
        "best": [best and {"round": best.round, "validation": best.validation} for best in training.best],
        **introduction(training),
    }
    return tensors, facts


def restore(training: Training, tensors: tree.Tree, facts: Mapping[str, Any]) -> None:
    """Give a training what a checkpoint holds; the counterpart of `snapshot`."""
    device = training.engine.device
    training.round, training.evaluations, training.seconds = (facts[key] for key in ("round", "evaluations", "seconds"))
    training.sent = [dict(sent) for sent in facts["sent"]]
    training.diverged, training.skipped = list(facts["diverged"]), list(facts["skipped"])
    for run, federation in enumerate(training.federations):
        part = tensors.get(str(run), {})
        training.states[run] = tree.to(part.get("state", {}), device)
        if "memory" in part:
            training.engine.remember(run, tree.to(part["memory"], device))
        if "released" in part:
            training.tally.restore(run, part["released"])
        if (best := facts["best"][run]) is not None:
            scores = Scores(torch.arange(federation.members), **part["best"]["scores"])
            state = tree.to(part["best"].get("state", {}), device)
            training.best[run] = Best(best["round"], best["validation"], state, scores)


def _check_facts(facts: Mapping[str, Any], training: Training, path: Path) -> None:
    """A sentence where a checkpoint does not say all that `restore` needs."""
    runs, known = len(training.states), training.sent[0].keys()

    def one_a_run(values: Any, keys: Set[str]) -> bool:
        each = isinstance(values, list) and len(values) == runs
        return each and all(isinstance(part, dict) and keys <= part.keys() for part in values)

    blank = {"round": 0, "validation": 0.0}
    fits: dict[str, Callable[[Any], bool]] = {
        "evaluations": lambda value: type(value) is int,
        "seconds": lambda value: isinstance(value, float | int),
        "sent": lambda value: one_a_run(value, known),
        "diverged": lambda value: isinstance(value, list) and len(value) == runs,
        "skipped": lambda value: isinstance(value, list) and [type(one) for one in value] == [int] * runs,
        "best": lambda value: isinstance(value, list) and one_a_run([best or blank for best in value], blank.keys()),
    }
    for name, fit in fits.items():
        if name not in facts or not fit(facts[name]):
            problem = f"{name} in latest.json cannot be right" if name in facts else f"latest.json lacks {name}"
            raise RunError(f"The checkpoint in {path / 'checkpoint'} is damaged: {problem}.")


def start(training: Training, path: Path) -> None:
    """Begin with the models of another run, each seed with that of its own best round."""
    folder = Folder.open(path)
    states = [part.get("best", {}).get("state", {}) for part in folder.peek().values()]
    if any("params" not in state for state in states):
        raise RunError(f"The run in {path} has no model that is the same for all clients, which --start needs.")
    training.adopt([state["params"] for state in states], f"--start {path}")
    if _about(folder).get("splits") != [federation.digest() for federation in training.federations]:
        training.notes.append(
            f"The model of {path} was trained on another split of the data, so it may have seen what is held out here."
        )


def _about(folder: Folder) -> Mapping[str, Any]:
    """Where and on which splits a run began."""
    try:
        about = tomllib.loads(folder.settings).get("about")
    except ValueError as error:
        raise RunError(f"{folder.path / 'settings.toml'} is not TOML: {error}.") from error
    return about if isinstance(about, dict) else {}


def _changes(before: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """A note where a run goes on elsewhere than it began."""
    changed = [key for key, value in now.items() if before.get(key) != value]
    then, after = (" and ".join(f"{key} {values.get(key, 'unknown')}" for key in changed) for values in (before, now))
    return [f"This run began with {then}, and goes on with {after}: not bit for bit the same."] if changed else []


def _name(s: Settings) -> str:
    """What a run folder is called."""
    if s.name:
        check_name(s.name)
    data = re.sub(r"[/:\\]", "_", re.sub("^(npz|leaf|hf):", "", s.data))[-100:]
    return s.name or f"{s.method}-{data}-{time.strftime('%Y%m%d-%H%M%S')}"


def client_table(
    federations: Sequence[Federation], scores: Sequence[tuple[Scores, Scores | None]]
) -> list[dict[str, Any]]:
    """One row a client and seed: its accuracies, what it says of itself, and what is known about it."""
    rows = []
    for federation, pair in zip(federations, scores, strict=True):
        for score in (part for part in pair if part is not None):
            columns = {
                "accuracy": score.accuracy("test"),
                "own_classes": score.accuracy("test", "own"),
                "val_accuracy": score.accuracy("val"),
                "val_own_classes": score.accuracy("val", "own"),
                **score.report,
            }
            for k, client in enumerate(score.ids.tolist()):
                told = {name: round(float(column[k]), 3) for name, column in columns.items()}
                rows.append({"seed": federation.seed, "client": client, **told, **federation.traits(client)})
    return rows
