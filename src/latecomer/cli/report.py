"""latecomer report: finished runs beside each other, on one page for a browser."""

from __future__ import annotations

from pathlib import Path

from ..errors import SettingError
from . import flags, screen

USAGE = """Usage: latecomer report RUN... [-o report.html] [--baseline RUN] [--gate]

Writes one page that needs no network: scores of members and latecomers with differences to a baseline (by default the
first run), costs, learning curves, distributions, a map of the clients, and the settings in which the runs differ. Runs
of other data or other splits are kept apart; one that is unfinished or damaged is left out, and the page says so. On
a map a latecomer is covered if a member is of its kind; with --gate, if the gate of the run says so, for which the run
needs validators and its data.
"""


def main(words: list[str]) -> int:
    output, words = flags.pull(flags.long(words), "output")
    baseline, words = flags.pull(words, "baseline")
    asked = flags.read(
        [word for word in words if word.startswith("-")], ["output", "baseline", "gate"], {"gate"}
    )  # any other is unknown
    words = [word for word in words if not word.startswith("-")]
    if not words:
        raise SettingError("Say which runs: latecomer report RUN...; --help says more.")
    with screen.working("Writing the report"):
        from ..report.write import report  # here, because a misspelt word should not have to wait for it

        path = Path(output or "report.html")
        notes = report(
            [Path(word) for word in words], path, Path(baseline) if baseline else None, gate=asked.get("gate") == "true"
        )
    for note in notes:
        screen.err(f"Note: {note}")
    print(path)
    return 0


def explain(words: list[str]) -> None:
    print(USAGE)
