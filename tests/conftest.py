"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from console import Command, Outcome, start
from latecomer.cli import main

# Before anything imports torch: on a busy machine, threads that wait for each other make small tests 20 times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Warnings are errors, but not those that dependencies exchange among themselves while they are imported."""
    config.addinivalue_line("filterwarnings", r"ignore:'click\.:DeprecationWarning")
    config.addinivalue_line("filterwarnings", "ignore:Using `httpx` with `starlette.testclient`")
    config.addinivalue_line("filterwarnings", r"ignore:The anyio\.:DeprecationWarning")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not tried of the page is said aloud: without a browser nobody would miss it."""
    for report in terminalreporter.stats.get("skipped", []):
        if "test_page.py" in report.nodeid:
            terminalreporter.write_line(f"NOT TRIED: {report.nodeid}: {report.longrepr[2]}", yellow=True)


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
