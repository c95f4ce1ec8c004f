"""Runs and searches in several processes: the long ones first, none lost where the time is over."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from console import Command
from latecomer.study import jobs, reproduce
from latecomer.study.recipe import Recipe
from latecomer.study.tune import tune
from latecomer.study.tune.trials import Trial
from latecomer.study.tune.tune import Search, Tuned

RECIPE = """
title = "Mine"
metrics = ["seen.accuracy"]
[settings]
clients = 8
unseen = 0.25
cohort = 3
rounds = 2
engine = "vector"
[columns.few]
[columns.many]
rounds = 20
[rows.fedavg]
[rows.local]
steps = 50
[tune]
trials = 2
rounds = 2
[tune.search.fedavg]
lr = "0.05|0.1"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(RECIPE)
    return tmp_path


class Begun:
    """A process that takes its time: `longer` seconds, and ends by itself when it is told to, or `stubborn`, never."""

    longer, stubborn, code = math.inf, False, 130
    words: list[list[str]] = []
    signals: list[str] = []
    clock = [0.0]

    def __init__(self, words: list[str], **_: Any) -> None:
        self.words.append(words[3:])

    def wait(self, seconds: float | None = None) -> int:
        told = bool(self.signals)
        if told and "kill" not in self.signals and self.stubborn:
            raise subprocess.TimeoutExpired("", jobs.GRACE)
        if not told and seconds is not None and self.longer > seconds:
            self.clock[0] += seconds
            raise subprocess.TimeoutExpired("", seconds)
        return self.code if told else 0

    def terminate(self) -> None:
        self.signals.append("terminate")

    def kill(self) -> None:
        self.signals.append("kill")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> type[Begun]:
    class Fresh(Begun):
        words, signals, clock = [], [], [0.0]

    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: Fresh.clock[0]))
    monkeypatch.setattr(jobs.subprocess, "Popen", Fresh)
    return Fresh


def test_long_runs_begin_first(here: Path, begun: type[Begun]) -> None:
    begun.longer = 0
    recipe = Recipe.find("mine.toml")
    assert not reproduce.side_by_side(recipe, recipe.cells(), False, here, 1, math.inf, ["mine.toml"])
    assert [words[2] for words in begun.words] == [
        f"--only={name}" for name in ("local@many", "fedavg@many", "local@few", "fedavg@few")
    ]


@pytest.mark.parametrize(
    ("stubborn", "code", "signals", "left"),
    [(False, 130, ["terminate"], True), (True, 1, ["terminate", "kill"], True), (False, 0, ["terminate"], False)],
    ids=["stops where it can go on", "has to be killed", "was just done"],
)
def test_when_the_time_is_over(
    stubborn: bool, code: int, signals: list[str], left: bool, here: Path, begun: type[Begun]
) -> None:
    begun.stubborn, begun.code = stubborn, code
    works = [jobs.Job(name, ["reproduce"], here / "logs" / f"{name}.log") for name in ("first", "second")]
    said = jobs.side_by_side(works, 1, 60.0)
    assert (begun.words, begun.signals) == ([["reproduce"]], signals)
    over = ["first: the time was over before it was finished; the same command goes on."] * left
    assert said == [*over, "second: the time was over before it began; the same command goes on."]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has other signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_whoever_is_told_to_end_tells_its_processes(number: signal.Signals, here: Path) -> None:
    """Once, so that they stop where they can go on, and whether a terminal, a machine or a user said so."""
    child = """
import pathlib, signal, sys, time
def stop(*_):
    with open("told", "a") as file: file.write("once ")
    signal.signal(signal.SIGTERM, stop); time.sleep(0.3); sys.exit(130)
signal.signal(signal.SIGTERM, stop); signal.signal(signal.SIGINT, stop)
pathlib.Path("begun").touch()
time.sleep(60)
"""
    parent = f"""
import signal, subprocess, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests behind has it ignored
from latecomer.cli import main
from latecomer.study import jobs
begin = subprocess.Popen
jobs.subprocess.Popen = lambda words, **how: begin([sys.executable, "-c", {child!r}], **how)
sys.exit(main(["reproduce", "mine.toml", "--jobs", "2", "--only", "local@few"]))
"""
    with subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.PIPE, text=True) as process:
        for _ in range(600):
            if (here / "begun").exists():
                break
            time.sleep(0.1)
        process.send_signal(number)
        said = process.communicate(timeout=30)[1]
    assert (process.returncode, said) == (130, f"latecomer: {jobs.INTERRUPTED}\n")
    assert (here / "told").read_text() == "once "


def test_what_is_said_of_several_is_said_once(here: Path, begun: type[Begun]) -> None:
    begun.code = 1
    works = [jobs.Job(name, ["reproduce"], here / f"{name}.log") for name in ("first", "second", "third")]
    assert jobs.side_by_side(works, 1, 60.0)[1:] == [
        "second, third: the time was over before it began; the same command goes on."
    ]


def test_searches_side_by_side(here: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process writes what all of them found; where one failed, the others are there, and it says why."""

    def over(search: Search, path: Path) -> Tuned | None:
        trials = [Trial(k, {"lr": lr}, {2: 50.0 + k}) for k, lr in enumerate(("0.05", "0.1"))]
        return Tuned(path, search, trials) if (path / "over").is_file() else None

    class Does(Begun):
        def __init__(self, words: list[str], stdout: Any, **_: Any) -> None:
            assert words[3:6] == ["tune", "--recipe", "mine.toml"]
            self.failed = 2 if "--only=fedavg@many" in words else 0
            folder = Path(words[words.index("--output") + 1])
            folder.mkdir()
            if self.failed:
                stdout.write("Note: fedavg@many: the disk is full.\n")
            else:
                (folder / "over").touch()

        def wait(self, seconds: float | None = None) -> int:
            return self.failed

    monkeypatch.setattr(tune, "over", over)
    monkeypatch.setattr(jobs.subprocess, "Popen", Does)
    done = command("tune", "--recipe", "mine.toml", "--jobs", "2", "-o", "found")
    assert (done.code, done.out.splitlines()[-1]) == (2, "found/mine.tuned.toml")
    assert done.err.splitlines() == ["Note: fedavg@many: the disk is full."]
    assert (here / "found" / "mine.tuned.toml").read_text() == '[rows."fedavg".at."few"]\nlr = 0.1\n'

    # and once more, without processes: what is over is not searched again
    (here / "runs" / "tune" / "mine" / "fedavg-many" / "over").touch()
    assert command("tune", "--recipe", "mine.toml").code == 0
    assert (here / "runs" / "tune" / "mine" / "mine.tuned.toml").read_text().count("lr = 0.1") == 2
