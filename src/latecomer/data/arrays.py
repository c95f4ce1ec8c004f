"""Arrays of examples and labels: splitting them, and checking what comes from outside."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, OddValue

Arrays = dict[str, NDArray[Any]]


def hold_out(groups: NDArray[Any], labels: NDArray[Any], share: float, random: np.random.Generator) -> NDArray[Any]:
    """Marks `share` of every group, rounded, spread over the labels of the group as evenly as whole numbers allow."""
    groups = np.unique(groups, return_inverse=True)[1]
    order = np.lexsort((random.random(len(groups)), labels, groups))
    size = np.bincount(groups)
    start = size.cumsum() - size
    turn = random.integers(size)  # else small groups would all hold out the same labels
    group = groups[order]
    place = (np.arange(len(order)) - start[group] + turn[group]) % size[group]
    held = np.zeros(len(groups), bool)
    held[order] = np.floor((place + 1) * share + 0.5) > np.floor(place * share + 0.5)
    return held


def two_splits(table: Arrays, share: float, groups: NDArray[Any] | None = None) -> Arrays:
    """A table without a test split gives up the same share of every class."""
    y = table["y"]
    held = hold_out(y if groups is None else groups, y, share, np.random.default_rng(0))
    halves = (("train", ~held), ("test", held))
    return {f"{key}_{half}": column[mask] for key, column in table.items() for half, mask in halves}


def checked_x(x: NDArray[Any], key: str, origin: str) -> NDArray[Any]:
    """Images as uint8, characters as int8, other whole numbers as int64, anything else as float32."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{key} in {origin} holds {x.dtype} values; they must be numbers.")
    if 0 in x.shape[1:]:
        raise DataError(f"{key} in {origin} has shape {x.shape}: there is nothing in an example.")
    if x.dtype == np.uint8:
        if x.ndim not in (3, 4):
            raise DataError(
                f"{key} in {origin} is uint8 of shape {x.shape}; uint8 stands for images, [N, height, width] or "
                "[N, height, width, channels]; save anything else as float32 or int64."
            )
        if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] > 4:
            raise DataError(f"{key} in {origin} has shape {x.shape}: the channels come first, and must come last.")
        return x
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise DataError(f"{key} in {origin} holds {int((~np.isfinite(x)).sum())} values that are NaN or infinite.")
    if x.dtype == np.int8:
        return x
    return x.astype(np.int64 if x.dtype.kind in "iu" else np.float32, copy=False)


def checked_y(y: NDArray[Any], key: str, origin: str) -> NDArray[Any]:
    whole = y.dtype.kind in "biu" or (y.dtype.kind == "f" and bool((np.isfinite(y) & (y == np.floor(y))).all()))
    if not whole:
        raise OddValue(
            f"{key} in {origin} holds labels that are not whole numbers ({y.dtype}, {y.flat[0]!s} for example)."
        )
    if y.size and not -(2**63) <= int(y.min()) <= int(y.max()) < 2**63:  # the next line would make another number of it
        raise OddValue(f"{key} in {origin} holds labels from {y.min()} to {y.max()}, which is out of range.")
    return y.astype(np.int64)


def class_count(y: NDArray[Any], declared: int, origin: str) -> int:
    """How many classes there are; labels that do not fit are refused."""
    low, high = int(y.min()), int(y.max())
    allowed = declared or max(1000, len(y))  # without a declaration only a label beyond all sense is wrong
    if low < -1 or high >= allowed:
        worst = low if low < -1 else high
        raise DataError(f"{origin} holds the label {worst}; labels are numbered 0 to {allowed - 1} (-1: unknown).")
    if high < 0:
        raise DataError(f"{origin} holds no example with a label.")
    return declared or high + 1


def free_memory() -> int:
    """Bytes that this machine can still give, as far as it says so: what is free or can be freed, else all there is."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else sys.maxsize


def kind_of(x: NDArray[Any]) -> str:
    return f"{x.dtype} {list(x.shape[1:])}"


def brief(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')[:160]}" if lines else type(error).__name__
