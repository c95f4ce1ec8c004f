"""One client's own examples as a federation: everybody who comes before it, of whom nothing is here, and itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..data import Examples, Federation, Form
from ..data.arrays import hold_out
from ..data.federation import Rows, places
from ..errors import DataError
from ..method import Method

Pair = tuple[NDArray[Any], NDArray[Any]]
"""Examples and their labels, -1 where there are none."""


def checked(method: Method, form: Form, x: Any, y: Any, which: str = "") -> Pair:
    """A client's own examples, and their labels, if they are such as a method can use; `which` of them they are."""
    found = form.examples(x, f"{which}x", "your data")
    y = np.full(len(found), -1) if y is None else form.labels(y, len(found), f"{which}y", "your data")
    if method.needs_labels and not (y >= 0).any():
        raise DataError(f"{type(method).__name__} needs labels to make a client's model; give y, {unlabelled()}.")
    return found, y


def set_aside(method: Method, x: NDArray[Any], y: NDArray[Any], share: float, seed: int) -> tuple[Pair, Pair]:
    """What the model is made of, and as large a share of the labelled examples as is held out in training."""
    apart = hold_out(np.zeros(len(y), int), y, share if (y >= 0).any() else 0.0, np.random.default_rng(seed))
    apart &= y >= 0
    if method.needs_labels and not (y[~apart] >= 0).any():
        apart[:] = False  # what the model is made of comes first
    return (x[~apart], y[~apart]), (x[apart], y[apart])


def federation(form: Form, train: Pair, val: Pair, test: Pair, seed: int, number: int, budget: str) -> Federation:
    """In which the client is the last one, and has this number."""
    if not len(train[0]):
        raise DataError("A client needs at least one example that is not held out.")
    parts = [part for part in (train, val, test) if len(part[0])]
    x, y = (np.concatenate([part[k] for part in parts]) for k in range(2))
    first, second = len(train[0]), len(train[0]) + len(val[0])
    alone = Federation(
        Examples.of(x, y, form.classes, form.mean, form.std),
        train=Rows.of([range(first)]),
        val=Rows.of([range(first, second)]),
        test=Rows.of([range(second, len(y))]),
        members=1,
        labelled=torch.ones(1, dtype=torch.bool),
        rotation=torch.zeros(1, dtype=torch.int16),
        budget=places(budget).to(torch.int8),
        seed=seed,
    )
    return alone.behind(number) if number else alone


def unlabelled() -> str:
    """Which methods do without labels, for a sentence."""
    from .. import methods

    names = [name for name in methods.names() if not methods.get(name).needs_labels]
    return f"or take a run of one that needs none: {', '.join(names)}"
