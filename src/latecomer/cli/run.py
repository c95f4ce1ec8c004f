"""latecomer run: train a method and write a run folder."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import methods
from ..errors import SettingError
from ..runs.settings import Settings
from . import flags, screen
from .drive import drive
from .show import show

if TYPE_CHECKING:
    from ..runs.run import Run

USAGE = """Usage: latecomer run METHOD [--setting value ...] [--settings FILE.toml]
       latecomer run --continue-from FOLDER [--setting value ...]

A setting is given as --name value or --name=value; a switch as --name or --no-name; several values as 0,90,180.
"""


def main(words: list[str]) -> int:
    with screen.working("Preparing"):
        run = begin(words)
    return drive(run)


def explain(words: list[str]) -> None:
    print(USAGE)
    show(words[0] if words and not words[0].startswith("-") else "run")


def begin(words: list[str]) -> Run:
    """The run that a command line asks for, with everything in place and nothing trained."""
    method = words[0] if words and not words[0].startswith("-") else ""
    path, words = flags.pull(words[1:] if method else words, "settings")
    stored = read_file(path) if path else {}
    method = method or str(stored.get("method", "")) or continued(words, stored)
    if not method:
        raise SettingError("Say which method to run: latecomer run METHOD; `latecomer list methods` names them.")
    kind = methods.get(method)
    given = flags.given(words, Settings, kind)
    from ..runs import host
    from ..runs.experiment import Experiment  # here, because an unknown name should not have to wait for the rest
    from ..runs.run import Run

    experiment = Experiment.parse(method, stored | given)
    host.prepare(experiment.settings)
    return Run.begin(experiment)


def continued(words: list[str], stored: dict[str, Any]) -> str:
    """The method of the run that is to be continued; empty where there is none."""
    path = flags.pull(words, "continue_from")[0] or str(stored.get("continue_from", ""))
    if not path:
        return ""
    from ..runs.earlier import Earlier

    return Earlier(Path(path)).method


def read_file(path: str) -> dict[str, Any]:
    """Settings from TOML: a flat table, or the tables [run] and [method] of a run folder's settings.toml."""
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise SettingError(f"--settings {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SettingError(f"--settings {path} is not TOML: {error}.") from error
    for table in ("about", "task"):
        values.pop(table, None)
    tables = [values.pop(key) for key in ("run", "method") if isinstance(values.get(key), dict)]
    for table in tables:
        values |= table
    return {key.replace("-", "_"): value for key, value in values.items()}
