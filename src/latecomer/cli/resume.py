"""latecomer resume: go on where a stopped run's last checkpoint is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import SettingError
from ..runs.settings import Place, Tracking
from ..settings import parse, settings_of
from . import flags, screen
from .drive import drive

USAGE = """Usage: latecomer resume FOLDER [--workers N] [--ray-address HOST:PORT] [--track TRACKER]

Goes on where the last checkpoint of a stopped run is, with the settings of that run; the result is the same as if it
had never stopped. A run by --engine ray may go on with other workers, and on another cluster, and any with another
tracker (none, tensorboard, mlflow).
"""


def main(words: list[str]) -> int:
    place: dict[str, Any] = {}
    for kind in (Place, Tracking):
        for name in settings_of(kind):
            value, words = flags.pull(words, name)
            place |= {name: getattr(parse(kind, {name: value}), name)} if value else {}
    folders = [word for word in words if not word.startswith("-")]
    if len(folders) < len(words):
        raise SettingError(
            f"A run cannot be resumed with other settings, such as {next(w for w in words if w.startswith('-'))}; "
            "it goes on with those in its settings.toml."
        )
    if len(folders) != 1:
        raise SettingError(f"latecomer resume takes one run folder; got {' '.join(folders) or 'none'}.")
    if os.path.isfile(Path(folders[0]) / "nodes.json"):
        raise SettingError(f"The clients of {folders[0]} are nodes; `latecomer flower run` goes on with it.")
    with screen.working("Preparing"):
        from ..runs import host
        from ..runs.run import Run

        run = Run.resume(Path(folders[0]), host.prepare, **place)
    return drive(run)


def explain(words: list[str]) -> None:
    print(USAGE, end="")
