"""What a summary of a recipe has to be, before a page is made of it: it may come from anywhere."""

from __future__ import annotations

import re
from typing import Any

KEPT = ("recipe", "title", "paper", "about", "quick", "metrics", "cells", "claims")
NAME = re.compile(r"[\w./ =+-]*\w[\w./ =+-]*")  # of a recipe, which names a file, and stands in a command


def check(told: Any) -> None:
    """Raises where a file is not a summary."""
    if not isinstance(told, dict):
        raise TypeError("it is no table")
    if missing := [key for key in KEPT if key not in told]:
        raise KeyError(f"no {', '.join(missing)}")
    for key in ("recipe", "title", "paper", "about"):
        _is(str, told[key], key)
    if not NAME.fullmatch(told["recipe"]):
        raise ValueError(f"recipe is {told['recipe']!r}")
    _is(bool, told["quick"], "quick")
    for key in ("metrics", "cells", "claims"):
        _is(list, told[key], key)
    for metric in told["metrics"]:
        _is(str, metric, "metric")
    for cell in told["cells"]:
        _check_cell(cell)
    _is(dict, told.get("simple", {}), "simple")
    for row in told.get("simple", {}).values():
        _is(str, row, "simple")
    for key in ("leaders", "absent"):
        for sentence in told.get(key, []):
            _is(str, sentence, key)
    for claim in told["claims"]:
        for key in ("claim", "verdict", "difference", "over"):
            _is(str, claim[key], key)


def _check_cell(cell: Any) -> None:
    _is(dict, cell, "cell")
    for key in ("row", "column"):
        _is(str, cell[key], key)
    for key in ("machine", "commit", "started"):
        _is((str, type(None)), cell.get(key), key)
    if cell.get("searched") is not None:
        _is(bool, cell["searched"], "searched")
    _is((int, float, type(None)), cell["seconds"], "seconds")
    for pair in (*cell["scores"].values(), *cell["paper"].values()):
        for part in pair:
            _is((int, float, type(None)), part, "score")
        if len(pair) != 2:
            raise ValueError("a score is a mean and a spread")
    sent = cell.get("bytes") or {}
    _is(dict, sent, "bytes")
    for way in ("down", "up"):
        _is((int, float), sent.get(way, 0), "bytes")
    for gain in cell["gain"].values():
        _is((str, type(None)), gain, "gain")


def _is(kind: type | tuple[type, ...], value: Any, what: str) -> None:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{what} is {value!r}")
    if isinstance(value, int | float) and not abs(value) < 1e15:
        raise ValueError(f"{what} cannot be as large as that")
