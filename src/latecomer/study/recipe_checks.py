"""What is wrong with a recipe is a sentence before anything is trained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .. import methods
from ..errors import SettingError, UnknownName
from .claims import FigureClaim
from .finished import METRIC
from .recipe_file import number

if TYPE_CHECKING:
    from .recipe import Cell, Recipe

KEYS = {
    *("title", "paper", "about", "metrics", "claims", "simple", "settings", "columns", "rows", "numbers"),
    *("analysis", "tune", "tuned_as", "quick", "runs"),
}
QUICK = {"about", "rows", "columns", "claims", "settings", "row", "column", "analysis"}
ANALYSIS = {"name", "rows", "settings", "claims"}
TUNE = {"search", "trials", "rounds", "share", "evaluate_every", "seed", "seeds", "validators"}


def check_words(name: str, told: Mapping[str, Any]) -> None:
    """That a file says nothing that nobody would read."""
    for key in told:
        one_of("key", key, KEYS, name)
    for part, known in {"quick": QUICK, "analysis": ANALYSIS, "tune": TUNE}.items():
        for key in told.get(part, {}):
            one_of(f"key of [{part}]", key, known, name)


def check(recipe: Recipe) -> None:
    """That what is named exists, what is a number can be read, and every cell has a method and a folder of its own."""
    for metric in recipe.metrics:
        if not METRIC.fullmatch(metric):
            raise SettingError(
                f"{recipe.name} has the metric {metric!r}; one is GROUP.SCORE, such as unseen.own_classes."
            )
    searched = recipe.tune.get("search", {})
    found = (*recipe.tuned.get("rows", {}), *recipe.tuned_quick.get("rows", {}))
    for row in (*recipe.simple, *found, *recipe.told.get("numbers", {}), *searched):
        one_of("row", row, recipe.rows, recipe.name)
    _check_numbers(recipe)
    for folder in (recipe.name, recipe.runs):
        if not re.search(r"\w", folder.rpartition("/")[2]):  # .. would lead out of --out
            raise SettingError(f"{recipe.name} would have its runs in {folder!r}, which is no name of a recipe.")
    _check_parts(recipe)
    for tuned in (recipe.tuned, recipe.tuned_quick):
        _check_tuned(recipe, tuned, searched)
    tried = {setting for row in searched.values() for setting in dict(row)}
    for column in recipe.columns:
        one_of("column", recipe.tuned_at(column), recipe.columns, recipe.name)
        for setting in recipe.told.get("columns", {}).get(column, {}).get("search", {}):
            one_of("searched setting", setting, tried, recipe.name)
    _check_analysis(recipe)
    for quick in (False, True):
        _check_cells(recipe, recipe.cells(quick))
        recipe.claims(quick)
        for text in recipe.analysed(quick).get("claims", []):
            FigureClaim.read(text)


def _check_parts(recipe: Recipe) -> None:
    """That what is said of a row or a column is of one that there is."""
    quick = recipe.told.get("quick", {})
    for row in (*quick.get("row", {}), *quick.get("rows", ())):
        one_of("row", row, recipe.rows, recipe.name)
    own = (column for row in recipe.told["rows"].values() for column in row.get("at", {}))
    for column in (*quick.get("column", {}), *quick.get("columns", ()), *own):
        one_of("column", column, recipe.columns, recipe.name)


def _check_tuned(recipe: Recipe, tuned: Mapping[str, Any], searched: Mapping[str, Any]) -> None:
    """That the file of what searches found says nothing that no search looked for: rounds, say, which all share."""
    for row, part in tuned.get("rows", {}).items():
        one_of("searched row", row, searched, recipe.name)
        for column in part.get("at", {}):
            one_of("column", column, recipe.columns, recipe.name)
        for some in (part, *part.get("at", {}).values()):
            for setting in some.keys() - {"at"}:
                one_of(f"searched setting of {row}", setting, searched[row], recipe.name)


def _check_numbers(recipe: Recipe) -> None:
    for (row, column), given in recipe.numbers.items():
        one_of("column", column, recipe.columns, recipe.name)
        if len(given) != len(recipe.metrics):
            label = f"{row}@{column}" if column else row
            raise SettingError(
                f"{recipe.name} has {len(given)} numbers for {label}, and {len(recipe.metrics)} metrics."
            )
        for text in given:
            number(text)


def _check_cells(recipe: Recipe, cells: list[Cell]) -> None:
    """Names that --only and claims can say, and that make a folder of each cell's own."""
    for cell in cells:
        one_of("row", cell.row, recipe.rows, recipe.name)
        one_of("column", cell.column, recipe.columns, recipe.name)
        for word in cell.key:
            if not re.fullmatch(r"[^\s@,]*", word) or word.startswith((".", "-")):
                raise SettingError(
                    f"{recipe.name} has a row or column {word!r}; names are without blanks, commas and @, and begin "
                    "neither with a dot nor with a dash."
                )
        methods.get(cell.settings["method"])
    if len({cell.name for cell in cells}) < len(cells):
        raise SettingError(
            f"{recipe.name} has cells whose runs would have one folder; give rows or columns other names."
        )


def _check_analysis(recipe: Recipe) -> None:
    """Its name and its rows exist; otherwise it would be found out when everything is trained."""
    from . import analyses

    if recipe.analysis:
        one_of("analysis", recipe.analysis["name"], analyses.names(), recipe.name)
        for row in recipe.analysis.get("rows", ()):
            one_of("row", row, recipe.rows, recipe.name)


def one_of(kind: str, name: str, allowed: Iterable[str], recipe: str) -> None:
    if name not in {*allowed}:
        raise UnknownName(f"{kind} of {recipe}", name, allowed)
