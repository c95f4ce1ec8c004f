"""The table of a recipe as JSON, summary.json beside its runs, of which `results.py` makes records."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from ..runs.files import write
from .recipe import Cell
from .reproduce import Measured, Table, place


def summary(table: Table) -> dict[str, Any]:
    """The table as JSON holds it, with all that a page has to say about where it comes from."""
    asked = {cell.key: cell for cell in table.recipe.cells(table.quick)}
    there = {(cell.row, cell.column) for cell in table.cells}
    return {
        "recipe": table.recipe.name,
        "title": table.recipe.title,
        "paper": table.recipe.paper,
        "about": table.recipe.explained(table.quick),
        "quick": table.quick,
        "made": time.strftime("%Y-%m-%d"),
        "metrics": list(table.recipe.metrics),
        "cells": [_cell(cell) | _asked(table, asked[cell.row, cell.column]) for cell in table.cells],
        "absent": [cell.label for key, cell in asked.items() if key not in there],
        "claims": [
            {
                "claim": str(one.claim),
                "verdict": one.verdict,
                "difference": str(one.difference),
                "over": one.difference.over,
            }
            for one in table.claims
        ],
        "simple": table.simplest,
        "leaders": table.leaders,
        "missing": table.missing,
    }


def _cell(cell: Measured) -> dict[str, Any]:
    result, about = cell.run.result, cell.run.about
    return {
        "row": cell.row,
        "column": cell.column,
        "method": cell.run.method,
        "scores": {metric: [_plain(part) for part in pair] for metric, pair in cell.scores.items()},
        "paper": {metric: [_plain(part) for part in pair] for metric, pair in cell.paper.items()},
        "gain": {metric: None if gain is None else str(gain) for metric, gain in cell.gain.items()},
        "rounds": result.get("rounds"),
        "selected": result.get("selected_rounds"),
        "seeds": cell.run.seeds,
        "seconds": result.get("seconds"),
        "bytes": result.get("bytes_per_client_round"),
        "machine": about.get("machine"),
        "torch": about.get("torch"),
        "commit": about.get("commit"),
        "started": about.get("started"),
    }


def _asked(table: Table, cell: Cell) -> dict[str, Any]:
    """What the recipe asks of a run, and whether a search found its settings; None: it is not searched."""
    return {"settings": cell.fingerprint, "searched": table.recipe.was_searched(cell, table.quick)}


def _plain(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None  # pages round again: 0.8504 as 0.85 is 0.8


def write_summary(table: Table, out: Path) -> Path:
    """summary.json beside the runs."""
    path = place(table.recipe, table.quick, out) / "summary.json"
    write(path, json.dumps(summary(table), indent=1, allow_nan=False) + "\n")
    return path
