"""Whole runs from the command line, for the benchmarks that repeat a paper's setting."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import torch

from latecomer.cli import flags
from latecomer.method import Method
from latecomer.runs import host
from latecomer.runs.experiment import Experiment
from latecomer.runs.folder import Folder
from latecomer.runs.run import Run, restore
from latecomer.runs.settings import Settings
from latecomer.train import Training


def given(kind: type[Method]) -> dict[str, Any]:
    """The settings that the command line names."""
    return flags.given(sys.argv[1:], Settings, kind)


def go(name: str, values: Mapping[str, Any], every: int) -> None:
    """Train, with a line at every so many evaluations and at the last: speed, and mean scores over the seeds."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment.parse(name, {**values, "out": folder, "name": "bench"})
        host.prepare(experiment.settings)
        run = Run.begin(experiment)
        began = time.perf_counter()

        def show(training: Training, metrics: dict[str, Any] | None) -> None:
            last = training.round == training.plan.rounds
            if metrics is None or (metrics["round"] % (every * training.plan.evaluate_every) and not last):
                return
            rate = metrics["round"] / metrics["seconds"]
            print(
                f"{metrics['seconds']:7.1f} s  round {metrics['round']:5}  {rate:6.1f} rounds/s  {scores(metrics)}",
                flush=True,
            )

        print(run.go(show))
        print(f"in all {time.perf_counter() - began:.1f} s")
        if torch.cuda.is_available():
            print(f"peak GPU memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


def restored(experiment: Experiment, folder: Folder) -> Training:
    """A training with what the last checkpoint of a run has."""
    host.prepare(experiment.settings)
    training, found = experiment.training(), folder.load()
    if found is None:
        raise SystemExit(f"{folder.path} has no checkpoint.")
    restore(training, *found)
    return training


def scores(metrics: Mapping[str, Any]) -> str:
    """Validation, seen and, where they are watched, unseen."""
    runs = metrics["runs"]
    each = {"validation": [line["validation"] for line in runs]}
    each |= {kind: [line[kind]["accuracy"] for line in runs if kind in line] for kind in ("seen", "unseen")}
    return "  ".join(f"{kind} {sum(some) / len(some):5.2f}" for kind, some in each.items() if some)
