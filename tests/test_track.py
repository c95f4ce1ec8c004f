"""Trackers are told what metrics.jsonl says, no round twice, and whatever happens to them costs no training."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from console import Command
from latecomer.runs import track
from latecomer.runs.experiment import Experiment
from latecomer.runs.run import Run
from latecomer.runs.track import MEAN, Tracked, by_owner, numbers

SETTINGS = {
    "clients": 8,
    "unseen": 0.25,
    "rounds": 6,
    "cohort": 3,
    "seeds": 2,
    "evaluate_every": 2,
    "watch_unseen": True,
    "engine": "vector",
    "epochs": 1,
}
Curves = dict[str, dict[int, float]]


def experiment(out: Path, **settings: Any) -> Experiment:
    return Experiment.parse("fedavg", {**SETTINGS, "out": str(out), "name": "x", **settings})


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]


def expected(folder: Path, seed: int, name: str) -> dict[int, float]:
    """A curve of one seed as metrics.jsonl and ledger.jsonl have it."""
    curve = {}
    for line in lines(folder):
        (run,) = (run for run in line["runs"] if run["seed"] == seed)
        ledger = [one for one in lines(folder, "ledger.jsonl") if one["seed"] == seed and one["round"] < line["round"]]
        sent = {f"bytes/{way}": sum(one[way] for one in ledger) for way in ("down", "up")}
        curve[line["round"]] = {**numbers(run), **sent, "answered": 1.0}[name]
    return curve


NAMES = ["validation", "seen/accuracy", "seen/own_classes", "unseen/accuracy", "bytes/down", "answered"]


def close(found: dict[int, float], wanted: dict[int, float]) -> bool:
    return found.keys() == wanted.keys() and found == pytest.approx(wanted, rel=1e-6)


def check(folder: Path, curves: dict[str, Curves]) -> None:
    """Every seed's curves are those of the logs, and the mean's are the mean."""
    for name in NAMES:
        own = [expected(folder, seed, name) for seed in (0, 1)]
        for seed in (0, 1):
            assert close(curves[f"seed-{seed}"][name], own[seed]), (name, seed)
        assert close(curves[MEAN][name], {step: (own[0][step] + own[1][step]) / 2 for step in own[0]}), name
    assert list(curves[MEAN]["validation"]) == [2, 4, 6]
    result = json.loads((folder / "result.json").read_text("utf-8"))
    assert curves[MEAN]["result/seen/accuracy"] == pytest.approx({6: result["seen"]["accuracy"]}, rel=1e-6)


def events(folder: Path) -> dict[str, Curves]:
    """All scalars in event files, read by TensorBoard's own reader; a step that stands there twice fails."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: dict[str, Curves] = {}
    for path in sorted((folder / "tensorboard").glob("*/*")):
        curves = found.setdefault(path.parent.name, {})
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tensor.float_val:
                    curve = curves.setdefault(value.tag, {})
                    assert event.step not in curve, (value.tag, event.step)
                    curve[event.step] = value.tensor.float_val[0]
    return found


def stopped(run: Run, after: int) -> None:
    """A run that stops after a round, as by Ctrl-C."""

    def progress(training: Any, metrics: Any) -> None:
        run.stop = training.round == after

    assert run.go(progress) is None


def test_tensorboard_has_what_the_logs_have(tmp_path: Path) -> None:
    run = Run.begin(experiment(tmp_path, track="tensorboard"))
    assert run.go() is not None
    check(tmp_path / "x", events(tmp_path / "x"))
    (file,) = (tmp_path / "x" / "tensorboard" / MEAN).iterdir()
    assert b'method = "fedavg"' in file.read_bytes()  # the settings, as text


def test_tensorboard_goes_on_with_no_round_twice(tmp_path: Path) -> None:
    """Round 4 is told, and lost to the kill, and told again."""
    stopped(Run.begin(experiment(tmp_path, track="tensorboard")), after=3)
    run = Run.resume(tmp_path / "x")
    run.folder.save = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        stopped(run, after=5)
    assert [line["round"] for line in lines(tmp_path / "x")] == [2, 4]
    assert Run.resume(tmp_path / "x").go() is not None
    check(tmp_path / "x", events(tmp_path / "x"))


def test_a_run_may_go_on_with_another_tracker(tmp_path: Path) -> None:
    stopped(Run.begin(experiment(tmp_path)), after=3)
    assert not (tmp_path / "x" / "tensorboard").exists()
    assert Run.resume(tmp_path / "x", track="tensorboard").go() is not None
    check(tmp_path / "x", events(tmp_path / "x"))  # with the rounds that were there before


def test_nothing_of_a_run_depends_on_it(tmp_path: Path) -> None:
    for name in ("tensorboard", "none"):
        assert Run.begin(experiment(tmp_path, track=name, name=name)).go() is not None
    kept = [[line["runs"] for line in lines(tmp_path / name)] for name in ("tensorboard", "none")]
    assert kept[0] == kept[1]
    assert [run["state"] for run in kept[0][-1]] == [run["state"] for run in kept[1][-1]]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_LOGGING_LEVEL", "WARNING")
    return tmp_path / "mlflow.db"


@pytest.mark.filterwarnings("ignore")  # MLflow's, SQLAlchemy's and Alembic's among themselves
def test_mlflow_has_what_the_logs_have_and_goes_on(tmp_path: Path, store: Path) -> None:
    stopped(Run.begin(experiment(tmp_path, track="mlflow")), after=3)
    run = Run.resume(tmp_path / "x")
    run.folder.save = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        stopped(run, after=5)
    assert Run.resume(tmp_path / "x").go() is not None

    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    (found,) = client.search_runs([client.get_experiment_by_name("latecomer").experiment_id])
    curves: dict[str, Curves] = {MEAN: {}, "seed-0": {}, "seed-1": {}}
    for name in found.data.metrics:
        owner, _, own = name.partition("/") if name.startswith("seed-") else (MEAN, "", name)
        history = client.get_metric_history(found.info.run_id, name)
        curves[owner][own] = {one.step: one.value for one in history}
        assert len(curves[owner][own]) == len(history), name  # no step twice
    check(tmp_path / "x", curves)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "x")
    assert (found.data.params["method"], found.data.params["rounds"]) == ("fedavg", "6")
    assert found.data.tags["latecomer.folder"] == str(tmp_path / "x")
    assert {"latecomer.commit", "latecomer.machine"} <= found.data.tags.keys()
    assert not list(tmp_path.glob("mlruns")), "nothing outside"


class Full:
    """A tracker whose disk is full from some round on."""

    def __init__(self, since: int) -> None:
        self.since, self.logged = since, list[int]()

    def open(self, *_: Any) -> int:
        return -1

    def log(self, step: int, *_: Any) -> None:
        if step >= self.since:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.logged.append(step)

    def close(self, *_: Any) -> None:
        raise AssertionError("it has failed and is told no more")


def test_a_tracker_that_fails_costs_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Full(since=4)
    monkeypatch.setattr("latecomer.runs.run.tracked", lambda settings: Tracked(tracker))
    assert Run.begin(experiment(tmp_path)).go() is not None
    assert tracker.logged == [2]
    (note,) = caplog.messages
    assert note == "Full failed and is told no more; the training goes on: [Errno 28] No space left on device"


def test_a_folder_that_leads_elsewhere_is_not_written_to(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elsewhere").mkdir()
    run = Run.begin(experiment(tmp_path, track="tensorboard"))
    (tmp_path / "x" / "tensorboard").symlink_to(tmp_path / "elsewhere")
    assert run.go() is not None
    assert "is not a folder of the run's own" in caplog.text
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(("name", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_a_missing_extra_is_told_before_anything_begins(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    for known in [known for known in sys.modules if known.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.setitem(sys.modules, package, None)
    done = command("run", "fedavg", "--track", name, "--out", tmp_path / "runs")
    assert done.code == 2
    assert f"This needs the package {package!r}; pip install 'latecomer[track]' brings it." in done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_store_that_cannot_be_is_one_sentence(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)  # it would wait for seconds
    store.write_text("no database\n" * 1000)
    done = command("run", "fedavg", "--track", "mlflow", "--out", tmp_path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith("latecomer: --track mlflow cannot begin: ")
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_resume_takes_a_tracker(tmp_path: Path, command: Command) -> None:
    done = command("resume", tmp_path, "--track", "tensorbord")
    assert (done.code, done.err) == (
        2,
        "latecomer: There is no value for --track 'tensorbord'; did you mean 'tensorboard'?\n",
    )


def test_numbers_by_hand() -> None:
    """Two seeds, one of which has no latecomers; what is no number, or not finite, is left out."""
    metrics = {
        "round": 1,
        "runs": [
            {"seed": 3, "validation": 10.0, "state": "ab", "seen": {"accuracy": 20.0}, "unseen": {"accuracy": 5.0}},
            {"seed": 4, "validation": None, "state": "cd", "seen": {"accuracy": 40.0}},
        ],
    }
    sent = {3: {"down": 6, "up": 2, "asked": 4, "answered": 3}}
    assert by_owner(metrics, sent) == {
        "mean": {"seen/accuracy": 30.0},
        "seed-3": {
            "validation": 10.0,
            "seen/accuracy": 20.0,
            "unseen/accuracy": 5.0,
            "bytes/down": 6.0,
            "bytes/up": 2.0,
            "answered": 0.75,
        },
        "seed-4": {"seen/accuracy": 40.0},
    }


def test_passwords_are_not_told() -> None:
    assert track._short(ValueError("no way to http://me:secret@host/api")) == "no way to http://host/api"
    assert track._short(ValueError("x" * 400)) == "x" * 300 + " ...", "that it was cut is said"
