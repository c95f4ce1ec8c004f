"""A run: an experiment in its folder, from the first round to the result, stopped and resumed as often as need be."""

from __future__ import annotations

import dataclasses
import re
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import tree
from .data import Federation
from .errors import RunError
from .evaluate import Scores
from .experiment import Experiment
from .folder import Folder
from .train import Best, Training

Progress = Callable[[Training, dict[str, Any] | None], None]
"""Called after every round, with the metrics where it was evaluated."""


class Run:
    """An experiment in its folder."""

    def __init__(self, experiment: Experiment, folder: Folder, training: Training) -> None:
        self.experiment, self.folder, self.training = experiment, folder, training
        self.stop = False  # set from outside (Ctrl-C): the round is finished, then a checkpoint is written
        self._saved = time.monotonic()

    @staticmethod
    def begin(experiment: Experiment) -> Run:
        """A new run; whatever can be wrong is found before the folder appears."""
        s = experiment.settings
        data = re.sub("[/:]", "_", re.sub("^(npz|leaf|hf):", "", s.data))
        name = s.name or f"{s.method}-{data}-{time.strftime('%Y%m%d-%H%M%S')}"
        path = Path(s.out) / name
        if path.exists():
            raise RunError(f"The run folder {path} exists already; choose another --name, or latecomer resume {path}.")
        training = experiment.training()
        if s.start:
            start(training, Path(s.start))
        # Engines and thread counts round differently: whoever resumes or repeats this run must take the same ones.
        chosen: dict[str, Any] = {"engine": type(training.engine).__name__.lower(), "threads": torch.get_num_threads()}
        experiment = dataclasses.replace(experiment, settings=dataclasses.replace(s, **chosen))
        return Run(experiment, Folder.create(path, experiment.toml(training.federations)), training)

    @staticmethod
    def resume(path: Path) -> Run:
        """Go on where a stopped run's last checkpoint is."""
        folder = Folder.open(path)
        if folder.finished:
            raise RunError(f"The run in {path} is finished; its result is in {path / 'result.json'}.")
        experiment = Experiment.read(folder.settings, path / "settings.toml")
        with folder.held():
            found = folder.load()
        training = experiment.training()
        if _splits(folder) != [federation.digest() for federation in training.federations]:
            raise RunError(f"The data or their split are not those that the run in {path} began with; put them back.")
        if found is not None:
            restore(training, *found)
        elif experiment.settings.start:
            start(training, Path(experiment.settings.start))
        return Run(experiment, folder, training)

    def go(self, progress: Progress = lambda *_: None) -> dict[str, Any] | None:
        """Train to the end and return the result; None if it was stopped (a checkpoint lies in the folder)."""
        with self.folder.held():
            return self._go(progress)

    def _go(self, progress: Progress) -> dict[str, Any] | None:
        for metrics in self.training.go():
            if metrics is not None:
                self._log(metrics)
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
        self.folder.write_result(result, client_table(self.training.federations, scores))
        return result

    def _log(self, metrics: dict[str, Any]) -> None:
        self.folder.append("ledger.jsonl", self.training.drain())
        self.folder.append("metrics.jsonl", [metrics])

    def checkpoint(self) -> None:
        self.folder.append("ledger.jsonl", self.training.drain())
        self.folder.save(*snapshot(self.training))
        self._saved = time.monotonic()


def snapshot(training: Training) -> tuple[tree.Tree, dict[str, Any]]:
    """All that a training needs to go on bit for bit."""
    tensors: tree.Tree = {}
    for run, state in enumerate(training.states):
        part: tree.Tree = {"state": state}
        if kept := training.engine.memories(run):
            part["memory"] = kept
        if released := training.tally.snapshot(run):
            part["released"] = released
        if (best := training.best[run]) is not None:
            part["best"] = {"state": best.state, "counts": best.scores.counts}
        tensors[str(run)] = part
    facts = {
        "round": training.round,
        "evaluations": training.evaluations,
        "seconds": training.seconds,
        "sent": {key: sum(sent[key] for sent in training.sent) for key in training.sent[0]},
        "best": [best and {"round": best.round, "validation": best.validation} for best in training.best],
    }
    return tensors, facts


def restore(training: Training, tensors: tree.Tree, facts: Mapping[str, Any]) -> None:
    device = training.engine.device
    training.round, training.evaluations = facts["round"], facts["evaluations"]
    training.seconds, training.sent[0] = facts["seconds"], dict(facts["sent"])  # of all runs together
    for run, federation in enumerate(training.federations):
        part = tensors.get(str(run), {})
        training.states[run] = tree.to(part.get("state", {}), device)
        if "memory" in part:
            training.engine.remember(run, tree.to(part["memory"], device))
        if "released" in part:
            training.tally.restore(run, part["released"])
        if (best := facts["best"][run]) is not None:
            scores = Scores(torch.arange(federation.members), part["best"]["counts"])
            state = tree.to(part["best"].get("state", {}), device)
            training.best[run] = Best(best["round"], best["validation"], state, scores)


def start(training: Training, path: Path) -> None:
    """Begin with the models of another run, each seed with that of its own best round."""
    folder = Folder.open(path)
    states = [part.get("best", {}).get("state", {}) for part in folder.peek().values()]
    if any("params" not in state for state in states):
        raise RunError(f"The run in {path} has no model that is the same for all clients, which --start needs.")
    training.adopt([state["params"] for state in states], f"--start {path}")
    if _splits(folder) != [federation.digest() for federation in training.federations]:
        training.notes.append(
            f"The model of {path} was trained on another split of the data, so it may have seen what is held out here."
        )


def _splits(folder: Folder) -> Any:
    """The fingerprints of the splits that a run began with."""
    return tomllib.loads(folder.settings).get("about", {}).get("splits")


def client_table(
    federations: Sequence[Federation], scores: Sequence[tuple[Scores, Scores | None]]
) -> list[dict[str, Any]]:
    """One row a client and seed: its accuracies and what is known about it."""
    rows = []
    for federation, pair in zip(federations, scores, strict=True):
        for score in (part for part in pair if part is not None):
            for k, client in enumerate(score.ids.tolist()):
                percent = {split: round(float(score.accuracy(split)[k]), 3) for split in ("val", "test")}
                rows.append({"seed": federation.seed, "client": client, **percent, **federation.traits(client)})
    return rows
