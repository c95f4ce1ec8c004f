"""A finished run as its folder tells it: settings, scores of every client, learning curves, descriptors.

Nothing of PyTorch is needed here, and nothing of the data. A folder may come from anywhere: what cannot be right is one
sentence.
"""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..errors import RunError, SettingError, UnknownName
from ..runs.files import reading
from ..runs.settings import HOST
from .client_rows import client_rows, shares

Group = Literal["seen", "unseen", "unlike"]
GROUPS: tuple[Group, ...] = ("seen", "unseen", "unlike")
"""Members, latecomers, and latecomers whose kind no member has."""
MEANS = ("accuracy", "own_classes")
"""Scores that are means over clients, and can be compared client by client."""
KIND = ("rotation", "permutation")  # with its classes, what kind of client one is
METRIC = re.compile(
    r"(?P<group>seen|unseen|unlike|gap)(\[(?P<trait>\w+)=(?P<value>[^\]]+)\])?\."
    r"((?P<mean>accuracy|own_classes)|(?P<own>own_)?(?P<over>pooled|bottom_decile))"
)
"""unseen.accuracy, seen.own_pooled, seen[budget=S].accuracy; gap.accuracy: latecomers' less members'."""
SAME = {*HOST, "seed", "seeds", "tf32", "timeout", "trace_descriptors", "watch_unseen"}
"""Settings that say where, how fast and how often something was run, and nothing about what it is."""
Key = tuple[int, int]
"""A client, by seed and number."""


@dataclass(frozen=True, eq=False)
class Finished:
    """What there is to know about a run without loading its models."""

    path: Path
    settings: dict[str, Any]  # of the run
    own: dict[str, Any]  # of the method
    about: dict[str, Any]  # where, when, by which commit, on which splits
    result: dict[str, Any]
    rows: list[dict[str, Any]]  # clients.csv
    metrics: list[dict[str, Any]]

    @staticmethod
    def read(path: str | Path) -> Finished:
        """From a run folder."""
        path = Path(path)
        with reading(path):
            if not path.is_dir():
                raise RunError(f"There is no run folder {path}.")
            if not (path / "settings.toml").is_file():
                raise RunError(f"{path} is not a run folder: it has no settings.toml.")
            if not (path / "result.json").is_file():
                raise RunError(f"The run in {path} is not finished; let it go on with: latecomer resume {path}")
        told = _parsed(path / "settings.toml", tomllib.loads)
        result = _parsed(path / "result.json", json.loads)
        lines = _parsed(path / "metrics.jsonl", lambda text: [json.loads(line) for line in text.splitlines()])
        rows = _parsed(path / "clients.csv", client_rows)
        run, own, about = (told.get(name, {}) for name in ("run", "method", "about"))
        tables = all(isinstance(part, dict) for part in (run, own, about, result))
        if not tables or "run" not in told or not isinstance(result.get("method"), str):
            raise RunError(f"The run in {path} is damaged: it does not say what was run.")
        if problem := _wrong(about, result, rows, lines):
            raise RunError(f"The run in {path} is damaged: {problem}.")
        return Finished(path, run, own, about, result, rows, lines)

    @property
    def method(self) -> str:
        return str(self.result["method"])

    @property
    def data(self) -> str:
        return str(self.result.get("data", ""))

    @property
    def seeds(self) -> list[int]:
        return list(self.result["seeds"])

    @property
    def splits(self) -> list[str]:
        """Fingerprints of who owned what, one a seed: runs with the same ones can be compared client by client."""
        return list(self.about.get("splits", []))

    def setting(self, name: str) -> Any:
        """What a setting was, of the method or of the run; None: not given, or there is none of this name."""
        return self.own.get(name, self.settings.get(name))

    @cached_property
    def kinds(self) -> dict[Key, tuple[Any, ...]]:
        """What kind of client each is: which classes it has, and what was done to its images and labels."""
        return {
            (row["seed"], row["client"]): (frozenset(shares(row)), *(row.get(name, 0) for name in KIND))
            for row in self.rows
        }

    def clients(self, group: Group) -> list[dict[str, Any]]:
        """The rows of a group."""
        if group != "unlike":
            role = "member" if group == "seen" else "latecomer"
            return [row for row in self.rows if row["role"] == role]
        known = {(row["seed"], self.kinds[row["seed"], row["client"]]) for row in self.clients("seen")}
        late = self.clients("unseen")
        return [row for row in late if (row["seed"], self.kinds[row["seed"], row["client"]]) not in known]

    def scores(self, group: Group, column: str = "accuracy") -> dict[Key, float]:
        """Percent, of every client of a group that has something to score."""
        found = {(row["seed"], row["client"]): row.get(column, math.nan) for row in self.clients(group)}
        return {key: score for key, score in found.items() if not math.isnan(score)}

    def means(self, group: Group, column: str = "accuracy") -> list[float]:
        """The mean over a group's clients, one a seed that has any."""
        return self.measure(f"{group}.{column}")

    def measure(self, metric: str) -> list[float]:
        """A score of a group of clients, one a seed that has any: see METRIC. Means are over clients."""
        return [*self.by_seed(metric).values()]

    def by_seed(self, metric: str) -> dict[int, float]:
        """As `measure`, with the seeds."""
        told = METRIC.fullmatch(metric)
        if told is None:
            raise SettingError(f"{metric!r} is no score of a group, such as unseen.accuracy or seen.own_pooled.")
        if told["group"] == "gap":
            late, members = (self.by_seed(metric.replace("gap", group, 1)) for group in ("unseen", "seen"))
            return {seed: late[seed] - members[seed] for seed in late if seed in members}
        rows = self.clients(told["group"])  # type: ignore[arg-type]
        if told["trait"]:
            rows = [row for row in rows if str(row.get(told["trait"])) == told["value"]]
        column = told["mean"] or ("own_classes" if told["own"] else "accuracy")
        each: dict[int, list[tuple[float, int]]] = {}
        for row in rows:
            if not math.isnan(score := row.get(column, math.nan)):
                each.setdefault(row["seed"], []).append((score, row.get("test_examples", 1)))
        over = _OVER[told["over"] or "mean"]
        return {seed: over(each[seed]) for seed in sorted(each)}

    def traced(self) -> list[int]:
        """The rounds at which descriptors were kept."""
        with reading(self.path):
            return sorted(int(path.stem.removeprefix("round-")) for path in self.path.glob("descriptors/round-*"))

    def descriptors(self, seed: int, at: int | None = None) -> NDArray[np.float32] | None:
        """A row for every client, by its number, of the selected round or of one that was traced; None: none kept."""
        path = self.path / "descriptors" / ("selected" if at is None else f"round-{at:08d}")
        path = path.with_suffix(".safetensors")
        with reading(self.path):
            if not path.is_file():
                return None
            try:
                with safe_open(path, "np") as file:
                    found: NDArray[np.float32] = file.get_tensor(str(seed))
            except (SafetensorError, TypeError, KeyError, ValueError) as error:  # the last: of a kind NumPy has not
                raise RunError(f"{path} is damaged: {error}.") from error
        if found.ndim != 2 or found.dtype.kind not in "fiu":
            raise RunError(f"{path} is damaged: it has no row of numbers for every client.")
        if not (np.abs(found) < 1e30).all():  # squares of more would not be finite
            raise RunError(f"The descriptors in {path} are not all finite: its training diverged, perhaps.")
        return found


def bottom_decile(values: Sequence[float]) -> float:
    """What the (M/10)-th worst of M clients reaches, rounded up."""
    return sorted(values)[math.ceil(len(values) / 10) - 1] if values else math.nan


_OVER: dict[str, Callable[[Sequence[tuple[float, int]]], float]] = {
    "mean": lambda some: fmean(score for score, _ in some),
    "pooled": lambda some: sum(score * count for score, count in some) / max(sum(count for _, count in some), 1),
    "bottom_decile": lambda some: bottom_decile([score for score, _ in some]),
}
"""From the scores and numbers of test examples of some clients."""


def differing(runs: Sequence[Finished]) -> list[str]:
    """The settings in which runs differ, but for those of their host."""
    names = dict.fromkeys(name for run in runs for name in (*run.settings, *run.own) if name not in SAME)
    return [name for name in names if any(run.setting(name) != runs[0].setting(name) for run in runs)]


def check_names(paths: Iterable[Path]) -> None:
    """A run that is not there is an error that offers the nearest one beside it."""
    for path in paths:
        with reading(path):
            near = [str(found.parent) for found in path.parent.glob("*/settings.toml")]
            there = path.exists()
        if near and not there:
            raise UnknownName("run", str(path), near)


def read_all(paths: Iterable[str | Path]) -> tuple[list[Finished], list[str]]:
    """The runs that can be read, and a sentence for each of the others."""
    found, notes = [], []
    for path in paths:
        try:
            found.append(Finished.read(path))
        except RunError as error:
            notes.append(str(error))
    return found, notes


def _parsed(path: Path, parse: Callable[[str], Any]) -> Any:
    with reading(path.parent):
        if not path.is_file():
            raise RunError(f"The run in {path.parent} is damaged: it has no {path.name}.")
        content = path.read_bytes()
    try:
        return parse(content.decode(errors="backslashreplace"))
    except (ValueError, KeyError, TypeError, RecursionError, csv.Error) as error:
        raise RunError(f"The run in {path.parent} is damaged: {path.name} cannot be read ({error}).") from error


ROUNDED = 0.002  # of means, which are written with three digits, and so are scores


def _wrong(about: dict[str, Any], result: dict[str, Any], rows: Sequence[dict[str, Any]], lines: Sequence[Any]) -> str:
    """What cannot be so of what the files of a run say together; empty: nothing."""
    seeds, splits = result.get("seeds"), about.get("splits", [])
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        return "result.json does not name its seeds"
    if strange := {row["seed"] for row in rows} - {*seeds}:
        return f"clients.csv has clients of seed {min(strange)}, which result.json does not name"
    if silent := {*seeds} - {row["seed"] for row in rows}:
        return f"clients.csv has no client of seed {min(silent)}"
    if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
        return "settings.toml does not name its splits"
    if not (is_number(result.get("rounds")) and is_number(result.get("seconds"))):
        return "result.json does not say how long it trained"
    if apart := _apart(result, rows):
        return apart
    for place, line in enumerate(lines, 1):
        told = line.get("runs") if isinstance(line, dict) and is_number(line.get("round")) else None
        if not isinstance(told, list) or len(told) != len(seeds) or not all(isinstance(one, dict) for one in told):
            return f"line {place} of metrics.jsonl is no evaluation"
        if not all(one.get("validation") is None or is_number(one["validation"]) for one in told):
            return f"line {place} of metrics.jsonl has a validation score that is no number"
    return ""


def _apart(result: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Where the means of result.json are not those of clients.csv, as if rows were lost; empty: nowhere."""
    for group, role in (("seen", "member"), ("unseen", "latecomer")):
        means = result.get(group)
        told = means if isinstance(means, dict) else {}
        for column in MEANS:
            each: dict[int, list[float]] = {}
            for row in rows:
                if row["role"] == role and not math.isnan(score := row.get(column, math.nan)):
                    each.setdefault(row["seed"], []).append(score)
            found = fmean(map(fmean, each.values())) if each else math.nan
            if is_number(told.get(column)) and not abs(found - told[column]) < ROUNDED:
                return f"its {role}s' mean {column} is {told[column]:g} in result.json, and {found:g} in clients.csv"
    return ""


def is_number(value: Any) -> bool:
    """Whether it is one that a figure can show."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
