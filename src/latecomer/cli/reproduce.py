"""latecomer reproduce: a table or a figure of a paper, ours beside the paper's."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LatecomerError, RunError
from ..settings import parse, setting, settings_of
from . import flags, screen
from .columns import Column, grid, pages
from .show import lines

if TYPE_CHECKING:
    from ..runs.run import Run
    from ..study.reproduce import Measured, Table

USAGE = """Usage: latecomer reproduce RECIPE [--setting value ...]

Runs what is missing of a paper's table or figure, goes on with what was interrupted, and prints ours beside the
paper's. RECIPE is a name, such as pefll/table-1, or the path of a file of one's own.
"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """How a recipe is reproduced."""

    only: tuple[str, ...] = setting((), "rows, columns or cells (ROW@COLUMN) to run and to show; none: all")
    quick: bool = setting(False, "a version of minutes on small data that checks the order which the paper claims")
    out: str = setting("runs", "folder that holds the recipe's folder, with a run for every cell")
    jobs: int = setting(1, "processes that run cells side by side", low=1)
    minutes: float = setting(
        0.0, "begin no run after so many minutes, and stop those at work where they can go on; 0: all in one go", low=0
    )
    device: str = setting("auto", "cpu, cuda, or auto: cuda where there is one")
    runs_only: bool = setting(False, "run what is missing, and print nothing about what is there")


def main(words: list[str]) -> int:
    name, words = flags.subject(words, "latecomer reproduce RECIPE")
    asked = parse(Request, flags.read(words, settings_of(Request), flags.switches(Request)))
    from ..study import reproduce, summary
    from ..study.jobs import until
    from ..study.recipe import Recipe
    from .drive import ending

    recipe, out = Recipe.find(name), Path(asked.out)
    cells, place = recipe.chosen(asked.quick, asked.only), {"device": asked.device}
    if asked.jobs > 1 or asked.minutes:
        words = [name, "--out", asked.out, "--device", asked.device, *(["--quick"] if asked.quick else [])]
        with ending():
            missed = reproduce.side_by_side(recipe, cells, asked.quick, out, asked.jobs, until(asked.minutes), words)
    else:
        missed = reproduce.run_missing(recipe, cells, asked.quick, out, train, place)
    if asked.runs_only:
        if missed:
            raise RunError(missed[0])
        return 0
    table = reproduce.gather(recipe, asked.quick, out, missed)
    if not (shown := table.of(cells)).cells:
        raise RunError(f"Nothing of {recipe.name} could be had: {' '.join(table.missing)}")
    show(shown)
    try:
        figures = analysed(table, out)
    except LatecomerError as error:
        figures = []
        table.missing.append(f"There is no figure: {error}")
    for path in (summary.write_summary(table, out), *figures):
        print(path)
    for sentence in table.missing:
        screen.err(f"Note: {sentence}")
    return 2 if table.missing else 0


def train(run: Run, label: str) -> bool:
    """Train one cell; whether it came to its end."""
    from .drive import stopping

    for note in run.training.notes:
        screen.err(f"Note: {label}: {note}")
    with screen.watching() as watch, stopping(run):
        return run.go(watch(label, run.training, lambda: run.stop)) is not None


def analysed(table: Table, out: Path) -> list[Path]:
    """The figure that the paper has, of our runs, and what the paper says of it."""
    if not table.recipe.analysis:
        return []
    from ..study import analyses, reproduce
    from ..study.claims import FigureClaim
    from .analyse import show as show_analysis

    wanted = table.recipe.analysed(table.quick)
    rows = wanted.get("rows", table.recipe.rows)
    runs = [cell.run.path for cell in table.cells if cell.row in rows]
    found = analyses.analyse(str(wanted["name"]), runs, wanted["settings"])
    show_analysis(found)
    claims = [FigureClaim.read(claim).checked(found.columns, found.rows) for claim in wanted.get("claims", [])]
    told = [sentence for some in claims for sentence in some]
    for sentence in told:
        screen.out(sentence)
    for note in found.notes:
        screen.err(f"Note: {note}")
    asked = {"asked": table.recipe.analysis_asked(table.quick)}
    found = replace(found, notes=[*found.notes, *told], about={**found.about, **asked})
    written, missed = found.save(reproduce.place(table.recipe, table.quick, out), "figure")
    for sentence in missed:
        screen.err(f"Note: {sentence}")
    return written


def show(table: Table) -> None:
    """A line a cell: ours, the paper's, the difference, and what it took; what it is better by; what was claimed."""
    recipe = table.recipe
    screen.out(recipe.title)
    if table.quick:
        screen.out(" ".join(recipe.explained(quick=True).split()))
    cells, room = table.cells, screen.width()
    names = [("", [cell.row for cell in cells])]
    names += [("column", [cell.column for cell in cells])] if recipe.columns != ("",) else []
    blocks = [scored(metric, cells) for metric in recipe.metrics]
    for page in pages(names, [*blocks, costs(cells)], room):
        screen.out(grid(page))
    if any(gain is not None for cell in cells for gain in cell.gain.values()):
        best = sorted({*table.simplest.values()})
        screen.out(f"More than {' or '.join(best)}, of the simple rows the one that validation data like best:")
        gains = [[(heading(metric), [str(cell.gain[metric] or "") for cell in cells])] for metric in recipe.metrics]
        for page in pages(names, gains, room):
            screen.out(grid(page))
    for sentence in table.leaders:
        screen.out(sentence)
    for one in table.claims:
        screen.out(f"{one.claim}: {one.verdict} ({one.difference}, over {one.difference.count} {one.difference.over})")


def scored(metric: str, cells: Sequence[Measured]) -> list[Column]:
    """Ours, and where the paper has any, its numbers and the difference."""
    found = [(heading(metric), [both(*cell.scores[metric]) for cell in cells])]
    if any(not math.isnan(cell.paper[metric][0]) for cell in cells):
        gaps = [cell.difference(metric) for cell in cells]
        found.append(("paper", [both(*cell.paper[metric]) for cell in cells]))
        found.append(("ours\nmore", ["" if math.isnan(gap) else f"{gap:+.1f}" for gap in gaps]))
    return found


def costs(cells: Sequence[Measured]) -> list[Column]:
    """Kilobytes to and from a client in a round, and the seconds of all seeds together."""
    sent = [cell.run.result.get("bytes_per_client_round") or {} for cell in cells]
    found = [
        (f"kB\n{way}", [screen.kilobytes(each[way]) if way in each else "" for each in sent]) for way in ("down", "up")
    ]
    return [*found, ("seconds", [f"{cell.run.result.get('seconds', math.nan):.0f}" for cell in cells])]


def heading(metric: str) -> str:
    """A metric in lines, so that a column is no wider than its numbers."""
    return re.sub(r"\.|_(?!classes)", "\n", metric).replace("_", " ")


def both(mean: float, spread: float) -> str:
    if math.isnan(mean):
        return ""
    return f"{mean:.1f}" if math.isnan(spread) else f"{mean:.1f} ± {spread:.1f}"


def explain(words: list[str]) -> None:
    from ..study.recipe_file import titles

    print(USAGE)
    screen.section("Settings", lines(Request, {}))
    screen.section("Recipes", [*titles().items()])
