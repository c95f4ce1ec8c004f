"""A federation from any partitioner of `flwr_datasets`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, SettingError
from .arrays import checked_x, checked_y, class_count, hold_out
from .federation import Federation
from .hub import declared_classes, numbered, read_table

ORIGIN = "the partitioner's data set"


def from_partitioner(
    partitioner: Any,
    *,
    test: float = 0.2,
    validation: float = 0.2,
    members: int | None = None,
    labelled: Any = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    seed: int = 0,
) -> Federation:
    """Every partition becomes a client; the first `members` train (None: all of them), the others are latecomers.

    `test` is the share of a client's examples held out for testing, `validation` the share of the rest for
    validation; both are spread evenly over its labels. The images are decoded once, into one array.
    """
    for name, share in (("test", test), ("validation", validation)):
        if not 0 <= share < 1:
            raise SettingError(f"{name} is {share}; it is a share of a client's examples, from 0 to below 1.")
    x, y, owner, classes = _gather(partitioner)
    random = np.random.default_rng(seed)
    tests = hold_out(owner, y, test, random)
    rest = np.flatnonzero(~tests)
    held = np.zeros(len(y), bool)
    held[rest] = hold_out(owner[rest], y[rest], validation, random)
    count = int(partitioner.num_partitions)
    return Federation.from_arrays(
        x,
        y,
        train=_by_owner(owner, ~tests & ~held, count),
        val=_by_owner(owner, held, count),
        test=_by_owner(owner, tests, count),
        members=members,
        classes=classes,
        labelled=labelled,
        mean=mean,
        std=std,
        seed=seed,
    )


def _gather(partitioner: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], int]:
    """All partitions end to end: examples, labels, the partition of each, and the number of classes."""
    parts = [partitioner.load_partition(k) for k in range(int(partitioner.num_partitions))]
    sizes = [len(part) for part in parts]
    if not sum(sizes):
        raise DataError("The partitioner has no examples in any partition.")
    x, labels, start = np.zeros(0), [], 0
    for part, size in zip(parts, sizes, strict=True):
        if not size:
            continue
        table = read_table(part, ORIGIN)
        if not start:
            x = np.zeros((sum(sizes), *table["x"].shape[1:]), table["x"].dtype)
        if table["x"].shape[1:] != x.shape[1:]:
            raise DataError(
                f"The partitions hold examples of different shapes, {x.shape[1:]} and {table['x'].shape[1:]}."
            )
        x[start : start + size] = table["x"]
        labels.append(table["y"])
        start += size
    y = checked_y(numbered({"y": np.concatenate(labels)})["y"], "the label column", ORIGIN)
    classes = class_count(y, declared_classes(parts[0]), ORIGIN)
    return checked_x(x, "the image column", ORIGIN), y, np.repeat(np.arange(len(parts)), sizes), classes


def _by_owner(owner: NDArray[Any], mask: NDArray[Any], count: int) -> list[NDArray[Any]]:
    """Partitions lie end to end, so the rows of one owner are neighbours."""
    rows = np.flatnonzero(mask)
    return np.split(rows, np.bincount(owner[rows], minlength=count).cumsum()[:-1])
