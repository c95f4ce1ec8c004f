"""Text: characters as numbers, and windows of them whose label is the character that follows."""

from __future__ import annotations

import re
import string
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ..errors import DataError
from .arrays import Arrays

CHARACTERS = string.printable  # as kNN-Per: fixed, so that what was trained on one text can read another
WINDOW = 80
TEST = 0.2  # of a role's lines, the last ones

_CODE = np.full(128, -1, np.int8)
_CODE[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))


def encode(text: str, origin: str) -> NDArray[Any]:
    """The number of every character, as int8: a text of windows is large."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    code = np.where(points < len(_CODE), _CODE[np.minimum(points, len(_CODE) - 1)], -1).astype(np.int8)
    if (code < 0).any():
        first = chr(points[np.flatnonzero(code < 0)[0]])
        raise DataError(f"{origin} holds the character {first!a}; only printable ASCII characters can be read.")
    return code


def read_roles(arrays: Arrays, origin: str, step: int = 1) -> Arrays:
    """A role is a client, with a window every `step` characters; the last fifth of its lines is for testing.

    Lines are joined by spaces, and no window reaches from training into test lines. A role too short for a window of
    each is left out. All this is as in kNN-Per's code, save that only the character after a window is predicted, as in
    LEAF, and not the one after each of its characters.
    """
    text, role = arrays["text"], arrays["role"]
    if text.shape != role.shape or text.ndim != 1 or not {text.dtype.kind, role.dtype.kind} <= {"U"}:
        raise DataError(f"In {origin} text and role must hold one text each for every role.")
    halves: dict[str, list[NDArray[Any]]] = {"train": [], "test": []}
    owner: dict[str, list[NDArray[Any]]] = {"train": [], "test": []}
    number = np.unique(role, return_inverse=True)[1]  # millions of copies of their names would be large
    for client, lines in zip(number, map(str.splitlines, text.tolist()), strict=True):
        last = max(1, int(TEST * len(lines)))
        parts = {"train": lines[:-last], "test": lines[-last:]}
        code = {half: encode(re.sub(" {2,}", " ", " ".join(some)), origin) for half, some in parts.items()}
        if min(map(len, code.values())) > WINDOW:
            for half, characters in code.items():
                halves[half].append(sliding_window_view(characters, WINDOW + 1)[::step])
                owner[half].append(np.full(len(halves[half][-1]), client))
    if not halves["train"]:
        raise DataError(f"No role in {origin} has more than {WINDOW} characters both to train and to test on.")
    table: Arrays = {}
    for half, windows in halves.items():
        table[f"x_{half}"] = np.concatenate([some[:, :WINDOW] for some in windows])
        table[f"y_{half}"] = np.concatenate([some[:, WINDOW] for some in windows])
        table[f"client_{half}"] = np.concatenate(owner[half])
    return table
