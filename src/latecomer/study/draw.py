"""Figures on paper: SVG by Matplotlib, the same bytes for the same data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import RunError, need
from ..runs.files import Replacing
from .figure import Figure, Panels, Series, Tile, Tiles

WIDTH, HEIGHT = 4.8, 3.6  # inches of one pair of axes
ROOM = 15  # rows of cells with numbers in them
FIELD = 1.15, 0.62  # of one field of tiles, and around all of them
AROUND = 0.9, 0.9
SHADE = 0.4  # of a field: text on it can be read
CROWD = 6  # series that a legend within the axes can name
MARKS = "osD^vPX*<>"
STYLE = {
    "svg.hashsalt": "latecomer",  # else names of parts differ from one drawing to the next
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and copied
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444", "#7b4fa3", "#8c6d31", "#b2182b")
"""Told apart by people who see colours differently; Okabe and Ito's, and some more."""
FIELDS = tuple(colour for colour in COLOURS if colour != "#56b4e9")
"""Of fields, which are pale: two blues would look alike."""


def draw(figure: Figure | Panels, path: Path) -> None:
    """Write a figure as SVG. It appears whole or not at all."""
    matplotlib = need("matplotlib", "report")
    canvas = need("matplotlib.figure", "report")
    figures = list(figure.figures) if isinstance(figure, Panels) else [figure]
    wide = (figure.columns if isinstance(figure, Panels) else 0) or len(figures)
    high = -(-len(figures) // wide)
    cycle = need("cycler", "report").cycler(color=COLOURS)
    with matplotlib.rc_context(STYLE | {"axes.prop_cycle": cycle}):
        across, down = _size(figures)
        # a map of one field still has room for its title
        sheet = canvas.Figure(figsize=(max(across * wide, WIDTH), down * high), layout="constrained")
        colours = _colours(figures)
        every = sheet.subplots(high, wide, squeeze=False).flatten()
        for axes, one in zip(every, figures, strict=False):
            _lay(axes, one, colours) if isinstance(one, Tiles) else _fill(axes, one)
        for axes in every[len(figures) :]:
            axes.set_axis_off()
        if isinstance(figure, Panels):
            sheet.suptitle(figure.title)
        if colours:
            patch = need("matplotlib.patches", "report").Patch
            keys = [patch(color=colour, alpha=SHADE, label=name) for name, colour in colours.items()]
            sheet.legend(handles=keys, loc="outside lower center", ncols=len(keys), fontsize="small")
        try:
            with Replacing(path) as target:
                sheet.savefig(target, format="svg", metadata={"Date": None})
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}.") from error


def _fill(axes: Any, figure: Figure) -> None:
    axes.set(title=figure.title, xlabel=figure.x, ylabel=figure.y)
    if figure.log_x:
        axes.set_xscale("log")
        places = sorted({float(x) for series in figure.series for x in series.x})
        axes.set_xticks(places, [f"{place:g}" for place in places])  # powers of ten would crowd the axis
        axes.set_xticks([], minor=True)
    if figure.kind == "cells":
        _cells(axes, figure.series)
        return
    for place, series in enumerate(figure.series):
        _KINDS[figure.kind](axes, series, place, len(figure.series))
    if len(figure.series) > 1 or (figure.series and figure.series[0].name):
        many = len(figure.series) > CROWD  # beside the axes they hide no points
        axes.legend(fontsize="small", **({"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if many else {}))


def _size(figures: Sequence[Figure | Tiles]) -> tuple[float, float]:
    """Inches of one of the figures: what the largest needs."""
    tables = [one for one in figures if isinstance(one, Tiles)]
    if not tables:
        return WIDTH, HEIGHT
    sides = (max(len(one.columns) for one in tables), max(len(one.rows) for one in tables))
    across, down = (each * count + more for each, count, more in zip(FIELD, sides, AROUND, strict=True))
    return across, down


def _colours(figures: Sequence[Figure | Tiles]) -> dict[str, str]:
    """A colour for every name that has a field."""
    tables = [one for one in figures if isinstance(one, Tiles)]
    names = sorted({name for table in tables for tile in table.tiles for name in tile.names})
    return {name: FIELDS[place % len(FIELDS)] for place, name in enumerate(names)}


def _lay(axes: Any, table: Tiles, colours: Mapping[str, str]) -> None:
    """Fields of one colour, or in stripes of several, with their text."""
    axes.set(xlabel=table.x, ylabel=table.y)
    axes.set_title(table.title, fontsize=8)  # a table of few columns is narrow
    axes.grid(visible=False)
    axes.set_xticks(range(len(table.columns)), table.columns)
    axes.set_yticks(range(len(table.rows)), table.rows)
    axes.set_xlim(-0.5, len(table.columns) - 0.5)
    axes.set_ylim(-0.5, len(table.rows) - 0.5)
    for tile in table.tiles:
        _field(axes, tile, table.columns.index(tile.x), table.rows.index(tile.y), colours)


def _field(axes: Any, tile: Tile, x: int, y: int, colours: Mapping[str, str]) -> None:
    stripe = 0.94 / max(len(tile.names), 1)
    for k, name in enumerate(tile.names):
        axes.bar(x - 0.47 + k * stripe, 0.9, stripe, y - 0.45, align="edge", color=colours[name], alpha=SHADE)
    axes.text(x, y, tile.text, ha="center", va="center", fontsize=7)


def _lines(axes: Any, series: Series, place: int, count: int) -> None:
    (line,) = axes.plot(series.x, series.y, marker=MARKS[place % len(MARKS)], markersize=4, label=series.name)
    if series.low:
        axes.fill_between(series.x, series.low, series.high, color=line.get_color(), alpha=0.15, linewidth=0)


def _points(axes: Any, series: Series, place: int, count: int) -> None:
    mark = MARKS[place % len(MARKS)]
    if series.low:
        axes.errorbar(series.x, series.y, yerr=_errors(series), fmt=mark, markersize=4, label=series.name)
    else:
        axes.scatter(series.x, series.y, s=14, marker=mark, label=series.name)


def _bars(axes: Any, series: Series, place: int, count: int) -> None:
    width = 0.8 / count
    at = [k + (place - (count - 1) / 2) * width for k in range(len(series.x))]
    axes.bar(at, series.y, width, yerr=_errors(series) if series.low else None, label=series.name)
    axes.set_xticks(range(len(series.x)), series.x)


def _cells(axes: Any, rows: Sequence[Series]) -> None:
    """The first row on top; a number stands in every cell where there is room, white on dark shades."""
    values = [row.y for row in rows]
    axes.grid(visible=False)
    axes.imshow(values, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(rows[0].x)), rows[0].x)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    low, high = min(map(min, values)), max(map(max, values))
    for y, row in enumerate(values if len(values) <= ROOM else ()):
        for x, value in enumerate(row):
            colour = "white" if value - low > 0.6 * (high - low) else "black"
            axes.text(x, y, f"{value:.2g}", ha="center", va="center", fontsize="x-small", color=colour)


def _errors(series: Series) -> list[list[float]]:
    below = [y - low for y, low in zip(series.y, series.low, strict=True)]
    above = [high - y for y, high in zip(series.y, series.high, strict=True)]
    return [below, above]


_KINDS: Mapping[str, Any] = {"lines": _lines, "points": _points, "bars": _bars}
