"""The gate: who is covered, who is like nobody, what is promised of them, and what a file may hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import gate as benchmark
import latecomer
from latecomer import Experiment, make_task, methods
from latecomer.data.sources import load
from latecomer.errors import BundleError, DataError, ModelError
from latecomer.handover import survey
from latecomer.handover.bundle import Bundle
from latecomer.handover.gate import Gate, signature
from latecomer.handover.publish import publish
from latecomer.nets.models import MLP
from latecomer.report.coverage import judged
from latecomer.runs.run import Run
from latecomer.study.finished import Finished

MEMBERS, VALIDATORS = 40, 40


def clients(count: int, seed: int, entropy: float = 0.1, away: float = 0.0) -> np.ndarray:
    """Signatures: five numbers that describe, and an entropy that varies by a tenth."""
    random = np.random.default_rng(seed)
    described = random.normal(size=(count, 5)) * [5, 3, 1, 0.5, 0.1] + away
    return np.column_stack([described, entropy * np.exp(0.1 * random.normal(size=count))])


def learned(seed: int) -> Gate:
    told = np.concatenate([clients(MEMBERS, 10 * seed), clients(VALIDATORS, 10 * seed + 1)])
    return Gate.fit(told, 90 + np.random.default_rng(seed).normal(size=len(told)), MEMBERS)


@pytest.fixture
def gate() -> Gate:
    return learned(0)


def test_those_alike_are_covered_and_score_within_their_interval_as_often_as_promised() -> None:
    covered, held = [], []
    for seed in range(40):  # one gate may be lucky: the promise is over validators, too
        gate = learned(seed)
        verdicts = [gate.judge(row) for row in clients(50, 10 * seed + 2)]
        true = 90 + np.random.default_rng(seed + 100).normal(size=50)
        covered += [verdict.covered for verdict in verdicts]
        held += [v.low <= one <= v.high for v, one in zip(verdicts, true, strict=True) if v.covered]
        assert {verdict.advice for verdict in verdicts if verdict.covered} == {"use it"}
    assert abs(np.mean(covered) - 0.9) < 0.03
    assert abs(np.mean(held) - 0.9) < 0.03


@pytest.mark.parametrize("strange", [{"entropy": 1.0}, {"entropy": 0.1, "away": 200.0}])
def test_unsure_or_far_away_is_like_nobody(gate: Gate, strange: dict[str, float]) -> None:
    verdicts = [gate.judge(row) for row in clients(20, 5, **strange)]
    assert not any(verdict.covered for verdict in verdicts)
    assert all(verdict.low == 0 and verdict.advice.startswith("unlike anyone: ") for verdict in verdicts)


def test_the_nearest_member_of_a_member_is_itself(gate: Gate) -> None:
    verdict = gate.judge(clients(MEMBERS, 0)[7])
    assert [verdict.nearest[0][0], round(verdict.distance, 6)] == [7, 0.0]
    assert np.allclose(verdict.place, gate.places[7])
    assert sorted(away for _, away in verdict.nearest) == [away for _, away in verdict.nearest]


def test_validators_that_lose_do_not_widen_what_is_covered() -> None:
    lost = clients(10, 6, entropy=1.0)
    told = np.concatenate([clients(MEMBERS, 0), clients(VALIDATORS, 1), lost])
    right = np.concatenate([np.full(MEMBERS + VALIDATORS, 90.0), np.full(10, 40.0)])
    gate = Gate.fit(told, right, MEMBERS)
    verdicts = [gate.judge(row) for row in clients(20, 7, entropy=1.0)]
    assert not any(verdict.covered for verdict in verdicts)
    assert all(verdict.accuracy < 80 for verdict in verdicts)  # the line has seen their like


def test_a_signature_by_hand() -> None:
    told = signature([[0.0, 0.0], [1000.0, -1000.0]], [7.0])
    assert np.allclose(told, [7, np.log(2) / 2])
    assert np.allclose(signature([[0.0, 0.0], [1000.0, -1000.0]]), [0.75, 0.25, np.log(2) / 2])


def test_it_comes_back_from_its_files(gate: Gate, tmp_path: Path) -> None:
    gate.save(tmp_path)
    again = Gate.open(tmp_path)
    assert [again.judge(row) for row in clients(5, 8)] == [gate.judge(row) for row in clients(5, 8)]


def test_damaged_files_are_refused(gate: Gate, tmp_path: Path) -> None:
    gate.save(tmp_path)
    facts = json.loads((tmp_path / "gate.json").read_text())
    (tmp_path / "gate.json").write_text(json.dumps({**facts, "limit": "wide"}))
    with pytest.raises(ModelError, match="cannot be read as a gate"):
        Gate.open(tmp_path)
    (tmp_path / "gate.json").write_text(json.dumps(facts))
    (tmp_path / "gate.safetensors").write_bytes(b"\0" + (tmp_path / "gate.safetensors").read_bytes()[1:])
    with pytest.raises(ModelError, match="is damaged"):
        Gate.open(tmp_path)
    (tmp_path / "gate.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be read as a gate"):
        Gate.open(tmp_path)


@pytest.mark.parametrize("wrong", [np.zeros(5), np.zeros((1, 6)), np.full(6, np.nan), [0, 0, 0, 0, 0, -1.0]])
def test_what_is_no_signature_is_one_sentence(gate: Gate, wrong: np.ndarray) -> None:
    with pytest.raises(DataError, match="A signature has"):
        gate.judge(wrong)


def test_too_few_validators_or_none_that_does_well() -> None:
    told = np.concatenate([clients(MEMBERS, 0), clients(VALIDATORS, 1)])
    with pytest.raises(DataError, match="at least 10; there are 5"):
        Gate.fit(told[: MEMBERS + 5], np.full(MEMBERS + 5, 90.0), MEMBERS)
    with pytest.raises(DataError, match="Every validator loses"):
        Gate.fit(told, np.repeat([90.0, 50.0], 40), MEMBERS)
    with pytest.raises(DataError, match="held out"):
        Gate.fit(told, np.repeat([90.0, np.nan], 40), MEMBERS)


@pytest.mark.parametrize(("name", "described", "size"), [("pefll", "descriptor", 9), ("flowdup", "predictions", 11)])
def test_a_gate_of_a_trained_server(name: str, described: str, size: int) -> None:
    federation, _ = benchmark.world(load("digits"), "ring", 0, members=12, validators=10, late=6, size=12, tests=20)
    task = make_task(federation, MLP)
    method = methods.get(name)(task=task, clients=len(federation), members=federation.members)
    state = method.init(torch.Generator().manual_seed(0))
    gate = survey.learn(method, state, federation)
    assert (gate.facts["described"], gate.facts["size"], gate.places.shape) == (described, size, (12, 2))
    assert gate.facts["labels"].startswith("needs ")
    told, _ = survey.signatures_of(method, state, federation, torch.arange(22, 28))
    assert all(0 <= gate.judge(row).accuracy <= 100 for row in told)


def test_whose_clients_keep_something_or_are_promised_privacy_has_no_gate() -> None:
    federation, _ = benchmark.world(load("digits"), "ring", 0, members=12, validators=10, late=6, size=12, tests=20)
    known = {"task": make_task(federation, MLP), "clients": len(federation), "members": federation.members}
    kept = methods.get("fedper")(**known)
    with pytest.raises(DataError, match="keep part of their models"):
        survey.learn(kept, {}, federation)
    private = methods.get("odpflhn")(**known, pool="mean", bound=1.0, epsilon=1.0)
    with pytest.raises(DataError, match="differentially private"):
        survey.learn(private, private.init(torch.Generator().manual_seed(0)), federation)


def test_the_benchmark_runs_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gate.py", "--tiny", "--seeds", "1", "--world", "rotations", "--no-labels", "--keep", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    benchmark.main()
    assert "digits-pefll-rotations, 1 seeds" in capsys.readouterr().out


def test_the_area_counts_pairs_in_order() -> None:
    doubt, loses = np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True])
    assert benchmark.auc(doubt, loses) == 0.75


@pytest.mark.parametrize("name", ["ring", "pairs", "rotations"])
def test_unseen_pairs_and_angles_are_unseen_and_nobody_shares_training_images(name: str) -> None:
    sizes = {"members": 40, "validators": 10, "late": 20, "size": 12, "tests": 20}
    federation, new = benchmark.world(load("digits"), name, 3, **sizes)
    kinds = [tuple(federation.traits(k)[trait] for trait in ("rotation", "classes")) for k in range(len(federation))]
    seen = set(kinds[:40])
    assert [kind in seen for kind in kinds[50:]] == (~new[50:]).tolist()
    parts = [slice(0, 40), slice(40, 50), slice(50, 70)]
    images = [{int(row) for k in range(70)[part] for row in federation.train[k]} for part in parts]
    assert sum(map(len, images)) == len(set.union(*images))


def test_a_bundle_has_its_gate_or_says_why_not(tmp_path: Path) -> None:
    settings = {"clients": 30, "validators": 0.4, "unseen": 0.1, "rounds": 2, "steps": 2, "engine": "loop"}
    experiment = Experiment.parse("pefll", {**settings, "out": str(tmp_path), "name": "run", "device": "cpu"})
    assert Run.begin(experiment).go() is not None
    trained = latecomer.load(tmp_path / "run")
    bundle = Bundle.open(publish(trained, tmp_path / "bundle"))
    assert bundle.gate is not None
    assert len(bundle.gate.places) == trained.method.members
    told, _ = survey.signatures_of(trained.method, trained.states[0], trained.federations[0], torch.arange(27, 30))
    verdicts = {27 + k: bundle.gate.judge(row).covered for k, row in enumerate(told)}
    assert judged(Finished.read(tmp_path / "run")) == verdicts  # what a report shows
    bare = Bundle.open(publish(trained, tmp_path / "bare", gate=False))
    assert bare.gate is None
    assert bare.facts["why"]["gate"] == "It was not asked for."
    (bundle.path / "private" / "gate.json").write_text("{}")
    with pytest.raises(BundleError, match="damaged"):
        Bundle.open(bundle.path)


def test_one_member_makes_no_gate() -> None:
    with pytest.raises(DataError, match="one member"):
        Gate.fit(np.random.default_rng(0).random((11, 4)), np.full(11, 50.0), 1)
