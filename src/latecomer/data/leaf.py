"""LEAF's JSON: files of `users` and, for each, `user_data` with examples `x` and labels `y`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .arrays import Arrays, brief, two_splits
from .text import CHARACTERS, encode

SIDE = 28  # an example of SIDE * SIDE numbers is an image


def read_leaf(place: str) -> tuple[Arrays, int]:
    """The arrays of a folder that LEAF's scripts wrote, with the users' names, and the classes (0: not declared).

    Taken are train/ and test/ where there are both, else all_data/, else the folder itself; without a test split, a
    fifth of every user's examples becomes one. The same under data/, where LEAF puts them.
    """
    for folder in (Path(place), Path(place) / "data"):
        halves = {half: sorted((folder / half).glob("*.json")) for half in ("train", "test")}
        if all(halves.values()):
            numbers: dict[str, int] = {}
            tables = {half: _table(files, numbers) for half, files in halves.items()}
            _check_alike(tables["train"]["x"], tables["test"]["x"], place)
            arrays = {f"{key}_{half}": column for half, table in tables.items() for key, column in table.items()}
            return arrays | {"client_names": np.array(list(numbers))}, _classes(arrays["x_train"])
        files = sorted((folder / "all_data").glob("*.json")) or sorted(folder.glob("*.json"))
        if files:
            numbers = {}
            table = _table(files, numbers)
            arrays = two_splits(table, 0.2, table["client"])
            return arrays | {"client_names": np.array(list(numbers))}, _classes(table["x"])
    raise DataError(
        f"{place!r} holds no JSON files in train/ and test/, in all_data/ or directly, as LEAF writes them."
    )


def _classes(x: NDArray[Any]) -> int:
    return len(CHARACTERS) if x.dtype == np.int8 else 0


def _table(files: Sequence[Path], numbers: dict[str, int]) -> Arrays:
    """x, y and client of several files, end to end; one file is in memory as JSON at a time.

    Users are numbered as they come, since millions of copies of their names would be large.
    """
    parts: list[tuple[NDArray[Any], NDArray[Any], str]] = [part for file in files for part in _users(file)]
    if not parts:
        raise DataError(f"{str(files[0].parent)!r} holds no example of any user.")
    for x, _, user in parts:
        _check_alike(parts[0][0], x, f"{files[0].parent}, user {user!r}")
    return {
        "x": np.concatenate([x for x, _, _ in parts]),
        "y": np.concatenate([y for _, y, _ in parts]),
        "client": np.repeat(
            [numbers.setdefault(user, len(numbers)) for _, _, user in parts], [len(y) for _, y, _ in parts]
        ),
    }


def _users(file: Path) -> Iterator[tuple[NDArray[Any], NDArray[Any], str]]:
    """Examples, labels and name of every user of a file that has examples."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{str(file)!r} cannot be read as JSON ({brief(error)}).") from error
    users = _entry(content, "users", list, str(file))
    data = _entry(content, "user_data", dict, str(file))
    for user in users:
        origin = f"user {user!r} of {file}"
        mine = _entry(data, user, dict, f"user_data in {file}")
        x, y = (_entry(mine, key, list, origin) for key in ("x", "y"))
        if len(x) != len(y):
            raise DataError(f"In {file} user {user!r} has {len(x)} examples in x, but {len(y)} labels in y.")
        if y:
            yield *_arrays(x, y, origin), str(user)


def _entry(mapping: Any, key: Any, kind: type[list[Any]] | type[dict[str, Any]], origin: str) -> Any:
    """What stands under a key, which must be there and of the right kind."""
    value = mapping.get(key) if isinstance(mapping, dict) and isinstance(key, str) else None
    if not isinstance(value, kind):
        name = "list" if kind is list else "object"
        raise DataError(f"There is no {name} {key!r} in {origin}, where LEAF's format has one.")
    return value


def _arrays(x: list[Any], y: list[Any], origin: str) -> tuple[NDArray[Any], NDArray[Any]]:
    if all(isinstance(one, str) for one in x):
        return _text(x, y, origin)
    try:
        examples = np.asarray(x, np.float32)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"The examples of {origin} are not numbers, equally many each ({brief(error)}).") from error
    labels = np.asarray([label if isinstance(label, int | float) else None for label in y])
    if labels.dtype.kind not in "biuf":
        raise DataError(f"The labels of {origin} must be numbers, one for each example.")
    if examples.shape[1:] != (SIDE * SIDE,):
        return examples, labels
    if not ((examples >= 0) & (examples <= 1)).all():
        raise DataError(f"The images of {origin} hold pixels outside 0 to 1.")
    return np.rint(examples * 255).astype(np.uint8).reshape(-1, SIDE, SIDE), labels


def _text(x: list[str], y: list[Any], origin: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Sequences of characters, and the character after each."""
    length = len(x[0])
    if not length or any(len(one) != length for one in x):
        raise DataError(f"The texts of {origin} differ in length, or are empty.")
    if not all(isinstance(one, str) and len(one) == 1 for one in y):
        raise DataError(f"The labels of {origin} must be one character each, like what its texts are made of.")
    return encode("".join(x), origin).reshape(-1, length), encode("".join(y), origin)


def _check_alike(first: NDArray[Any], other: NDArray[Any], origin: str) -> None:
    if (first.shape[1:], first.dtype) != (other.shape[1:], other.dtype):
        kinds = " and ".join(f"{x.dtype} {list(x.shape[1:])}" for x in (first, other))
        raise DataError(f"The examples in {origin} differ in kind: {kinds}.")
