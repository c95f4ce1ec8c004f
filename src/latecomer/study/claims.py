"""What a paper says of its figure, checked on the table of an analysis.

    accuracy: capacity=1 > capacity=0
    fifo: time=99 > concatenate: time=99
    accuracy: neighbours=7 within 0.2 of neighbours=14

A side names a column and the rows that have these values. Where several rows have them, of several runs say, the claim
is about each pair, whose rows have the same words in columns of which it says nothing. A table has no intervals: only
the sign of a difference is looked at. Nothing is told of numbers that are the same as they are shown, nor where one of
the two is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SettingError, UnknownName

CLAIM = re.compile(
    r"(?P<metric>[^:=]+): (?P<more>.+?) (>|within (?P<margin>[\d.]+) of) ((?P<other>[^:=]+): )?(?P<less>[^:]+)"
)


@dataclass(frozen=True)
class FigureClaim:
    """One side is above another, or no further from it than a margin."""

    text: str
    metrics: tuple[str, str]
    sides: tuple[dict[str, str], dict[str, str]]  # of each the values of some columns
    margin: float | None

    @staticmethod
    def read(text: str) -> FigureClaim:
        match = CLAIM.fullmatch(text)
        sides = [_values(match[name]) for name in ("more", "less")] if match else []
        if match is None or not all(sides):
            raise SettingError(
                f"A claim about a figure is COLUMN: NAME=VALUE[, ...] > [COLUMN: ]NAME=VALUE[, ...], or has 'within "
                f"NUMBER of' for >; got {text!r}."
            )
        metric, margin = match["metric"], match["margin"]
        return FigureClaim(
            text, (metric, match["other"] or metric), (sides[0], sides[1]), float(margin) if margin else None
        )

    def checked(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
        """A sentence for every pair of rows that it is about."""
        for name in (*self.metrics, *self.sides[0], *self.sides[1]):
            if name not in columns:
                raise UnknownName("column of a claim", name, columns)
        some, others = ([row for row in rows if _has(columns, row, wanted)] for wanted in self.sides)
        here, there = (columns.index(name) for name in self.metrics)
        free = [k for k in range(min(here, there)) if columns[k] not in {*self.sides[0], *self.sides[1]}]
        words = [k for k in free if all(isinstance(row[k], str) for row in (*some, *others))]
        if len(some) > 1 or len(others) > 1:
            some, others = (sorted(side, key=lambda row: [row[k] for k in words]) for side in (some, others))
            pairs = [[row[k] for k in words] for row in some] == [[row[k] for k in words] for row in others]
        else:
            pairs = bool(some and others)
        if not pairs:
            return [f"{self.text}: cannot be told, as not all of its rows are there"]
        # Columns before the numbers say which run a row is of, and more: a pair is called by those that it shares.
        apart = [k for k in range(min(here, there)) if len({str(row[k]) for row in some}) > 1]
        found = []
        for a, b in zip(some, others, strict=True):
            label = ", ".join(f"{a[k]:.3g}" if isinstance(a[k], float) else str(a[k]) for k in apart if a[k] == b[k])
            found.append(f"{label}{'; ' * bool(label)}{self.text}: {self._told(_number(a[here]), _number(b[there]))}")
        return found

    def _told(self, more: float, less: float) -> str:
        """The verdict, and the numbers: holds (70.0 and 65.0)."""
        digits = 1 if max(abs(more), abs(less)) > 1 else 3  # percent, or a share or a correlation
        shown = f"{more:.{digits}f}", f"{less:.{digits}f}"
        if math.isnan(more - less) or (self.margin is None and shown[0] == shown[1]):
            verdict = "cannot be told"
        elif more > less if self.margin is None else abs(more - less) <= self.margin:
            verdict = "holds"
        else:
            verdict = "does not hold"
        return f"{verdict} ({shown[0]} and {shown[1]})"


def _values(text: str) -> dict[str, str]:
    """The values of columns that a side names; none where it is not to be read."""
    parts = [part.strip().partition("=") for part in text.split(",")]
    return {name: value for name, _, value in parts} if all(name and value for name, _, value in parts) else {}


def _has(columns: Sequence[str], row: Sequence[Any], wanted: dict[str, str]) -> bool:
    return all(_same(row[columns.index(name)], value) for name, value in wanted.items())


def _same(value: Any, text: str) -> bool:
    return _number(value) == _number(text) or str(value) == text


def _number(value: Any) -> float:
    """NaN, which is the same as nothing, where a cell or a text is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
