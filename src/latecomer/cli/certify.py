"""latecomer certify: what a paper's theorem promises of a finished run, term by term."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..settings import settings_of
from ..study import certify
from . import flags, screen
from .show import lines

USAGE = """Usage: latecomer certify RUN [--setting value ...] [-o FOLDER]

Prints the bound that the paper of the run's method proves, term by term, what it assumes, whether it is vacuous, and
the true gap beside it. Writes FOLDER/certificate.json, by default in the run's own folder. Nothing is trained.
latecomer certify METHOD --help says what the certificate of a method can be told.
"""


def main(words: list[str]) -> int:
    path, words = flags.subject(words, "latecomer certify RUN")
    with watching() as tell:
        run = certify.load(path)
        kind = certify.get(run.name).Settings
        given = flags.read(flags.long(words), {*settings_of(kind), "output"}, flags.switches(kind))
        folder = Path(given.pop("output", "") or path)
        found = certify.certify(run, given, tell)
        found.save(folder / "certificate.json")
    show(found)
    print(folder / "certificate.json")
    return 0


def show(found: certify.Certificate) -> None:
    screen.out(found.title)
    screen.out()
    screen.out(table([(term.name, term.value, term.how) for term in found.terms]))
    screen.out()
    screen.out(found.verdict, found.holds)
    screen.out()
    for sentence in found.assumes:
        screen.out(f"It {sentence}.")
    screen.out()
    screen.out("Errors, measured:")
    screen.out(table([(name, value, "") for name, value in found.risks]))


def table(rows: list[tuple[str, float, str]]) -> Table:
    """Numbers to six digits, so that a reader can check them."""
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    shown.add_column()
    for name, value, how in rows:
        shown.add_row(name, f"{value:.6g}", how)
    return shown


@contextmanager
def watching() -> Iterator[certify.Tell]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    columns = (TextColumn("Certifying"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("Certifying", total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)


def explain(words: list[str]) -> None:
    print(USAGE)
    if not words:
        screen.section("Methods with a bound", list(certify.THEOREMS.items()))
        return
    method = certify.load(words[0]).name if Path(words[0]).is_dir() else words[0]
    theorem = certify.get(method)
    print(f"{(theorem.__doc__ or '').strip()}\n")
    screen.section(f"Settings of the certificate of {method}", lines(theorem.Settings, {}))
