"""Sources: real examples with labels, before anybody owns them.

    digits                    scikit-learn's bundled handwritten digits: no download
    cifar10, mnist, ...       <name>.npz in the folder $LATECOMER_DATA, else Hugging Face (extra `hub`)
    npz:PATH                  a file of your own
    hf:ID_OR_FOLDER           any image classification set of Hugging Face, or a folder that `save_to_disk` wrote

An .npz holds x_train, y_train, x_test and y_test; optionally client_train and client_test (natural client ids) and
coarse_train and coarse_test (groups of classes). Images are uint8, [N, height, width] or [N, height, width, channels].
A label of -1 means that it is unknown.
"""

from __future__ import annotations

import importlib
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, LatecomerError, UnknownName, need

Arrays = dict[str, NDArray[Any]]

REQUIRED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("client_train", "client_test", "coarse_train", "coarse_test")
IMAGE_COLUMNS = ("image", "img", "x")
LABEL_COLUMNS = ("label", "labels", "fine_label", "y", "character")
CLIENT_COLUMNS = ("writer_id", "client")
COARSE_COLUMNS = ("coarse_label",)

DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    ValueError,
    KeyError,
    OSError,
    RuntimeError,
    MemoryError,
)
"""What reading a truncated, corrupt or hostile .npz raises. (NotImplementedError is a RuntimeError.)"""


@dataclass(frozen=True, eq=False)
class Source:
    """Examples and labels as they were published."""

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    classes: int
    mean: tuple[float, ...] = ()  # per channel, of pixels in [0, 1]
    std: tuple[float, ...] = ()
    client_train: NDArray[Any] | None = None  # natural client ids, numbers or text
    client_test: NDArray[Any] | None = None
    coarse_train: NDArray[Any] | None = None  # superclasses
    coarse_test: NDArray[Any] | None = None


@dataclass(frozen=True)
class _Known:
    """What is known about a named set beforehand."""

    classes: int
    hub: str = ""  # its id on Hugging Face; empty: only as an .npz
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    side: int = 0  # images are padded with zeros to this height and width


_KNOWN = {
    "cifar10": _Known(10, "uoft-cs/cifar10", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": _Known(100, "uoft-cs/cifar100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": _Known(10, "ylecun/mnist"),
    "fashion-mnist": _Known(10, "zalando-datasets/fashion_mnist"),
    "femnist": _Known(62, "flwrlabs/femnist", side=32),
    "omniglot": _Known(55),
}

_UNKNOWN = _Known(0)


def names() -> list[str]:
    """The sources that have a name; `npz:PATH` and `hf:ID_OR_FOLDER` name any other."""
    return sorted([*_KNOWN, "digits"])


def load(name: str) -> Source:
    """The examples that `name` stands for (see the top of this file)."""
    kind, _, place = name.partition(":")
    if kind == "npz" and place:
        return _source(Path(place).stem, read_npz(place), place)
    if kind == "hf" and place:
        arrays, classes = _read_hub(place)
        return _source(name, arrays, place, _Known(classes))
    if name == "digits":
        return _digits()
    if name in _KNOWN:
        return _named(name)
    own = [f"npz:{name}"] if name.endswith(".npz") else []
    raise UnknownName("data set", name, [*names(), "npz:PATH", "hf:ID_OR_FOLDER", *own])


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


# the four ways to come by arrays


def _digits() -> Source:
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    x, y = np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target.astype(np.int64)
    return _source("digits", _two_splits({"x": x, "y": y}, 0.2), "scikit-learn's digits", _Known(10))


def _named(name: str) -> Source:
    known, folder = _KNOWN[name], os.environ.get("LATECOMER_DATA", "")
    path = Path(folder) / f"{name}.npz"
    if folder and path.is_file():
        arrays = read_npz(str(path))
        return _source(name, _omniglot(arrays, str(path)) if name == "omniglot" else arrays, str(path), known)
    looked = f"there is no {path}" if folder else "LATECOMER_DATA is not set"
    advice = f"set LATECOMER_DATA to a folder that holds {name}.npz"
    if not known.hub:
        raise DataError(f"The data set {name!r} was not found: {looked}; {advice}.")
    try:
        arrays, _ = _read_hub(known.hub)
    except LatecomerError as error:
        reason = f"{known.hub} could not be had from Hugging Face ({_brief(error.__cause__ or error)})"
        advice += ", or pip install 'latecomer[hub]' and go online once"
        raise DataError(f"The data set {name!r} was not found: {looked}, and {reason}; {advice}.") from error
    return _source(name, arrays, known.hub, known)


def read_npz(path: str) -> Arrays:
    """All arrays of an .npz, without ever unpickling anything."""
    if not Path(path).is_file():
        raise DataError(f"There is no file {path!r}; an .npz with x_train, y_train, x_test and y_test was expected.")
    try:
        with open(path, "rb") as file:  # np.load leaves a damaged file open if it opened it itself
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DataError(f"{path!r} holds a single array, not the named arrays of an .npz.")
            entries = {key: archive[key] for key in archive.files}
        return {key: entry for key, entry in entries.items() if isinstance(entry, np.ndarray)}  # bytes are no array
    except DAMAGE as error:
        raise DataError(
            f"{path!r} cannot be read as an .npz, it may be cut short or damaged ({_brief(error)})."
        ) from error


def _omniglot(arrays: Arrays, origin: str) -> Arrays:
    """An alphabet is a client, its characters are numbered from 0, and 3 of the 20 drawings of each are for testing."""
    missing = [key for key in ("x", "alphabet", "character") if key not in arrays]
    if missing:
        return arrays  # x_train and the rest, perhaps: the checks will tell
    alphabet, character = arrays["alphabet"], arrays["character"].astype(np.int64)
    if not len(arrays["x"]) == len(alphabet) == len(character):
        raise DataError(f"In {origin} x, alphabet and character differ in length.")
    first = np.full(int(alphabet.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, alphabet, character)
    return _two_splits({"x": arrays["x"], "y": character - first[alphabet], "client": alphabet}, 0.15, character)


def _two_splits(table: Arrays, share: float, groups: NDArray[Any] | None = None) -> Arrays:
    """A table without a test split gives up the same share of every class."""
    y = table["y"]
    held = hold_out(y if groups is None else groups, y, share, np.random.default_rng(0))
    halves = (("train", ~held), ("test", held))
    return {f"{key}_{half}": column[mask] for key, column in table.items() for half, mask in halves}


# Hugging Face


def _read_hub(place: str) -> tuple[Arrays, int]:
    """The arrays of a data set of the hub or of a folder, and the number of classes (0: not declared)."""
    datasets = need("datasets", "hub")
    saved = any((Path(place) / marker).is_file() for marker in ("dataset_dict.json", "state.json"))
    try:
        found = datasets.load_from_disk(place) if saved else datasets.load_dataset(place)
        splits = dict(found) if isinstance(found, dict) else {"train": found}
        train = splits.get("train") if len(splits) > 1 else next(iter(splits.values()))
        if train is None:
            raise DataError(f"{place!r} has the splits {', '.join(splits)}; one of them must be called train.")
        return _both(train, splits.get("test") if len(splits) > 1 else None, place)
    except LatecomerError:
        raise
    except Exception as error:  # whatever that library meets (network, cache, decoding) is told in its own words
        raise DataError(f"{place!r} cannot be loaded with the datasets library ({_brief(error)}).") from error


def _both(train: Any, test: Any, origin: str) -> tuple[Arrays, int]:
    first = read_table(train, origin)
    if test is None:
        return _two_splits(numbered(first), 0.2), declared_classes(train)
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


# checks: what passes here can be trusted everywhere else


def _source(name: str, arrays: Mapping[str, NDArray[Any]], origin: str, known: _Known = _UNKNOWN) -> Source:
    """A source from arrays that may be wrong in any way; every complaint names `origin`."""
    missing = [key for key in REQUIRED if key not in arrays]
    if missing:
        found = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"{origin} lacks {', '.join(missing)}; it holds {found}, and must hold {', '.join(REQUIRED)}.")
    for key in (*REQUIRED, *OPTIONAL):
        if key in arrays:
            _check_length(key, arrays, origin)
    x_train, x_test = (checked_x(arrays[key], key, origin) for key in ("x_train", "x_test"))
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise DataError(f"In {origin} x_train and x_test differ: {_kind(x_train)} and {_kind(x_test)}.")
    y_train, y_test = (checked_y(arrays[key], key, origin) for key in ("y_train", "y_test"))
    classes = class_count(np.concatenate((y_train, y_test)), known.classes, origin)
    if known.mean and x_train.shape[3:] != (len(known.mean),):
        raise DataError(f"{origin} holds {_kind(x_train)}; {name} consists of images with {len(known.mean)} channels.")
    x_train, x_test = (_padded(x, known.side) for x in (x_train, x_test))
    rest = {key: arrays[key] for key in OPTIONAL if key in arrays}
    return Source(name, x_train, y_train, x_test, y_test, classes, known.mean, known.std, **rest)


def _check_length(key: str, arrays: Mapping[str, NDArray[Any]], origin: str) -> None:
    array, half = arrays[key], key.split("_")[1]
    if array.ndim == 0 or (array.ndim != 1 and not key.startswith("x")):
        raise DataError(f"{key} in {origin} has shape {array.shape}; there must be one entry an example.")
    if len(array) == 0:
        raise DataError(f"{key} in {origin} is empty.")
    if len(array) != len(arrays[f"y_{half}"]):
        raise DataError(f"In {origin} {key} has {len(array)} entries, but y_{half} has {len(arrays[f'y_{half}'])}.")


def checked_x(x: NDArray[Any], key: str, origin: str) -> NDArray[Any]:
    """Images as uint8, whole numbers as int64, anything else as float32."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{key} in {origin} holds {x.dtype} values; they must be numbers.")
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
    return x.astype(np.int64 if x.dtype.kind in "iu" else np.float32, copy=False)


def checked_y(y: NDArray[Any], key: str, origin: str) -> NDArray[Any]:
    whole = y.dtype.kind in "biu" or (y.dtype.kind == "f" and bool((np.isfinite(y) & (y == np.floor(y))).all()))
    if not whole:
        raise DataError(
            f"{key} in {origin} holds labels that are not whole numbers ({y.dtype}, {y.flat[0]!s} for example)."
        )
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


def _padded(x: NDArray[Any], side: int) -> NDArray[Any]:
    """Zeros around the images, up to `side` pixels."""
    if not side or x.ndim < 3 or min(side - x.shape[1], side - x.shape[2]) < 0:
        return x
    margins = [((side - size) // 2, side - size - (side - size) // 2) for size in x.shape[1:3]]
    return np.pad(x, [(0, 0), *margins, *[(0, 0)] * (x.ndim - 3)])


def _kind(x: NDArray[Any]) -> str:
    return f"{x.dtype} {list(x.shape[1:])}"


def _brief(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')[:160]}" if lines else type(error).__name__
