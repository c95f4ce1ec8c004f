"""clients.csv: what is known of every client of a finished run."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import Any

TEXT = ("name", "role", "budget", "classes")  # columns that are no numbers
FLAGS = ("seen", "labelled")
ROLES = ("member", "validator", "latecomer")
MOST = 10**5  # classes there may be: tables have a column for each
SCORES = ("accuracy", "own_classes", "val_accuracy", "val_own_classes")


def client_rows(text: str) -> list[dict[str, Any]]:
    """What a table of clients says, checked."""
    if text and not text.endswith("\n"):  # the last number could have had more digits
        raise ValueError("its last line is cut short")
    rows = []
    for row in csv.DictReader(io.StringIO(text, newline="")):  # lines of CSV: a name may have ends of lines in it
        if None in row.values():
            raise ValueError("a row is cut short")
        typed = {name: _typed(name, value) for name, value in row.items() if name is not None}
        if not all(isinstance(typed.get(key), int) and typed[key] >= 0 for key in ("seed", "client")):
            raise ValueError("a row has no seed, or no client's number")
        if typed.get("role") not in ROLES:
            raise ValueError(f"a client's role is {typed.get('role')!r}")
        if not all(0 <= label < MOST and count >= 0 for label, count in shares(typed).items()):
            raise ValueError(f"a client has {typed['classes']!r:.40} of classes")
        rows.append(typed)
    if len({(row["seed"], row["client"]) for row in rows}) < len(rows):
        raise ValueError("a client stands there twice")
    return rows


def _typed(name: str, value: str) -> Any:
    if name in TEXT:
        return value
    if name in FLAGS:
        return value == "True"
    number = float(value) if value else math.nan
    if name in SCORES and not (math.isnan(number) or 0 <= number <= 100):
        raise ValueError(f"{name} is {value}, which is no percentage")
    return int(number) if number.is_integer() and name not in SCORES else number


def shares(row: Mapping[str, Any]) -> dict[int, int]:
    """How many training examples of each class a client has, from its row."""
    parts = (part.split(":") for part in str(row.get("classes", "")).split())
    return {int(label): int(count) for label, count in parts}
