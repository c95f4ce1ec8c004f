"""Hugging Face data sets, from the hub or from a folder, as arrays (extra `hub`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, LatecomerError, need
from .arrays import Arrays, brief, two_splits

IMAGE_COLUMNS = ("image", "img", "x")
LABEL_COLUMNS = ("label", "labels", "fine_label", "y", "character")
CLIENT_COLUMNS = ("writer_id", "client")
COARSE_COLUMNS = ("coarse_label",)


def read_hub(place: str) -> tuple[Arrays, int]:
    """The arrays of a data set of the hub or of a folder, and the number of classes (0: not declared)."""
    datasets = need("datasets", "hub")
    try:
        found = datasets.load_from_disk(place) if is_saved(place) else datasets.load_dataset(place)
        splits = dict(found) if isinstance(found, dict) else {"train": found}
        train = splits.get("train") if len(splits) > 1 else next(iter(splits.values()))
        if train is None:
            raise DataError(f"{place!r} has the splits {', '.join(splits)}; one of them must be called train.")
        return _both(train, splits.get("test") if len(splits) > 1 else None, place)
    except LatecomerError:
        raise
    except Exception as error:  # whatever that library meets (network, cache, decoding) is told in its own words
        raise DataError(f"{place!r} cannot be loaded with the datasets library ({brief(error)}).") from error


def is_saved(place: str | os.PathLike[str]) -> bool:
    """Whether a place is a folder that `save_to_disk` wrote."""
    return any((Path(place) / marker).is_file() for marker in ("dataset_dict.json", "state.json"))


def _both(train: Any, test: Any, origin: str) -> tuple[Arrays, int]:
    first = read_table(train, origin)
    if test is None:
        return two_splits(numbered(first), 0.2), declared_classes(train)
    second = read_table(test, origin)
    arrays = {"x_train": first.pop("x"), "x_test": second.pop("x")}
    joint: Arrays = {key: np.concatenate((first[key], second[key])) for key in first if key in second}
    for key, column in numbered(joint).items():  # together, so that both splits number text labels alike
        arrays[f"{key}_train"], arrays[f"{key}_test"] = np.split(column, [len(first["y"])])
    return arrays, declared_classes(train)


def declared_classes(dataset: Any) -> int:
    feature = dataset.features[column_of(dataset, LABEL_COLUMNS)]
    return int(getattr(feature, "num_classes", 0) or 0)


def numbered(table: Arrays) -> Arrays:
    """Labels given as text are numbered in alphabetical order."""
    text = {key for key in ("y", "coarse") if key in table and table[key].dtype.kind in "US"}
    return {key: np.unique(column, return_inverse=True)[1] if key in text else column for key, column in table.items()}


def column_of(dataset: Any, wanted: tuple[str, ...]) -> str:
    return next((name for name in wanted if name in dataset.column_names), "")


def read_table(dataset: Any, origin: str) -> Arrays:
    """x, y and where present client and coarse of a `datasets.Dataset`."""
    pictures = [name for name, feature in dataset.features.items() if type(feature).__name__ == "Image"]
    image = next(iter(pictures), "") or column_of(dataset, IMAGE_COLUMNS)
    label = column_of(dataset, LABEL_COLUMNS)
    if not image or not label:
        lacks = "column of images (image, img or x)" if not image else f"column of labels ({', '.join(LABEL_COLUMNS)})"
        raise DataError(f"{origin!r} has no {lacks}; its columns are {', '.join(dataset.column_names)}.")
    table = {"x": _pictures(dataset, image, origin) if pictures else _values(dataset, image, origin)}
    for key, name in (
        ("y", label),
        ("client", column_of(dataset, CLIENT_COLUMNS)),
        ("coarse", column_of(dataset, COARSE_COLUMNS)),
    ):
        if name:
            table[key] = np.asarray(dataset.with_format(None)[name][:])
    return table


def _pictures(dataset: Any, column: str, origin: str) -> NDArray[Any]:
    """Decoded one by one into one array, so that the images never exist twice."""
    x = np.zeros(0, np.uint8)
    for place, picture in enumerate(_each(dataset.with_format(None).select_columns([column]), column)):
        pixels = np.asarray(picture.convert({"1": "L", "P": "RGB", "CMYK": "RGB"}.get(picture.mode, picture.mode)))
        if place == 0:
            x = np.zeros((len(dataset), *pixels.shape), pixels.dtype)
        if pixels.shape != x.shape[1:]:
            raise DataError(
                f"The images of {origin!r} differ in shape ({x.shape[1:]} and {pixels.shape}); resize them to one."
            )
        x[place] = pixels
    return x


def _each(dataset: Any, column: str, size: int = 1000) -> Iterator[Any]:
    for start in range(0, len(dataset), size):
        yield from dataset[start : start + size][column]


def _values(dataset: Any, column: str, origin: str) -> NDArray[Any]:
    rows = [np.asarray(row) for row in _each(dataset.with_format("numpy").select_columns([column]), column)]
    shapes = {row.shape for row in rows}
    if len(shapes) > 1:
        raise DataError(f"The arrays in column {column!r} of {origin!r} differ in shape: {sorted(shapes)[:2]}.")
    x = np.stack(rows) if rows else np.zeros(0, np.uint8)
    feature = dataset.features[column]
    while hasattr(feature, "feature"):  # a list of lists of ...
        feature = feature.feature
    return x.astype(np.uint8) if getattr(feature, "dtype", "") == "uint8" else x  # the library widens all whole numbers
