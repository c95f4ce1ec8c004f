"""Models that another run trained: where they come from, what is refused, and that nothing else changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import toys
from console import Command
from latecomer import train, tree
from latecomer.errors import SettingError
from latecomer.runs.experiment import Experiment
from latecomer.runs.folder import Folder
from latecomer.runs.run import Run
from latecomer.train import Plan, Training

SMALL = ["--clients", 12, "--unseen", 0.25, "--cohort", 3, "--evaluate-every", 2, "--engine", "vector", "--batch", 8]


def result(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "result.json").read_text())
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of FedProx, in a folder of its own."""
    from latecomer.cli import main

    out = tmp_path_factory.mktemp("runs")
    words = ["run", "fedprox", *SMALL, "--rounds", 5, "--seeds", 2, "--out", out, "--name", "x"]
    assert main([str(word) for word in words]) == 0
    return out / "x"


def test_a_datastore_on_a_model_of_another_run(command: Command, trained: Path, tmp_path: Path) -> None:
    """With no weight on the vote, the other run's model scores what it scored there; with weight, something else."""
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    words = ["run", "knnper", *SMALL, "--rounds", 0, "--seeds", 2, "--start", trained, "--out", tmp_path]
    done = command(*words, "--name", "plain", "--blends", 0, "--neighbours", 3)
    assert done.code == 0, done.err
    assert "Note" not in done.err
    found = result(tmp_path / "plain")
    for group in ("seen", "unseen"):
        assert found[group] == result(trained)[group]
    assert (found["rounds"], found["bytes"], found["answered"]) == (0, {"down": 0, "up": 0}, 1.0)
    assert command(*words, "--name", "voted", "--blends", 1, "--neighbours", 3).code == 0
    assert result(tmp_path / "voted")["seen"] != found["seen"]
    assert before == {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}, "it is left alone"


def test_training_goes_on_from_there(command: Command, trained: Path, tmp_path: Path) -> None:
    words = ["run", "fedavg", *SMALL, "--rounds", 2, "--seeds", 2, "--out", tmp_path]
    assert command(*words, "--name", "a", "--start", trained, "--lr", 1e-9).code == 0
    best = [part["best"]["state"]["params"] for part in Folder.open(trained).peek().values()]
    after = [part["state"]["params"] for part in Folder.open(tmp_path / "a").peek().values()]
    for one, other in zip(best, after, strict=True):
        assert toys.gap(one, other) < 1e-6


def test_a_run_stopped_before_its_first_checkpoint_begins_there_again(trained: Path, tmp_path: Path) -> None:
    values = {"clients": 12, "unseen": 0.25, "cohort": 3, "seeds": 2, "engine": "vector", "rounds": 0}
    begun = Run.begin(Experiment.parse("knnper", {**values, "start": str(trained), "out": str(tmp_path), "name": "y"}))
    begun.folder.release()
    again = Run.resume(tmp_path / "y")
    assert all(map(toys.same, begun.training.states, again.training.states))
    assert not toys.same(again.training.states[0], toys.start(again.training.methods[0]))


def test_another_split_is_said(command: Command, trained: Path, tmp_path: Path) -> None:
    words = ["run", "knnper", *SMALL, "--rounds", 0, "--seeds", 2, "--seed", 7, "--start", trained, "--out", tmp_path]
    done = command(*words)
    assert done.code == 0
    assert f"Note: The model of {trained} was trained on another split of the data, so it may have seen" in done.err


def test_what_cannot_be_started_from(command: Command, trained: Path, tmp_path: Path) -> None:
    def refused(fragment: str, *words: object) -> None:
        done = command("run", *words, "--out", tmp_path / "out")
        assert done.code == 2
        assert done.err.count("\n") == 1
        assert fragment in done.err

    base = ["knnper", *SMALL, "--rounds", 0, "--seeds", 2]
    refused("--rounds must be at least 1, or 0 to take the model of --start as it is; got 0.", *base)
    refused("missing is not a run folder: it has no settings.toml.", *base, "--start", "missing")
    refused(f"--start {trained} has 2 models, one a seed; this run needs 1.", *base[:-2], "--start", trained)
    refused("use the --model it was trained with.", *base, "--start", trained, "--model", "lenet")
    refused("PeFLL does not keep one model for all to start with.", "pefll", *base[1:], "--start", trained)
    assert command("run", "local", *SMALL, "--rounds", 2, "--out", tmp_path, "--name", "own").code == 0
    refused("own has no model that is the same for all clients", *base[:-2], "--start", tmp_path / "own")
    shutil.copytree(trained, tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "checkpoint")
    refused("bare/checkpoint is not a folder of the run's own", *base, "--start", tmp_path / "bare")
    assert not (tmp_path / "out").exists()


def test_from_python() -> None:
    method = toys.method("knnper", blends=(0.0,))
    params = toys.start(method, seed=5)["params"]
    found = train.run(method, toys.federation(), start=params, rounds=0, cohort=2)
    model = toys.method("fedavg")
    expected = Training(model, [toys.federation()], toys.engine("vector", model, [toys.federation()]), Plan(cohort=2))
    expected.states = [{"params": params}]
    assert found["seen"]["accuracy"] == pytest.approx(expected.evaluate()["runs"][0]["seen"]["accuracy"], abs=1e-3)
    with pytest.raises(SettingError, match=r"start has a model whose '1.bias' is \(9,\), not \(8,\); use the --model"):
        train.run(method, toys.federation(), start=params | {"1.bias": torch.zeros(9)}, rounds=0, cohort=2)
    with pytest.raises(SettingError, match=r"start has a model without '1\.bias'"):
        train.run(method, toys.federation(), start=tree.without(params, ("1.bias",)), rounds=0, cohort=2)
