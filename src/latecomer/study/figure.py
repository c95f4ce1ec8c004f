"""A figure as plain data, which `draw.py` puts on paper and the report on its page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Score = Literal["accuracy", "own_classes", "pooled", "bottom_decile"]
AXES: dict[Score, str] = {
    "accuracy": "accuracy, %",
    "own_classes": "accuracy among own classes, %",
    "pooled": "accuracy over all examples, %",
    "bottom_decile": "bottom decile of clients, %",
}
"""What a figure may show of some clients' scores."""


@dataclass(frozen=True)
class Series:
    """Points that belong together."""

    name: str
    x: list[float] | list[str]
    y: list[float]
    low: list[float] = field(default_factory=list)  # with `high`: a band around a line, bars at a point
    high: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)  # what a point is called, where somebody can point at it


def banded(name: str, x: list[float] | list[str], y: list[float], around: Sequence[float]) -> Series:
    """A line in a band of so much on either side, a standard deviation say; that of a single value is NaN, and none."""
    wide = [0.0 if math.isnan(one) else one for one in around]
    if not any(wide):
        return Series(name, x, y)
    low, high = ([a + sign * b for a, b in zip(y, wide, strict=True)] for sign in (-1, 1))
    return Series(name, x, y, low, high)


@dataclass(frozen=True)
class Figure:
    """One pair of axes."""

    title: str
    kind: Literal["lines", "points", "bars", "cells"]  # cells: every series is a row, numbers are shades
    x: str
    y: str
    series: list[Series]
    log_x: bool = False


@dataclass(frozen=True)
class Tile:
    """One field of a table of colours: whose it is (several: they share it), and what stands in it."""

    x: str
    y: str
    names: list[str]
    text: str


@dataclass(frozen=True)
class Tiles:
    """A table whose fields have the colour of a name."""

    title: str
    x: str
    y: str
    columns: list[str]
    rows: list[str]  # from below
    tiles: list[Tile]


@dataclass(frozen=True)
class Panels:
    """Several figures side by side."""

    title: str
    figures: Sequence[Figure | Tiles]
    columns: int = 0  # figures in a line; 0: all
