"""Clients as a run describes them, beside what is known about them: descriptors, class shares, traits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import RunError, SettingError
from .client_rows import shares
from .finished import Finished


def descriptors(run: Finished, seed: int, at: int | None = None) -> tuple[list[dict[str, Any]], NDArray[np.float64]]:
    """The rows of a seed's clients, and the descriptor of each: of the selected round, or of one that was traced."""
    found = run.descriptors(seed, at)
    if found is None:
        raise SettingError(f"{run.path} is a run of {run.method} that kept no descriptors of its clients.")
    rows = [row for row in run.rows if row["seed"] == seed]
    if not rows or max(row["client"] for row in rows) >= len(found):
        raise RunError(f"The run in {run.path} is damaged: it has not a descriptor for every client.")
    known = found[[row["client"] for row in rows]].astype(np.float64)
    return rows, known


def class_shares(rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Of every client the shares of the classes among its training examples, [clients, classes]."""
    counts = [shares(row) for row in rows]
    if not counts or not all(counts):
        raise SettingError("Of some clients it is not known which classes they have.")
    found = np.zeros((len(counts), 1 + max(max(count) for count in counts)))
    for k, count in enumerate(counts):
        found[k, [*count]] = [*count.values()]
    found /= found.sum(1, keepdims=True)
    return found
