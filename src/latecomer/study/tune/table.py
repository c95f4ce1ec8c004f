"""The searches of a recipe: every row that [tune.search] names, each with the same budget, into the file beside it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import RunError, SettingError
from ...runs import files
from ...settings import dump, parse
from ..recipe import Cell, Recipe
from .search import Tuning
from .tune import Search

ASIDE = ("seed", "seeds", "watch_unseen", "checkpoint_seconds")
"""Settings of a cell that a trial has not, or that its budget stands for."""
QUARTERS = 4  # after two of which the worse trials end
BUDGET = {
    "trials": "trials",
    "rounds": "tune_rounds",
    "seed": "tune_seed",
    "seeds": "tune_seeds",
    "validators": "validators",
}
"""What [tune] calls a search's settings."""


def cells(recipe: Recipe, quick: bool, only: Sequence[str]) -> list[Cell]:
    """What is searched, without what an earlier search found: it would make the search another one.

    A column whose settings are searched at another one is not searched itself.
    """
    wanted = recipe.tune.get("search", {})
    if not wanted:
        raise SettingError(f"{recipe.name} has no [tune.search], so there is nothing to tune.")
    there = [cell for cell in replace(recipe, tuned={}, tuned_quick={}).chosen(quick, only) if cell.row in wanted]
    found = [cell for cell in there if recipe.tuned_at(cell.column) == cell.column]
    if not found:
        elsewhere = ", ".join(dict.fromkeys(recipe.tuned_at(cell.column) for cell in there))
        hint = f"settings of these columns are searched at {elsewhere}" if elsewhere else "[tune.search] names none"
        raise SettingError(f"Of {', '.join(only) or recipe.name} nothing is searched: {hint}.")
    return found


def search(recipe: Recipe, cell: Cell, place: Mapping[str, Any]) -> Search:
    """A cell's search. Rounds of a trial are no more than a run's; a warm-up keeps its share of them.

    With a `share` in the place of rounds, they are that share of the run's, and a trial is evaluated after each quarter
    of them: what an evaluation costs, strangers' models among it, would else be most of a search.
    """
    told, values = recipe.tune, {key: value for key, value in cell.settings.items() if key not in ASIDE}
    run = cell.experiment()
    tuning = parse(Tuning, {name: told[key] for key, name in BUDGET.items() if key in told})
    first, last = run.settings.seed, run.settings.seed + run.settings.seeds - 1
    if tuning.tune_seed <= last and first < tuning.tune_seed + tuning.tune_seeds:
        seed = max(first, tuning.tune_seed)
        raise SettingError(f"{recipe.name} would tune on seed {seed}, which it reports; give [tune] another seed.")
    rounds = min(tuning.tune_rounds or run.settings.rounds, run.settings.rounds)
    if "share" in told:
        share = told["share"]
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise SettingError(f"{recipe.name} has share = {share!r} in [tune]; it is above 0 and at most 1.")
        if other := {"rounds", "evaluate_every"} & told.keys():
            raise SettingError(f"{recipe.name} has share and {min(other)} in [tune]; leave one of them out.")
        rounds = max(1, round(share * rounds))
        values["evaluate_every"] = -(-rounds // QUARTERS)
    elif rounds < run.settings.rounds and "evaluate_every" in told:
        values["evaluate_every"] = told["evaluate_every"]
    if "warmup" in values:
        values["warmup"] = run.own["warmup"] * rounds // run.settings.rounds
    tuning = replace(tuning, tune_rounds=rounds)
    return Search.of(values["method"], {**values, **place}, tuning, recipe.searched(cell))


def write(recipe: Recipe, path: Path, cell: Cell, found: Mapping[str, Any]) -> None:
    """Add what a search found to the file; what others found stays."""
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        rows = {row: dict(part) for row, part in told.get("rows", {}).items()}
        if cell.column:
            own = rows.setdefault(cell.row, {})
            own["at"] = {**own.get("at", {}), cell.column: dict(found)}
        else:
            rows[cell.row] = dict(found)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise RunError(f"{path} does not hold what searches of {recipe.name} found: {error}.") from error
    files.write(path, text(rows))


def text(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML, with quoted names: a column may be called 0.1."""
    parts = []
    for row, own in sorted(rows.items()):
        if plain := {key: value for key, value in own.items() if key != "at"}:
            parts.append(f'[rows."{row}"]\n{dump(plain)}')
        parts += [f'[rows."{row}".at."{column}"]\n{dump(some)}' for column, some in sorted(own.get("at", {}).items())]
    return "\n".join(parts)
