"""latecomer analyse: what finished runs show of what the papers' figures show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import SettingError
from ..settings import settings_of
from ..study import analyses
from . import flags, screen
from .columns import grid, pages
from .show import lines
from .streams import plain

USAGE = """Usage: latecomer analyse NAME RUN... [--setting value ...] [-o FOLDER]

Prints a table, and writes it with its figure to FOLDER/NAME.json and FOLDER/NAME.svg, by default in the first run's own
folder `analyses`. Nothing is trained but what a client trains to get its model. Without a name it lists the analyses;
latecomer analyse NAME --help says what one can be told.
"""


def main(words: list[str]) -> int:
    if not words:
        screen.section("Analyses", list(analyses.names().items()))
        return 0
    name, words = flags.subject(words, "latecomer analyse NAME RUN...")
    with screen.working("Analysing"):
        kind = analyses.get(name).Settings
        runs, words = flags.subjects(words)
        given = flags.read(flags.long(words), {*settings_of(kind), "output"}, flags.switches(kind))
        folder = given.pop("output", "")
        if not runs:
            raise SettingError(f"Say which runs: latecomer analyse {name} RUN...; --help says more.")
        found = analyses.analyse(name, runs, given)
        written, missed = found.save(Path(folder or Path(found.about["runs"][0]) / "analyses"), name)
    show(found)
    for note in (*found.notes, *missed):
        screen.err(f"Note: {note}")
    for path in written:
        print(path)
    return 0


def show(found: analyses.Analysis) -> None:
    """Its table; the first columns of text say what a row is about."""
    columns = [
        (plain(head), cells([row[place] for row in found.rows if place < len(row)]))
        for place, head in enumerate(found.columns)
    ]
    texts = [all(isinstance(row[place], str) for row in found.rows) for place in range(len(columns))]
    names = max(1, [*texts, False].index(False))
    screen.out(found.title)
    for page in pages(columns[:names], [[column] for column in columns[names:]], screen.width()):
        screen.out(grid(page, names))


def cells(values: Sequence[Any]) -> list[str]:
    """A column. Round numbers stand as they are; else the largest has four digits, percent one behind the point."""
    numbers = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
    largest = max(numbers, default=0.0)
    digits = 1 if 10 < largest <= 100 else max(0, 3 - math.floor(math.log10(largest))) if largest else 1
    plainly = digits <= 6 and any(value != float(f"{value:.4g}") for value in numbers)

    def one(value: Any) -> str:
        if not isinstance(value, float):
            return plain(str(value))
        if value != value:
            return "-"
        return f"{value:.{digits}f}" if plainly else f"{value:.4g}"

    return [one(value) for value in values]


def explain(words: list[str]) -> None:
    print(USAGE)
    if not words:
        screen.section("Analyses", list(analyses.names().items()))
        return
    kind = analyses.get(words[0])
    print(f"{(kind.__doc__ or '').strip()}\n")
    if known := lines(kind.Settings, {}):
        screen.section(f"Settings of {words[0]}", known)
