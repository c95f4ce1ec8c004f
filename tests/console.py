"""The command line as tests call it, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import latecomer


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


def environment() -> dict[str, str]:
    """What a process of its own needs to find the same latecomer."""
    return {**os.environ, "PYTHONPATH": str(Path(latecomer.__file__).parent.parent)}


def start(folder: Path, *words: object) -> subprocess.Popen[str]:
    """`latecomer ...` in a folder; warnings are errors there too."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "latecomer", *map(str, words)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
