"""latecomer results: the page of all that was measured, from summaries and records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import RunError
from ..settings import parse, setting, settings_of
from . import flags, screen
from .show import lines

USAGE = """Usage: latecomer results SUMMARY... [-o FILE.md] [--record FOLDER]

Writes a page of what `latecomer reproduce` measured. SUMMARY is a summary.json, a folder of recipes' runs (runs), or a
folder of records (docs/results). With --record the summaries are added to the records first: a cell that was measured
later replaces the earlier one, and the page shows all that is recorded.
"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What becomes of summaries."""

    output: str = setting("docs/results.md", "the page, as Markdown")
    record: str = setting("", "folder of records that they are added to, one file a recipe; empty: none")


def main(words: list[str]) -> int:
    names, rest = flags.subjects(words)
    asked = parse(Request, flags.read(flags.long(rest), settings_of(Request)))
    from ..runs.files import write
    from ..study import results, results_page

    if not names and not asked.record:
        raise RunError("Say of what: latecomer results SUMMARY...; --help says more.")
    found, notes = results.read_all(results.find(map(Path, names)))
    if asked.record:
        folder = Path(asked.record)
        found, more = results.keep(found, folder)
        mine = {record.name for record in found}
        others = results.find([folder] if folder.exists() else [])
        kept, damaged = results.read_all([path for path in others if path.stem not in mine])
        found, notes = [*found, *kept], [*notes, *more, *damaged]
    for sentence in notes:
        screen.err(f"Note: {sentence}")
    if not found:
        raise RunError("Nothing was measured that a page could show.")
    path = Path(asked.output)
    write(path, results_page.page(found, path))
    print(path)
    return 2 if notes else 0


def explain(words: list[str]) -> None:
    print(USAGE)
    screen.section("Settings", lines(Request, {}))
