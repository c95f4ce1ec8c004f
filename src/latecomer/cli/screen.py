"""What the command line writes: tables to stdout, progress to stderr. Bars only on a terminal, lines elsewhere."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .streams import plain

if TYPE_CHECKING:
    from ..train import Training

Watch = Callable[["Training", dict[str, Any] | None], None]


def out(*parts: Any) -> None:
    told = (plain(part) if isinstance(part, str) else part for part in parts)
    Console(markup=False, emoji=False, highlight=False, width=width()).print(*told)


def err(text: str) -> None:
    print(plain(text), file=sys.stderr, flush=True)


def width() -> int:
    """How many characters fit beside each other; where nobody looks at a terminal, as many as a page has."""
    return shutil.get_terminal_size((120, 24)).columns


def section(heading: str, lines: Sequence[Sequence[str]]) -> None:
    """A heading and columns; the last one wraps on a terminal, and stays on its line where `grep` may read it."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]) - 1)]
    margin = 2 + sum(width + 2 for width in widths)
    room = max(shutil.get_terminal_size().columns - margin, 30) if sys.stdout.isatty() else sys.maxsize
    print(heading)
    for *cells, last in lines:
        first = "  " + "".join(f"{cell:<{width + 2}}" for cell, width in zip(cells, widths, strict=True))
        print((first + f"\n{'':<{margin}}".join(textwrap.wrap(last, room))).rstrip())
    print()


def kilobytes(count: float) -> str:
    return f"{count / 1000:,.1f}"


@contextmanager
def working(text: str) -> Iterator[None]:
    """A sign of life on a terminal while something takes seconds."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(text):
        yield


@contextmanager
def watching() -> Iterator[Callable[..., Watch]]:
    """Gives a function that makes a progress display for one training: `watch(label, training, stopping)`."""
    if not sys.stderr.isatty():
        yield Lines
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[news]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield lambda *arguments: Bar(progress, *arguments)


class Pace:
    """Rounds a second, and the latest scores, in words."""

    def __init__(self, training: Training) -> None:
        self.first, self.began, self.scores = training.round, time.monotonic(), ""

    def __call__(self, training: Training, metrics: dict[str, Any] | None) -> str:
        if metrics is not None:
            runs = metrics["runs"]
            validation = sum(run["validation"] for run in runs) / len(runs)
            seen = sum(run["seen"]["accuracy"] for run in runs) / len(runs)
            named = {"validation": validation, "seen": seen}
            self.scores = "".join(f", {name} {score:.1f} %" for name, score in named.items() if not math.isnan(score))
        speed = (training.round - self.first) / max(time.monotonic() - self.began, 1e-9)
        return f"{speed:.3g} rounds/s{self.scores}"


class Bar:
    """One line on a terminal, redrawn as it goes."""

    def __init__(
        self, progress: Progress, label: str, training: Training, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.progress, self.stopping, self.pace = progress, stopping, Pace(training)
        self.news = ""
        self.task = progress.add_task(label, total=training.plan.rounds, completed=training.round, news=self)

    def __call__(self, training: Training, metrics: dict[str, Any] | None) -> None:
        self.news = self.pace(training, metrics)
        self.progress.update(self.task, completed=training.round)

    def __str__(self) -> str:
        """Asked at every redraw, also in the middle of a long round."""
        return "stopping after this round" if self.stopping() else self.news


class Lines:
    """For logs: a line at once, then one whenever some time has gone by, and one for the last round."""

    pause = 30.0  # seconds

    def __init__(self, label: str, training: Training, stopping: Callable[[], bool] = lambda: False) -> None:
        self.label, self.pace = label, Pace(training)
        self._tell(training)

    def __call__(self, training: Training, metrics: dict[str, Any] | None) -> None:
        news = self.pace(training, metrics)
        if training.round == training.plan.rounds or time.monotonic() - self.told >= self.pause:
            self._tell(training, f", {news}")

    def _tell(self, training: Training, news: str = "") -> None:
        err(f"{self.label}: round {training.round} of {training.plan.rounds}{news}")
        self.told = time.monotonic()
