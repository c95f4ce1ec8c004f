"""Records: all that was measured of recipes, on whatever machine and day. `results_page.py` makes a page of them.

A record is a summary (`summary.py`) that several machines add to. Each cell says where, when and by which commit
it was measured; of two measurements of a cell the later one counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..runs.files import write
from .recipe import Recipe, at
from .recipe_file import folder_name, names
from .results_checks import KEPT, check


@dataclass(frozen=True)
class Record:
    """What is known of one recipe."""

    told: dict[str, Any]  # of KEPT, and perhaps an analysis
    figure: Path | None = None

    @property
    def name(self) -> str:
        """What its file is called."""
        return folder_name(self.told["recipe"], self.told["quick"])

    @property
    def cells(self) -> list[dict[str, Any]]:
        return list(self.told["cells"])


def read(path: Path) -> Record:
    """A summary beside its runs, or a record."""
    told = _json(path)
    try:
        check(told)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path} is no summary of a recipe: {error}.") from error
    kept = {key: told[key] for key in (*KEPT, "simple", "leaders", "absent", "analysis") if key in told}
    beside = path.name == "summary.json"
    figure = path.with_name("figure.svg") if beside else path.with_suffix(".svg")
    if beside and (analysis := path.with_name("figure.json")).is_file():
        kept["analysis"] = _table_of(_json(analysis), analysis)
    elif kept.get("analysis") is not None:
        kept["analysis"] = _table_of(kept["analysis"], path)
    # A link could lead to any file of the user's, which would then stand among the records for everybody to read.
    return Record(kept, figure if figure.is_file() and not figure.is_symlink() else None)


def find(paths: Iterable[Path]) -> list[Path]:
    """The files that are meant: of a folder its own summary, those of the folders in it, or else its records."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise RunError(f"There is no {path}.")
        if not path.is_dir():
            found.append(path)
        elif summaries := sorted([*path.glob("summary.json"), *path.glob("*/summary.json")]):
            found += summaries
        else:
            found += sorted(path.glob("*.json"))
    return list(dict.fromkeys(found))


def read_all(paths: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """One record a recipe, and a sentence for every file that cannot be read."""
    found, notes = dict[str, Record](), []
    for path in paths:
        try:
            record = read(path)
        except RunError as error:
            notes.append(str(error))
            continue
        found[record.name] = merged(found[record.name], record) if record.name in found else record
    return [found[name] for name in sorted(found)], notes


def merged(one: Record, other: Record) -> Record:
    """Both: of a cell the later measurement, and claims whose two cells are still there.

    The order of the two matters only where the same runs were summarised twice: then the other's words count, for all
    of its cells, as claims stand on pairs of them.

    A claim is about two runs, as is a gain over the best simple row; who leads, and a figure, are about all. What
    neither of the two has seen together, nobody has compared.
    """
    early, late = sorted((one, other), key=_age)
    cells = {_key(cell): cell for cell in sorted((*early.cells, *late.cells), key=_moment)}
    order = dict.fromkeys(_key(cell) for cell in (*late.cells, *early.cells))
    claims = dict[str, Any]()
    for record in (late, early):
        for claim in record.told["claims"]:
            if _stands(claim, record, cells):
                claims.setdefault(claim["claim"], claim)
    whole = [record for record in (late, early) if all(cell in record.cells for cell in cells.values())]
    told = early.told | late.told | {"claims": [*claims.values()]}
    told["leaders"] = next((record.told["leaders"] for record in whole if "leaders" in record.told), [])
    told.pop("analysis", None)
    if found := [record.told["analysis"] for record in whole if "analysis" in record.told]:
        told["analysis"] = found[0]
    there = {label(cell) for cell in cells.values()}
    absent = dict.fromkeys((*late.told.get("absent", []), *early.told.get("absent", [])))
    told["absent"] = [name for name in absent if name not in there]
    columns = early.told.get("simple", {}) | late.told.get("simple", {})
    simple = {column: row for column in columns if (row := _simplest(column, (late, early), cells)) is not None}
    told.pop("simple", None)
    if simple:
        told["simple"] = simple
    told["cells"] = [_compared(cells[key], (early, late), simple, cells) for key in order]
    return Record(told, next((record.figure for record in whole if record.figure is not None), None))


def keep(records: Sequence[Record], folder: Path) -> tuple[list[Record], list[str]]:
    """Add to the records of a folder; the records as they are now, and a sentence for each that is left alone.

    A record of which nothing is left is no more.
    """
    kept, notes = list[Record](), list[str]()
    for record in records:
        path = folder / f"{record.name}.json"
        try:
            record, gone = _as_now(record)
            if path.exists():
                before, more = _as_now(read(path))
                record, gone = merged(before, record), [*more, *gone]
            notes += dict.fromkeys(gone)
            target, figure = path.with_suffix(".svg"), record.figure
            if figure is None:
                target.unlink(missing_ok=True)  # it was of earlier runs
            if not record.cells:
                path.unlink(missing_ok=True)
                continue
            write(path, laid_out(record.told))
            if figure is not None and not record.told["quick"] and figure.resolve() != target.resolve():
                write(target, figure.read_text(encoding="utf-8", errors="replace"))
            kept.append(Record(record.told, target if target.is_file() else None))
        except RunError as error:
            notes.append(str(error))
            kept.append(record)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}.") from error
    return kept, notes


def _as_now(record: Record) -> tuple[Record, list[str]]:
    """In the words of its recipe as that is now, without cells and claims that it has no more; another's as it is.

    Left out, with a sentence, are cells that were measured with other settings than the recipe has now, or nobody knows
    with which: what stands in one table was asked for by one recipe. So is a figure that is made otherwise by now.
    """
    told, quick = dict(record.told), record.told["quick"]
    if told["recipe"] not in names():
        return record, []
    recipe = Recipe.find(told["recipe"])
    there = {cell.key: cell.fingerprint for cell in recipe.cells(quick)}
    claimed = {*map(str, recipe.claims(quick))}
    known = [cell for cell in record.cells if _key(cell) in there]
    told["cells"] = [cell | _paper(recipe, cell, quick) for cell in known if cell.get("settings") == there[_key(cell)]]
    told |= {"title": recipe.title, "paper": recipe.paper}
    told |= {"about": recipe.explained(quick), "metrics": [*recipe.metrics]}
    now, cells = replace(record, told=told), {_key(cell): cell for cell in told["cells"]}
    told["absent"] = [cell.label for cell in recipe.cells(quick) if cell.key not in cells]
    told["claims"] = [claim for claim in told["claims"] if claim["claim"] in claimed and _stands(claim, now, cells)]
    if simple := {column: row for column, row in told.pop("simple", {}).items() if (row, column) in cells}:
        told["simple"] = simple
    fewer = len(cells) < len(record.cells)  # what was said of all of them is said of others
    if fewer and "leaders" in told:
        told["leaders"] = []
    if fewer or ("analysis" in told and told["analysis"]["asked"] != recipe.analysis_asked(quick)):
        told.pop("analysis", None)
        now = replace(now, figure=None)
    told["cells"] = [_compared(cell, (now,), simple, cells) for cell in told["cells"]]
    gone = [label(cell) for cell in known if _key(cell) not in cells]
    why = "as measured with other settings than the recipe has now, or nobody knows with which"
    said = f"{record.name}: left out, {why}: {', '.join(gone)}."
    return now, [said] * bool(gone)


def laid_out(told: Mapping[str, Any]) -> str:
    """As JSON with a line a cell and a claim, so that a diff shows what was measured again."""

    def words(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    def part(value: Any) -> str:
        lines = isinstance(value, list) and any(isinstance(one, dict) for one in value)
        return "[\n  " + ",\n  ".join(map(words, value)) + "\n ]" if lines else words(value)

    return "{\n " + ",\n ".join(f"{words(key)}: {part(value)}" for key, value in told.items()) + "\n}\n"


def _json(path: Path) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not JSON: {error}.") from error


def _paper(recipe: Recipe, cell: Mapping[str, Any], quick: bool) -> dict[str, Any]:
    """The paper's numbers of a cell, as the recipe has them."""
    if quick:
        return {}
    said = {metric: recipe.paper_says(*_key(cell), metric) for metric in recipe.metrics}
    return {"paper": {metric: [None if math.isnan(part) else part for part in pair] for metric, pair in said.items()}}


def _table_of(told: Any, path: Path) -> dict[str, Any]:
    """The table of an analysis, without the points of its figure, and as what it was asked for."""
    try:
        asked = told.get("asked", told.get("about", {}).get("asked"))
        found = {"title": str(told["title"]), "columns": [str(name) for name in told["columns"]], "asked": str(asked)}
        return found | {"rows": [list(row) for row in told["rows"]], "notes": [str(note) for note in told["notes"]]}
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is no analysis: {error!r}.") from error


def _key(cell: Mapping[str, Any]) -> tuple[str, str]:
    return cell["row"], cell["column"]


def label(cell: Mapping[str, Any]) -> str:
    """A cell as claims and --only name it."""
    return at(cell["row"], cell["column"])


def _moment(cell: Mapping[str, Any]) -> str:
    return cell.get("started") or ""


def _age(record: Record) -> str:
    return max(map(_moment, record.cells), default="")


def _simplest(column: str, records: Sequence[Record], cells: Mapping[tuple[str, str], Any]) -> str | None:
    """The simple row that others are compared with, of a record that has seen what the others chose, as it is now.

    None: of two simple rows that were measured apart nobody knows which validation data like better.
    """
    chosen = [record.told.get("simple", {}).get(column) for record in records]
    for record, row in zip(records, chosen, strict=True):
        if row is not None and all(cells.get((other, column)) in record.cells for other in chosen if other is not None):
            return str(row)
    return None


def _compared(
    cell: dict[str, Any], records: Sequence[Record], simple: Mapping[str, str], cells: Mapping[tuple[str, str], Any]
) -> dict[str, Any]:
    """A cell, with its gains if they are over the simple row as it is now."""
    column = cell["column"]
    row = simple.get(column)
    for record in records:
        same = record.told.get("simple", {}).get(column) == row and cells.get((str(row), column)) in record.cells
        if same and cell in record.cells:
            return cell
    return cell | {"gain": dict.fromkeys(cell["gain"])}


def _stands(claim: Mapping[str, Any], record: Record, cells: Mapping[tuple[str, str], Any]) -> bool:
    about = {*claim["claim"].partition(": ")[2].split(" > ")}
    mine = [cell for cell in record.cells if label(cell) in about]
    return len(mine) == len(about) and all(cells[_key(cell)] == cell for cell in mine)
