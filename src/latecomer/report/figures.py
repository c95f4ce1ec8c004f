"""What the page draws, as plain data for its script: curves, distributions, costs and the map of the clients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import LatecomerError, RunError, SettingError
from ..study.client_rows import shares
from ..study.compare import course, paired, spread
from ..study.described import class_shares, descriptors
from ..study.finished import Finished, Group, is_number
from .coverage import judged
from .sections import Section
from .tables import AMONG, GROUPS, megabytes

KNOWN = {
    *("seed", "client", "name", "seen", "role", "accuracy", "own_classes", "val_accuracy", "val_own_classes"),
    *("labelled", "rotation", "permutation", "budget", "train_examples", "val_examples", "test_examples", "classes"),
}
"""Columns of clients.csv that all runs can have; others are a method's own."""
MARKS = ("member", "latecomer, covered", "latecomer, not covered", "validator")
COVERED = "Covered: a member is of its kind (the same set of classes, rotation and permutation)"
GATE = "Covered: the gate of this run says so, without a label of theirs"
MOST = 10  # classes that are counted in a hover


def drawn(section: Section, gate: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Everything the script needs for a section, and why a map, or the verdict of a gate, is missing."""
    mapped, notes = clients_map(section, gate)
    runs = [
        {
            "name": name,
            "rounds": [line["round"] for line in run.metrics],
            "seconds": [line["seconds"] for line in run.metrics],
            # Every round sends about the same; the exact course is in the ledger, which may be long.
            "megabytes": [short(line["round"] * megabytes(run) / max(run.result["rounds"], 1)) for line in run.metrics],
            "curves": {group: {column: curve(run, group, column) for column in AMONG} for group in ("seen", "unseen")},
            "quantiles": {group: {column: quantiles(run, group, column) for column in AMONG} for group in GROUPS},
            "ends": {
                group: {column: [*map(short, spread(run.means(group, column)))] for column in AMONG} for group in GROUPS
            },
            "differences": {
                group: {column: difference(section, run, group, column) for column in AMONG} for group in GROUPS
            },
            "cost": {"megabytes": short(megabytes(run)), "seconds": short(run.result["seconds"])},
        }
        for name, run in zip(section.names, section.runs, strict=True)
    ]
    told = {"baseline": section.baseline, "seeds": len(section.runs[0].seeds), "groups": GROUPS, "among": AMONG}
    return {"runs": runs, "map": mapped, **told}, notes


def difference(section: Section, run: Finished, group: Group, column: str) -> list[float | str | None]:
    """To the baseline on the same clients: mean, both ends of the 95 % interval, and over what it is."""
    found = paired(run, section.runs[section.baseline], group, column)
    return [
        *map(short, (found.mean, found.low, found.high)),
        f"{found.count:,} {found.over[: -1 if found.count == 1 else None]}",
    ]


def curve(run: Finished, group: Group, column: str) -> list[list[float | None]]:
    """Mean and standard deviation over the seeds at every evaluation; empty where the group was not watched."""
    found = [[*map(short, pair)] for _, *pair in course(run, group, column)]
    return found if any(mean is not None for mean, _ in found) else []


def quantiles(run: Finished, group: Group, column: str) -> list[float | None]:
    """The worst score, and what at least 1, 2, ..., 100 percent of the clients of all seeds have at most.

    Each is a client's score, as the bottom decile of the table is, and not a number between two clients'.
    """
    values = sorted(run.scores(group, column).values())
    return [short(values[max(-(-percent * len(values) // 100), 1) - 1]) for percent in range(101)] if values else []


def clients_map(section: Section, gate: bool = False) -> tuple[dict[str, Any] | None, list[str]]:
    """Every client of the first seed on a plane, for each run: by its descriptors, else by class shares."""
    first, seed = section.runs[0], section.runs[0].seeds[0]
    rows = [row for row in first.rows if row["seed"] == seed]
    unlike = {row["client"] for row in first.clients("unlike") if row["seed"] == seed}
    places, notes = [], []
    for place, (name, run) in enumerate(zip(section.names, section.runs, strict=True)):
        try:
            places.append({"place": place, **_placed(run, seed, [row["client"] for row in rows])})
        except (RunError, SettingError) as error:
            notes.append(f"There is no map of {name}: {error}")
            continue
        if gate and first.clients("unseen"):
            try:
                covered = judged(run)
                places[-1]["judged"] = [_mark(row, {k for k, well in covered.items() if not well}) for row in rows]
            except LatecomerError as error:
                notes.append(f"{name} has no gate, so its map shows kinds: {error}")
    if not places:
        return None, notes
    told = {"seed": seed, "clients": [*map(traits, rows)], "marks": [_mark(row, unlike) for row in rows]}
    return {**told, "names": MARKS, "covered": COVERED, "gate": GATE, "places": places}, notes


def _placed(run: Finished, seed: int, clients: list[int]) -> dict[str, Any]:
    if run.descriptors(seed) is not None:
        rows, points = descriptors(run, seed)
        source = "the descriptors that the method made of the clients"
    else:
        rows = [row for row in run.rows if row["seed"] == seed]
        points, source = class_shares(rows), "the clients' class shares, as the run kept no descriptors"
    if not np.isfinite(points).all():
        raise RunError(f"{source} are not all finite.")
    plane, explained = pca(points)
    by_client = {row["client"]: (row, place) for row, place in zip(rows, plane, strict=True)}
    if missing := {*clients} - by_client.keys():
        raise RunError(f"{len(missing)} of its clients are missing.")
    found = [by_client[client] for client in clients]
    choices = [own_traits(row) for row, _ in found]
    return {
        "source": source,
        "own": choices if any(choices) else None,
        "explained": round(100 * explained),
        "x": [short(place[0]) for _, place in found],
        "y": [short(place[1]) for _, place in found],
        "scores": {column: [short(row.get(column, math.nan)) for row, _ in found] for column in AMONG},
    }


def pca(points: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Points on their first two principal components, and the share of the variance that these explain."""
    centred = points - points.mean(0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((len(points), 2))
    kept = int((sizes[:2] > 1e-6 * sizes[:1]).sum())  # the rest is rounding, which a figure would show as large as life
    plane[:, :kept] = centred @ directions[:kept].T
    whole = float((sizes**2).sum())
    return plane, float((sizes[:2] ** 2).sum()) / whole if whole else 1.0


def _mark(row: dict[str, Any], unlike: set[int]) -> int:
    if row["role"] == "latecomer":
        return 2 if row["client"] in unlike else 1
    return 3 if row["role"] == "validator" else 0


def traits(row: dict[str, Any]) -> str:
    """A client in lines: its name or number, and what is known about it."""
    who = f"client {row['client']}" + (f" ({row['name']})" if row.get("name") else "")
    examples = ", ".join(
        f"{row[f'{part}_examples']} {word}"
        for part, word in {"train": "training", "val": "validation", "test": "test"}.items()
        if row.get(f"{part}_examples")
    )
    counts = sorted(shares(row).items(), key=lambda one: -one[1])
    classes = ", ".join(f"{label} ({count})" for label, count in counts[:MOST])
    rest = f" and {len(counts) - MOST} more" if len(counts) > MOST else ""
    lines = [
        *(f"{name} {row[name]}" for name in ("rotation", "permutation", "budget") if row.get(name) not in (None, "")),
        "" if row.get("labelled", True) else "no labels",
        f"examples: {examples}" if examples else "",
        f"classes: {classes}{rest}" if classes else "",
    ]
    return "\n".join([who, *filter(None, lines)])


def own_traits(row: dict[str, Any]) -> str:
    """What a method says of a client that others do not, kNN-Per's lambda say."""
    told = {name: value for name, value in row.items() if name not in KNOWN}
    return "\n".join(
        f"{name} {f'{value:.4g}' if is_number(value) else value}"
        for name, value in told.items()
        if value not in ("", None) and value == value  # no NaN
    )


def short(value: ArrayLike) -> float | None:
    """Four digits are more than anybody sees; None: not a number."""
    told = float(value)  # type: ignore[arg-type]
    return float(f"{told:.4g}") if math.isfinite(told) else None
