"""The tables of the page, as text: scores with differences to a baseline, costs, and settings that differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ..study.compare import paired, spread
from ..study.finished import Finished, Group
from .sections import Section

NONE = "\N{EN DASH}"
GROUPS: dict[Group, str] = {
    "seen": "Members",
    "unseen": "Latecomers",
    "unlike": "Latecomers whose kind no member has",
}
AMONG = {"accuracy": "among all classes", "own_classes": "among own classes"}
PLACES = ("name", "out")  # settings that say where a run lies, and nothing about it


class Best(str):
    """A cell that none of its kind exceeds."""


@dataclass(frozen=True)
class Table:
    """The first cell of a row is its heading; rows under a common heading are a body."""

    caption: str
    columns: list[str]
    bodies: list[tuple[str, list[list[str]]]]
    spans: list[tuple[str, int]] = field(default_factory=list)  # headings over so many columns


def scores(section: Section) -> Table:
    """Mean and spread over the seeds, bottom decile, and the difference to the baseline, client by client."""
    base = section.names[section.baseline]
    each = ["mean\N{NO-BREAK SPACE}± spread", "bottom decile", f"difference to {base}"][: 2 + (len(section.runs) > 1)]
    bodies = []
    for group, heading in GROUPS.items():
        rows = [
            [name, *(cell for column in AMONG for cell in _scored(section, place, group, column))]
            for place, name in enumerate(section.names)
            if section.runs[place].scores(group)
        ]
        for column in (1, 1 + len(each)) if len(rows) > 1 else ():
            _mark_best(rows, column)
        if rows:
            bodies.append((heading, rows))
    caption = (
        "Test accuracy in percent: mean of the clients ± standard deviation over the seeds, and what all but the worst "
        "tenth of the clients reach."
    )
    if len(section.runs) > 1:
        caption += (
            f" The highest mean is bold. By how many points a run differs from {base} on the same clients, with a 95 % "
            "interval over seeds (from five on) or else over clients, which leaves out how training itself varies. A "
            "star: the interval excludes zero."
        )
    return Table(caption, ["run", *each, *each], bodies, [("", 1), *((among, len(each)) for among in AMONG.values())])


def _mark_best(rows: list[list[str]], column: int) -> None:
    """The highest means of a column, as far as they are shown; a mean of fewer clients is none to compare with."""
    means = [
        math.nan if row[column] == NONE or " of " in row[column] else float(row[column].split()[0]) for row in rows
    ]
    for row, mean in zip(rows, means, strict=True):
        if mean == max((one for one in means if not math.isnan(one)), default=math.nan):
            row[column] = Best(row[column])


def _scored(section: Section, place: int, group: Group, column: str) -> list[str]:
    run = section.runs[place]
    mean, deviation = spread(run.means(group, column))
    own = "own_" if column == "own_classes" else ""
    deciles = run.measure(f"{group}.{own}bottom_decile")
    scored, most = (max(len(one.scores(group, column)) for one in some) for some in ([run], section.runs))
    fewer = f" of {scored:,}" if 0 < scored < most else ""  # clients: the others have no score, or no finite one
    told = [plus_minus(mean, deviation) + fewer, decimal(fmean(deciles)) if deciles else NONE]
    if len(section.runs) == 1:
        return told
    if place == section.baseline:
        return [*told, "baseline"]
    difference = paired(run, section.runs[section.baseline], group, column)
    return [*told, f"{difference}{' *' * difference.told}"]


def costs(section: Section) -> Table:
    """What training took."""
    rows = []
    for name, run in zip(section.names, section.runs, strict=True):
        earlier = run.setting("start") or run.setting("continue_from")
        each = run.result.get("bytes_per_client_round") or {}
        selected = run.result.get("selected_rounds") or []
        rows.append(
            [
                *(f"{name}, after {earlier}" if earlier else name, run.method),
                *(f"{run.result['rounds']:,}", _rounds(selected)),
                *(decimal(each.get(way, math.nan) / 1000) for way in ("down", "up")),
                decimal(megabytes(run)),
                decimal(run.result["seconds"]),
            ]
        )
    columns = ["run", "method", "rounds", "selected", "kB down", "kB up", "MB, a seed", "seconds"]
    caption = (
        "What training took: bytes to and from a client in a round, all bytes of one seed, and the seconds of all "
        "seeds, which train side by side. A run after another one began with its model, whose cost is not among these."
    )
    return Table(caption, columns, [("", rows)])


def _rounds(selected: Sequence[int]) -> str:
    """Of few seeds each, of many the range."""
    few = len(selected) < 6
    return (", ".join(map(str, selected)) if few else f"{min(selected)} to {max(selected)}") or NONE


def megabytes(run: Finished) -> float:
    """Sent in the training of one seed, both ways; a result counts all seeds."""
    return float(run.result["bytes"]["down"] + run.result["bytes"]["up"]) / 1e6 / len(run.seeds)


def settings(runs: Sequence[Finished], names: Sequence[str]) -> tuple[list[Table], Table]:
    """The settings in which runs differ, those that few of them have at all, and those that all of them share.

    Runs of other methods have many that others lack: in one table they would be a page of dashes.
    """
    parts: dict[str, list[dict[str, Any]]] = {
        "Run": [{key: value for key, value in run.settings.items() if key not in PLACES} for run in runs],
        "Method": [run.own for run in runs],
        "Ran under": [{key: run.about[key] for key in sorted(run.about) if key != "started"} for run in runs],
    }
    unlike, alike = [], []
    own: list[list[str]] = [[] for _ in runs]
    for heading, told in parts.items():
        known = dict.fromkeys(key for one in told for key in one)
        few = {key for key in known if 2 * sum(key in one for one in told) <= len(runs)}
        rows = [[key, *(_told(one.get(key)) for one in told)] for key in known if key not in few]
        unlike.append((heading, [row for row in rows if len({*row[1:]}) > 1]))
        alike.append((heading, [row[:2] for row in rows if len({*row[1:]}) == 1]))
        for mine, one in zip(own, told, strict=True):
            mine += [f"{key} = {_told(value)}" for key, value in one.items() if key in few]
    lines = [[name, "; ".join(mine)] for name, mine in zip(names, own, strict=True) if mine]
    tables = [
        Table("Settings in which the runs differ.", ["setting", *names], [body for body in unlike if body[1]]),
        Table("Settings that half of the runs or fewer have.", ["run", "settings"], [("", lines)] if lines else []),
    ]
    shared = Table("Settings of all runs.", ["setting", "value"], [body for body in alike if body[1]])
    return [told for told in tables if told.bodies], shared


def _told(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, list):
        return ", ".join(str(part)[:12] for part in value) or "none"  # fingerprints of splits are long
    return str(value) or "none"


def plus_minus(mean: float, deviation: float) -> str:
    """57.2 ± 1.3; of one seed without the second."""
    return decimal(mean) if math.isnan(deviation) else f"{decimal(mean)} ± {decimal(deviation)}"


def decimal(value: float) -> str:
    return NONE if math.isnan(value) else f"{value:,.1f}"
