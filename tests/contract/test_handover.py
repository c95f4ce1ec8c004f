"""What was handed over predicts what the run predicted: a latecomer's model, made anew from the run folder alone."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import latecomer
from latecomer import Experiment, Federation, Personal, methods
from latecomer.handover.meet import meet
from latecomer.runs.run import Run

TINY: dict[str, Any] = {
    "data": "digits",
    "clients": 12,
    "unseen": 0.25,
    "rounds": 3,
    "cohort": 4,
    "evaluate_every": 3,
    "seeds": 2,
    "engine": "loop",
    "device": "cpu",
    "name": "run",
}
STEPS = {"pefll": 3, "pfedhn": 3}


def trained(name: str, out: Path, **more: Any) -> tuple[Path, list[Federation]]:
    """A tiny finished run, and its federations."""
    steps = {"steps": STEPS[name]} if name in STEPS else {}
    experiment = Experiment.parse(name, {**TINY, "out": str(out), **steps, **more})
    assert Run.begin(experiment).go() is not None
    return out / "run", experiment.federations()


def examples(federation: Federation, client: int, split: str) -> tuple[NDArray[Any], NDArray[Any]]:
    rows = federation.rows(split)[client].long()
    return federation.examples.x[rows].numpy(), federation.examples.y[rows].numpy()


@pytest.mark.parametrize("name", sorted(methods.names()))
def test_a_latecomer_gets_the_model_that_the_run_scored(name: str, tmp_path: Path) -> None:
    run, (_, federation) = trained(name, tmp_path)
    with (run / "clients.csv").open() as file:
        said = {(row["seed"], row["client"]): row for row in csv.DictReader(file)}
    loaded, client = latecomer.load(run), len(federation) - 1
    x, y = examples(federation, client, "train")
    model = loaded.personalise(x, y, held_out=examples(federation, client, "val"), seed=1, client=client)
    new, labels = examples(federation, client, "test")
    assert model.score(new, labels) == pytest.approx(float(said["1", str(client)]["accuracy"]), abs=1e-3)
    held = model.facts["held_out"]
    assert 100 * held["right"] / held["examples"] == pytest.approx(
        float(said["1", str(client)]["val_accuracy"]), abs=1e-3
    )
    again = Personal.open(model.save(tmp_path / "mine", onnx=False))
    assert np.array_equal(again.logits(new), model.logits(new))


@pytest.mark.parametrize("name", ["pefll", "pfedhn", "fedavgplus", "odpflhn"])
def test_the_runs_own_latecomers_score_again_what_they_scored(name: str, tmp_path: Path) -> None:
    run, _ = trained(name, tmp_path)
    with (run / "clients.csv").open() as file:
        said = [float(row["accuracy"]) for row in csv.DictReader(file) if row["role"] == "latecomer"]
    met = meet(latecomer.load(run))
    assert [float(one) for score in met.scores for one in score.accuracy()] == pytest.approx(said, abs=1e-3)
