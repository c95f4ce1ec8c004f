"""What the tests share: the command line, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import latecomer
from latecomer.cli import main

HOME = Path(latecomer.__file__).parent.parent

# Before anything imports torch: on a busy machine, threads that wait for each other make small tests 20 times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors, but not those that Flower's own dependencies exchange while it is imported."""
    config.addinivalue_line("filterwarnings", r"ignore:'click\.:DeprecationWarning")


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


def environment() -> dict[str, str]:
    """What a process of its own needs to find the same latecomer."""
    return {**os.environ, "PYTHONPATH": str(HOME)}


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """`latecomer ...` in this process, which has torch already."""

    def call(*words: object) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        written = capsys.readouterr()
        return Outcome(code, written.out, written.err)

    return call


@pytest.fixture
def process(tmp_path: Path) -> Command:
    """`latecomer ...` as a user would call it."""

    def call(*words: object) -> Outcome:
        with start(tmp_path, *words) as running:
            out, err = running.communicate(timeout=120)
        return Outcome(running.returncode, out, err)

    return call


@pytest.fixture
def background(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """The same, but it does not wait for the end."""
    return lambda *words: start(tmp_path, *words)


def start(folder: Path, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "latecomer", *map(str, words)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
