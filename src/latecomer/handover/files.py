"""The .npz files that a client brings, and the tables it takes away."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import npz
from ..errors import DataError
from ..runs.files import Replacing

NAMES = {"x": ("x", "x_train"), "y": ("y", "y_train"), "held_x": ("x_val",), "held_y": ("y_val",)}
NAMES |= {"test_x": ("x_test",), "test_y": ("y_test",)}


def read_client(path: str) -> dict[str, NDArray[Any] | None]:
    """One client's examples `x`, their labels `y` if it has any, and those that it holds out itself.

    `x_val` and `y_val` are to choose by; by `x_test` and `y_test` whoever takes part in a training is scored.
    """
    known = [name for names in NAMES.values() for name in names]
    found = npz.read(path, lambda _: known, "x, and y where there are labels,")
    arrays = {key: next((found[name] for name in names if name in found), None) for key, names in NAMES.items()}
    if arrays["x"] is None:
        raise DataError(f"{path!r} holds no array x (or x_train): the client's examples; y would be their labels.")
    for split, x, y in (("val", "held_x", "held_y"), ("test", "test_x", "test_y")):
        if (arrays[x] is None) != (arrays[y] is None):
            raise DataError(f"{path!r} holds one of x_{split} and y_{split} without the other.")
    return arrays


def write_labels(path: Path, logits: NDArray[Any]) -> None:
    """A row for every example: its place, the class, and how sure the model is."""
    shares = np.exp(logits - logits.max(1, keepdims=True))
    labels, sure = logits.argmax(1), (shares.max(1) / shares.sum(1)).astype(float).round(4)
    try:
        with Replacing(path) as target, target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("example", "label", "confidence"))
            writer.writerows(zip(range(len(labels)), labels.tolist(), sure.tolist(), strict=True))
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from error
