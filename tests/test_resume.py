"""A run that was killed and resumed equals one that was never stopped, bit for bit.

The processes are real and are killed with SIGKILL. A fork server imports torch once, so that starting one is cheap.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from console import Command, environment
from latecomer.cli import main

ROUNDS = 20
SETTINGS = {
    "clients": 12,
    "unseen": 0.25,
    "rotations": "0,90",
    "rounds": ROUNDS,
    "cohort": 4,
    "seeds": 2,
    "faults": "drop=0.1",
    "evaluate_every": 2,
    "checkpoint_seconds": 0,
    "engine": "vector",
}
METHODS = {"local": {"steps": 2}, "pefll": {"steps": 2, "embed": "label", "hidden": 20}}

Start = Callable[..., BaseProcess]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """`latecomer ...` in a process of its own."""
    before = dict(os.environ)
    os.environ.update(environment())
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["latecomer.runs.experiment", "latecomer.cli.drive", "sklearn.datasets", "torch._dynamo"]
    )

    def begin(*words: object) -> BaseProcess:
        process = context.Process(target=main, args=([str(word) for word in words],))
        process.start()
        return process

    yield begin
    os.environ.clear()
    os.environ.update(before)


def command(method: str, folder: Path) -> list[str]:
    chosen = [f"--{name}={value}" for name, value in {**SETTINGS, **METHODS[method]}.items()]
    return ["run", method, *chosen, f"--out={folder.parent}", f"--name={folder.name}"]


@pytest.fixture(scope="module", params=METHODS)
def uninterrupted(request: pytest.FixtureRequest, start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed; its folder has the method's name."""
    folder = tmp_path_factory.mktemp("whole") / request.param
    start(*command(request.param, folder)).join(60)
    assert (folder / "result.json").exists()
    return folder


def timeless(value: Any) -> Any:
    """A JSON value without what differs between runs: seconds, and what follows from the file that tells the time."""
    if isinstance(value, dict):
        gone = ("seconds", "settings", "logs")
        return {key: timeless(part) for key, part in value.items() if key not in gone}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def assert_equal(one: Path, two: Path) -> None:
    """Every number that two runs left behind."""
    assert (one / "clients.csv").read_bytes() == (two / "clients.csv").read_bytes()
    for name in ("result.json", "checkpoint/latest.json"):
        assert timeless(json.loads((one / name).read_text())) == timeless(json.loads((two / name).read_text())), name
    for name in ("metrics.jsonl", "ledger.jsonl"):
        first, second = (
            [timeless(json.loads(line)) for line in (folder / name).read_text().splitlines()] for folder in (one, two)
        )
        assert first, name
        assert first == second, name
    first, second = (load_file(next((folder / "checkpoint").glob("*.safetensors"))) for folder in (one, two))
    assert first.keys() == second.keys()
    assert all(first[key].equal(second[key]) for key in first)


def saved_round(folder: Path) -> int:
    """The round of the latest checkpoint; zero before the first."""
    try:
        return int(json.loads((folder / "checkpoint/latest.json").read_text())["round"])
    except FileNotFoundError:
        return 0


def kill_at(process: BaseProcess, folder: Path, number: int, later: float) -> None:
    """Kill a process `later` seconds after it has saved a round."""
    deadline = time.monotonic() + 60
    while saved_round(folder) < number and process.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    time.sleep(later)
    process.kill()
    process.join()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_killed_and_resumed_equals_never_stopped(start: Start, uninterrupted: Path, tmp_path: Path, seed: int) -> None:
    folder, chance = tmp_path / "x", random.Random(seed)
    moments = sorted(chance.sample(range(ROUNDS + 1), 4))
    process = start(*command(uninterrupted.name, folder))
    for number in moments:
        kill_at(process, folder, number, chance.uniform(0, 0.05))
        resumes = (folder / "settings.toml").exists()  # it may have been too early even for that
        process = start("resume", folder) if resumes else start(*command(uninterrupted.name, folder))
    process.join(60)
    assert_equal(uninterrupted, folder)


def test_of_two_that_resume_only_one_goes_on(start: Start, uninterrupted: Path, tmp_path: Path) -> None:
    """Whoever is later is refused; two that went on would leave lines twice."""
    folder = tmp_path / "x"
    begun = start(*command(uninterrupted.name, folder))
    kill_at(begun, folder, 4, 0)
    several = [start("resume", folder) for _ in range(2)]
    for process in several:
        process.join(60)
    assert_equal(uninterrupted, folder)


def test_the_same_settings_twice_give_the_same(start: Start, uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    start(*command(uninterrupted.name, folder)).join(60)
    assert_equal(uninterrupted, folder)


def test_another_seed_gives_something_else(start: Start, uninterrupted: Path, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    start(*command(uninterrupted.name, folder), "--seed=7").join(60)  # else the other tests would prove nothing
    assert (folder / "clients.csv").read_bytes() != (uninterrupted / "clients.csv").read_bytes()


def test_other_data_are_refused(tmp_path: Path, command: Command) -> None:
    """The file behind npz: was replaced between stopping and resuming."""
    random = np.random.default_rng(0)

    def write(turn: int) -> None:
        x = random.integers(0, 256, (200, 8, 8), dtype=np.uint8)
        y = (np.arange(200) + turn * (np.arange(200) // 2)) % 4
        np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)

    write(0)
    words = ["run", "fedavg", "--data", f"npz:{tmp_path / 'mine.npz'}", "--partition", "iid", "--clients", 4]
    assert command(*words, "--rounds", 2, "--cohort", 2, "--out", tmp_path, "--name", "a").code == 0
    (tmp_path / "a" / "result.json").unlink()
    write(1)
    outcome = command("resume", tmp_path / "a")
    assert outcome.code == 2
    assert "are not those that the run" in outcome.err
