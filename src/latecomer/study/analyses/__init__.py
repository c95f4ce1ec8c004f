"""Analyses of finished runs, one a file; this folder is the registry.

A file says how it reads a run (`read`), what it can be told (`Settings`), and what it finds (`analyse`). Its first line
is what `latecomer analyse` lists.
"""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

from ...errors import MissingExtra, RunError, SettingError, UnknownName
from ...runs.files import strict, write
from ...settings import parse
from ..draw import draw
from ..figure import Figure, Panels
from ..finished import check_names

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Analysis:
    """What came of one: a table, perhaps a figure, and what to know about them."""

    title: str
    columns: list[str]
    rows: list[list[Any]]  # numbers and text
    figure: Figure | Panels | None = None
    notes: list[str] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)  # which analysis of which runs, and what it was told

    def save(self, folder: Path, name: str) -> tuple[list[Path], list[str]]:
        """Write NAME.json and, where Matplotlib is there, NAME.svg; what was written, and why not more."""
        written, missed = [folder / f"{name}.json"], []
        write(written[0], json.dumps(strict(asdict(self)), indent=2, allow_nan=False) + "\n")
        try:
            if self.figure is not None:
                draw(self.figure, folder / f"{name}.svg")
                written.append(folder / f"{name}.svg")
        except MissingExtra as error:
            missed.append(f"There is no figure: {error}")
        return written, missed


class Kind(Protocol):
    """A file of this folder."""

    Settings: type[Any]

    def read(self, path: Path) -> Any:
        """A run as the analysis needs it: `Finished`, or `Trained` with its models."""

    def analyse(self, runs: Sequence[Any], asked: Any) -> Analysis: ...


def names() -> dict[str, str]:
    """Every analysis's name and the first line of its file, read without importing it."""
    return {
        path.stem: (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]
        for path in sorted(_FOLDER.glob("[a-z]*.py"))
    }


@cache
def get(name: str) -> Kind:
    """The analysis of a file."""
    if name not in names():
        raise UnknownName("analysis", name, names())
    return cast(Kind, importlib.import_module(f".{name}", __name__))


def analyse(name: str, runs: Sequence[str | Path], settings: Mapping[str, Any] | None = None) -> Analysis:
    """An analysis of finished runs: `analyse("spearman", ["runs/first"])`. Nothing is trained."""
    kind = get(name)
    asked, paths = parse(kind.Settings, settings or {}), [Path(run) for run in runs]
    if not paths:
        raise RunError(f"Say which runs to analyse: latecomer analyse {name} RUN...")
    check_names(paths)
    read, damaged = {}, []
    for path in paths:
        try:
            read[path] = kind.read(path)
        except RunError as error:  # the others can still be analysed
            damaged.append(str(error))
    if not read:
        raise RunError(" ".join(damaged))
    try:
        found = kind.analyse([*read.values()], asked)
    except SettingError as error:  # too few runs are left, perhaps
        raise SettingError(" ".join([str(error), *damaged])) from error
    about = {"analysis": name, "runs": [str(path) for path in read], "settings": asdict(asked)}
    return replace(found, about=about, notes=[*found.notes, *damaged])


def labels(runs: Sequence[Any]) -> list[str]:
    """What to call runs beside each other: their folders' names, or whole paths where names are not enough."""
    short = [run.path.name for run in runs]
    return short if len({*short}) == len(short) else [str(run.path) for run in runs]
