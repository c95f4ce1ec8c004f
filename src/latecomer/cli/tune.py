"""latecomer tune: choose settings by validation data, with a budget."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from .. import methods
from ..errors import LatecomerError
from ..runs.files import check_name
from ..runs.settings import Place, Settings, Tracking
from ..settings import parse, setting, settings_of
from . import flags, screen
from .run import read_file
from .show import lines

if TYPE_CHECKING:
    from ..study.jobs import Job
    from ..study.recipe import Cell
    from ..study.tune.tune import Tuned

USAGE = """Usage: latecomer tune METHOD [--setting value ...] [--settings FILE.toml]
       latecomer tune --recipe RECIPE [--only ROW,...] [--quick] [--jobs 1] [--minutes 0] [--out runs] [-o FOLDER]

Tries settings of a method side by side and writes the best to tuned.toml, which latecomer run METHOD --settings takes.
Clients that do not train choose, by their validation data. The same command again goes on where it was interrupted.
Other settings are those of `latecomer run`. With --recipe every row of a recipe is tuned with the recipe's own budget,
and FOLDER (by default that of the searches) gets the NAME.tuned.toml, or NAME.quick.tuned.toml, that
`latecomer reproduce` finds beside a recipe.
"""

NOT_HERE = {
    *settings_of(Place),
    *settings_of(Tracking),
    "method",
    "seed",
    "seeds",
    "start",
    "continue_from",
    "watch_unseen",
    "checkpoint_seconds",
}
"""Settings of a run that a trial has not, or that --tune-seed and --tune-seeds stand for."""
PAUSE = 30.0  # seconds between lines in a log


@dataclass(frozen=True, kw_only=True)
class Whole:
    """How all rows of a recipe are tuned."""

    only: tuple[str, ...] = setting((), "rows, columns or cells (ROW@COLUMN) to tune; none: all")
    quick: bool = setting(False, "the quick version of the recipe")
    out: str = setting("runs", "folder that holds the searches")
    device: str = setting("auto", "cpu, cuda, or auto: cuda where there is one")
    jobs: int = setting(1, "processes that search side by side", low=1)
    minutes: float = setting(
        0.0,
        "begin no search after so many minutes, and end those at work: they go on next time; 0: all in one go",
        low=0,
    )
    output: str = setting("", "folder that the tuned settings are written to; empty: that of the searches")


def main(words: list[str]) -> int:
    name, rest = flags.pull(words, "recipe")
    if name:
        return whole(name, parse(Whole, flags.given(flags.long(rest), Whole)))
    method, words = flags.subject(words, "latecomer tune METHOD")
    kind = methods.get(method)
    with screen.working("Preparing"):
        from ..runs import host
        from ..study.tune.search import Tuning
        from ..study.tune.tune import Search, tune

        path, words = flags.pull(words, "settings")
        names = {name for owner in (Tuning, Settings, kind) for name in settings_of(owner)} - NOT_HERE
        switches = {name for owner in (Tuning, Settings, kind) for name in flags.switches(owner)}
        given: dict[str, Any] = flags.read(words, names, switches)
        tuning = parse(Tuning, {name: given.pop(name) for name in settings_of(Tuning) if name in given})
        search = Search.of(method, (read_file(path) if path else {}) | given, tuning)
        host.prepare(search.base.settings)
    s = search.base.settings
    if s.name:
        check_name(s.name)
    name = s.name or f"tune-{s.method}-{re.sub(r'[/:]', '_', s.data)}"
    with telling(s.method) as tell:
        tuned = tune(search, Path(s.out) / name, tell)
    summarise(tuned)
    screen.out(f"Run it with: latecomer run {s.method} --settings {shlex.quote(str(tuned.path / 'tuned.toml'))} ...")
    print(tuned.path / "tuned.toml")
    return 0


def whole(name: str, asked: Whole) -> int:
    """Tune every row of a recipe; what cannot be tuned is a sentence, and the others go on."""
    from ..runs import host
    from ..study import jobs
    from ..study.recipe import Recipe
    from ..study.recipe_file import tuned_name
    from ..study.reproduce import place
    from ..study.tune import table
    from ..study.tune.tune import over, tune
    from .drive import ending

    recipe = Recipe.find(name)
    folder = place(recipe, asked.quick, Path(asked.out) / "tune")
    path = Path(asked.output or folder) / tuned_name(Path(recipe.name).name, asked.quick)
    cells, missed, apart = table.cells(recipe, asked.quick, asked.only), [], asked.jobs > 1 or asked.minutes > 0
    if apart:
        with ending():
            missed = jobs.side_by_side(_works(name, cells, folder, asked), asked.jobs, jobs.until(asked.minutes))
    for cell in cells:
        label = cell.label
        try:
            search = table.search(recipe, cell, {"device": asked.device})
            tuned = over(search, folder / cell.name)
            if tuned is None:
                if apart:  # said already, why it is not
                    continue
                host.prepare(search.base.settings)
                with telling(label) as tell:
                    tuned = tune(search, folder / cell.name, tell)
            table.write(recipe, path, cell, tuned.settings)
            best = ", ".join(f"{key} {value}" for key, value in tuned.settings.items())
            screen.out(f"{label}: {best} ({tuned.best.score:.2f} % of {len(tuned.trials)} trials)")
        except LatecomerError as error:
            missed.append(f"{label}: {error}")
    for sentence in dict.fromkeys(missed):  # a process may have said so, too
        screen.err(f"Note: {sentence}")
    if path.is_file():
        print(path)
    return 2 if missed else 0


def _works(name: str, cells: Sequence[Cell], folder: Path, asked: Whole) -> list[Job]:
    """A process for every search; what it finds is read from its folder afterwards, so that one writes the file."""
    from ..study.jobs import Job

    how = ["--out", asked.out, "--device", asked.device, *(["--quick"] if asked.quick else [])]
    works = []
    for cell in cells:
        words = ["tune", "--recipe", name, f"--only={cell.label}", *how, "--output", str(folder / cell.name)]
        works.append(Job(cell.label, words, folder / f"{cell.name}.log"))
    return works


def explain(words: list[str]) -> None:
    from ..study.tune.search import Tuning

    print(USAGE)
    screen.section("The search and its budget", lines(Tuning, {}))


@contextmanager
def telling(label: str) -> Iterator[Callable[[str], None]]:
    """How far a search is: a line that changes on a terminal, and now and then a new one elsewhere."""
    try:
        if sys.stderr.isatty():
            with Console(stderr=True).status(label) as status:
                yield lambda news: status.update(f"{label}: {news}")
        else:
            told = [time.monotonic() - PAUSE]

            def tell(news: str) -> None:
                if time.monotonic() - told[0] >= PAUSE:
                    screen.err(f"{label}: {news}")
                    told[0] = time.monotonic()

            yield tell
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Interrupted; the same command goes on after the trials that are over.") from None


def summarise(tuned: Tuned) -> None:
    """All trials, the best first."""
    table = Table("trial", *tuned.search.space, "validation, %", "round", "")
    for column in table.columns[:-1]:
        column.justify = "right"
    for trial in sorted(tuned.trials, key=lambda trial: (-trial.score, trial.number)):
        values = (f"{value:g}" if isinstance(value, float) else str(value) for value in trial.settings.values())
        ended = f"ended at {max(trial.scores)}" if trial.ended else ""
        table.add_row(str(trial.number), *values, f"{trial.score:.2f}", str(trial.round), ended)
    screen.out(table)
    best = ", ".join(f"{name} {value}" for name, value in tuned.settings.items())
    screen.out(f"Best of {len(tuned.trials)}: {best}")
