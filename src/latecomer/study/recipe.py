"""A recipe: a table or a figure of a paper as runs, with the paper's own numbers and what it claims.

A cell of the table is a run. Its settings are those of all, of its column, of its row, of itself, and as they were
tuned; for a quick look of the [quick] part and as they were tuned for that. Each stands before the ones named earlier.
A row may say in which columns it is (`columns`, names or patterns such as *-labelled), and a column at which other one
its settings are tuned (`tuned_at`), or what is tried there of a setting, whichever row searches it (`search`). Rows
that are taken from other tables have what was found for them there ([tuned_as], by row RECIPE@COLUMN, or RECIPE where
the columns are the same).

A recipe may be `like` another one of its folder: what it does not say is as there; its [settings] and [quick] are added
to those, other parts stand in the place of theirs. And its runs may be those of another one (`runs`), so that several
figures are made of one training.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SettingError, UnknownName
from ..runs.settings import HOST
from .recipe_checks import check, check_words, one_of
from .recipe_file import FOLDER, names, number, read_toml, tuned_name, whole

if TYPE_CHECKING:
    from ..runs.experiment import Experiment

NO_SETTINGS = ("at", "columns", "tuned_at", "search")  # of a row or a column
CLAIM = re.compile(r"(?P<metric>\S+): (?P<more>[^\s@]+)(@(?P<there>\S+))? > (?P<less>[^\s@]+)(@(?P<here>\S+))?")


@dataclass(frozen=True)
class Claim:
    """What a paper says: in a metric, one cell is above another."""

    metric: str
    more: tuple[str, str]  # row and column
    less: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.metric}: {at(*self.more)} > {at(*self.less)}"


@dataclass(frozen=True)
class Cell:
    """One run of a recipe."""

    row: str
    column: str
    settings: Mapping[str, Any]  # those of `latecomer run`, the method among them

    @property
    def key(self) -> tuple[str, str]:
        return self.row, self.column

    @property
    def label(self) -> str:
        """What it is called in claims, by --only and in sentences."""
        return at(self.row, self.column)

    @property
    def name(self) -> str:
        """What its folder is called."""
        return re.sub(r"[^\w.=-]+", "_", f"{self.row}-{self.column}" if self.column else self.row)

    @property
    def fingerprint(self) -> str:
        """Of what is run, wherever it is: another one where the recipe, or what a search found, has changed since."""
        told = {key: value for key, value in self.settings.items() if key not in HOST}
        return _digest(told)

    def experiment(self, **other: Any) -> Experiment:
        """Its settings, complete and checked, and `other` ones in the place of its own."""
        from ..runs.experiment import Experiment  # which brings PyTorch

        values = {**self.settings, **other}
        return Experiment.parse(values["method"], values)


@dataclass(frozen=True)
class Recipe:
    """What a file says, checked."""

    name: str  # pefll/table-1
    runs: str  # the recipe whose runs these are, mostly itself
    title: str
    paper: str
    about: str
    metrics: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    simple: tuple[str, ...]  # rows of which the best is what others are compared with
    numbers: Mapping[tuple[str, str], tuple[str, ...]]  # the paper's, one a metric
    analysis: Mapping[str, Any]
    tune: Mapping[str, Any]
    told: Mapping[str, Any] = field(repr=False)  # the file
    tuned: Mapping[str, Any] = field(repr=False, default_factory=dict)  # the file beside it
    tuned_quick: Mapping[str, Any] = field(repr=False, default_factory=dict)  # likewise, of the quick version
    taken: Mapping[str, tuple[Recipe, str]] = field(repr=False, default_factory=dict)  # by row; "": the same column

    @staticmethod
    def find(name: str) -> Recipe:
        """By its name, or by the path of a file of one's own."""
        path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
        if not name.endswith(".toml") and name not in names():
            raise UnknownName("recipe", name, names())
        return Recipe.read(path, name.removesuffix(".toml") if path.parent.parent != FOLDER else None)

    @staticmethod
    def read(path: Path, name: str | None = None) -> Recipe:
        beside = [path.with_name(tuned_name(path.stem, quick)) for quick in (False, True)]
        tuned, tuned_quick = (read_toml(file) if file.is_file() else {} for file in beside)
        try:
            told = whole(path)
            return _made(name or f"{path.parent.name}/{path.stem}", told, tuned, tuned_quick)
        except (TypeError, AttributeError, KeyError, ValueError) as error:
            raise SettingError(f"The recipe {path} cannot be read: {error}.") from error

    def explained(self, quick: bool) -> str:
        """What there is to know of its runs; of the quick version, what it has in the place of the paper's."""
        return str(self._look(quick).get("about", "")).strip() if quick else self.about

    def claims(self, quick: bool = False) -> list[Claim]:
        """What is claimed of the cells that there are."""
        there = {cell.key for cell in self.cells(quick)}
        words = self._look(quick).get("claims", self.told.get("claims", []))
        found = [claim for text in words for claim in self._meant(text)]
        return [claim for claim in found if {claim.more, claim.less} <= there]

    def _meant(self, text: str) -> Iterable[Claim]:
        match = CLAIM.fullmatch(text)
        if match is None:
            raise SettingError(f"{self.name} has a claim that is not METRIC: ROW[@COLUMN] > ROW[@COLUMN]: {text!r}.")
        metric, more, there, less, here = (match[key] for key in ("metric", "more", "there", "less", "here"))
        one_of("metric", metric, self.metrics, self.name)
        for row in (more, less):
            one_of("row", row, self.rows, self.name)
        if (there is None) != (here is None):
            raise SettingError(f"{self.name} has a claim with a column on one side only: {text!r}.")
        for column in (there, here):
            if column is not None:
                one_of("column", column, self.columns, self.name)
        pairs = [(c, c) for c in self.columns] if there is None and here is None else [(there or "", here or "")]
        return [Claim(metric, (more, a), (less, b)) for a, b in pairs]

    def cells(self, quick: bool = False) -> list[Cell]:
        """All runs, row by row."""
        look = self._look(quick)
        rows, columns = look.get("rows", self.rows), look.get("columns", self.columns)
        pairs = [(row, column) for row in rows for column in columns if self._has(row, column)]
        return [Cell(row, column, self._settings(row, column, quick)) for row, column in pairs]

    def tuned_at(self, column: str) -> str:
        """The column at which the settings of a column are searched: itself, unless it names another."""
        columns = self.told.get("columns", {})
        own = columns.get(column, {}) if isinstance(columns, Mapping) else {}
        return str(own.get("tuned_at", column))

    def searched(self, cell: Cell) -> Any:
        """What a search tries of a row's settings, otherwise where the column says so."""
        own, here = self.tune["search"][cell.row], self.told.get("columns", {}).get(cell.column, {}).get("search", {})
        return {name: here.get(name, tried) for name, tried in own.items()} if here else own

    def was_searched(self, cell: Cell, quick: bool) -> bool | None:
        """Whether a search has found settings of a cell; None: none is made for its row."""
        taken = cell.row in self.taken and not quick
        if not taken and cell.row not in self.tune.get("search", {}):
            return None
        return any(key != "at" for part in self._found(cell.row, cell.column, quick) for key in part)

    def _has(self, row: str, column: str) -> bool:
        return any(fnmatchcase(column, pattern) for pattern in self.told["rows"].get(row, {}).get("columns", ["*"]))

    def chosen(self, quick: bool, only: Sequence[str]) -> list[Cell]:
        """The runs that are asked for: of rows, of columns, of both (ROW@COLUMN); none named: all."""
        cells = self.cells(quick)
        names = {*self.rows, *self.columns, *(cell.label for cell in cells)} - {""}
        for word in only:
            one_of("row or column", word, names, self.name)
        rows, columns = {*only} & {*self.rows}, {*only} & {*self.columns}
        exact = {*only} - rows - columns

        def wanted(cell: Cell) -> bool:
            asked = (not rows or cell.row in rows) and (not columns or cell.column in columns) and bool(rows or columns)
            return asked or cell.label in exact

        return [cell for cell in cells if not only or wanted(cell)]

    def paper_says(self, row: str, column: str, metric: str) -> tuple[float, float]:
        """The paper's mean and spread; NaN where it has none."""
        told = self.numbers.get((row, column))
        return number(told[self.metrics.index(metric)]) if told else (math.nan, math.nan)

    def analysed(self, quick: bool) -> dict[str, Any]:
        """Which analysis makes the figure, of which rows and how; for a quick look with settings of its own."""
        other = self._look(quick).get("analysis", {})
        return {**self.analysis, **other, "settings": self.analysis.get("settings", {}) | other.get("settings", {})}

    def analysis_asked(self, quick: bool) -> str:
        """A fingerprint of how its figure is made, and of what is claimed of it."""
        return _digest(self.analysed(quick))

    def _found(self, row: str, column: str, quick: bool) -> list[Mapping[str, Any]]:
        """What searches found of a row's settings, for all columns and for this one."""
        if row in self.taken and not quick:
            other, there = self.taken[row]
            return other._found(row, there or column, quick)
        part = (self.tuned_quick if quick else self.tuned).get("rows", {}).get(row, {})
        return [part, part.get("at", {}).get(self.tuned_at(column), {})]

    def _look(self, quick: bool) -> Mapping[str, Any]:
        """What a quick look has in the place of other parts, or besides."""
        return dict(self.told.get("quick", {})) if quick else {}

    def _settings(self, row: str, column: str, quick: bool) -> dict[str, Any]:
        common, rows, columns = (self.told.get(key, {}) for key in ("settings", "rows", "columns"))
        own, look, found = rows.get(row, {}), self._look(quick), self._found(row, column, quick)
        layers = [
            common,
            columns.get(column, {}),
            own,
            own.get("at", {}).get(column, {}),
            *(() if quick else found),
            look.get("settings", {}),
            look.get("column", {}).get(column, {}),
            look.get("row", {}).get(row, {}),
            *(found if quick else ()),
        ]
        merged: dict[str, Any] = {"method": row.partition("-")[0]}
        for layer in layers:
            merged |= {key.replace("-", "_"): value for key, value in layer.items() if key not in NO_SETTINGS}
        return merged


def _digest(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _taken(name: str, told: Mapping[str, Any]) -> dict[str, tuple[Recipe, str]]:
    """The tables that rows were taken from, as far as searches are concerned; those are latecomer's own recipes."""
    found = {}
    for row, place in told.get("tuned_as", {}).items():
        one_of("row", row, told["rows"], name)
        other, _, column = str(place).partition("@")
        one_of("tuned_as", other, [known for known in names() if known != name], name)
        there = Recipe.find(other)
        one_of("row of tuned_as", row, there.tune.get("search", {}), other)
        for needed in [column] if column else told.get("columns", [""]):
            one_of("column of tuned_as", needed, there.columns, other)
        found[row] = (there, column)
    return found


def at(row: str, column: str) -> str:
    """A row, or a cell where there are columns, as claims and --only name it."""
    return f"{row}@{column}" if column else row


def _made(name: str, told: Mapping[str, Any], tuned: Mapping[str, Any], tuned_quick: Mapping[str, Any]) -> Recipe:
    check_words(name, told)
    recipe = Recipe(
        name=name,
        runs=f"{name.rpartition('/')[0]}/{told['runs']}" if "runs" in told else name,
        title=str(told["title"]),
        paper=str(told.get("paper", "")),
        about=str(told.get("about", "")).strip(),
        metrics=tuple(told["metrics"]),
        rows=tuple(told["rows"]),
        columns=tuple(told.get("columns", [""])),
        simple=tuple(told.get("simple", ())),
        numbers={(row, key): tuple(own) for row, part in told.get("numbers", {}).items() for key, own in part.items()},
        analysis=dict(told.get("analysis", {})),
        tune=dict(told.get("tune", {})),
        told=told,
        tuned=tuned,
        tuned_quick=tuned_quick,
        taken=_taken(name, told),
    )
    check(recipe)
    return recipe
