"""Sources: real examples with labels, before anybody owns them. `NAMES` says what there is.

An .npz holds x_train, y_train, x_test and y_test; optionally client_train and client_test (natural client ids) and
coarse_train and coarse_test (groups of classes). Images are uint8, [N, height, width] or [N, height, width, channels].
A label of -1 means that it is unknown. docs/data.md tells more.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, LatecomerError, SettingError, UnknownName
from . import npz
from .arrays import Arrays, brief, checked_x, checked_y, class_count, kind_of, two_splits
from .hub import is_saved, read_hub
from .leaf import read_leaf
from .text import read_roles

REQUIRED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("client_train", "client_test", "coarse_train", "coarse_test")
AS_PUBLISHED = {"omniglot": ("x", "alphabet", "character"), "shakespeare": ("text", "role")}
"""Sets whose .npz may hold these arrays instead; `_arranged` gives them train and test examples."""


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
    client_names: NDArray[Any] | None = None  # what the clients are called, where their ids are numbers given here

    @cached_property
    def x(self) -> NDArray[Any]:
        """The training examples and then the test examples, in one array that all federations share."""
        return np.concatenate((self.x_train, self.x_test))

    @cached_property
    def y(self) -> NDArray[Any]:
        return np.concatenate((self.y_train, self.y_test))


@dataclass(frozen=True)
class _Known:
    """What is known about a named set beforehand."""

    classes: int
    hub: str = ""  # its id on Hugging Face; empty: only as an .npz
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    side: int = 0  # images are padded with zeros to this height and width

    def meaning(self, name: str) -> str:
        elsewhere = f", else {self.hub} on Hugging Face" if self.hub else ""
        return f"{self.classes} classes; {name}.npz in $LATECOMER_DATA{elsewhere}"


_KNOWN = {
    "cifar10": _Known(10, "uoft-cs/cifar10", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": _Known(100, "uoft-cs/cifar100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": _Known(10, "ylecun/mnist"),
    "fashion-mnist": _Known(10, "zalando-datasets/fashion_mnist"),
    "femnist": _Known(62, "flwrlabs/femnist", side=32),
    "omniglot": _Known(55),
    "shakespeare": _Known(100),  # characters
}

_UNKNOWN = _Known(0)


NAMES = {
    "digits": "scikit-learn's bundled handwritten digits: no download",
    **{name: known.meaning(name) for name, known in sorted(_KNOWN.items())},
    "shakespeare:STEP": "as shakespeare, with a window every STEP characters instead of at each",
    "npz:PATH": "a file of your own",
    "leaf:FOLDER": "what LEAF's scripts write as JSON: FEMNIST, Shakespeare or the like",
    "hf:ID_OR_FOLDER": "any image classification set of Hugging Face, or a folder that `save_to_disk` wrote",
}
"""Every source and what it is; words in capitals stand for what a user fills in."""

Data = str | os.PathLike[str] | Source | Mapping[str, Any] | Sequence[Any]
"""What `load` takes for a data set."""


def names() -> list[str]:
    """The sources that have a name; `npz:PATH`, `leaf:FOLDER` and `hf:ID_OR_FOLDER` name any other."""
    return sorted(name for name in NAMES if ":" not in name)


def load(data: Data) -> Source:
    """The examples that `data` stands for: a name of NAMES, a path, arrays, or what was loaded already.

    A path leads to an .npz, to a folder that Hugging Face's `save_to_disk` wrote, or to one of LEAF's. Arrays are a
    mapping with x_train, y_train, x_test and y_test, as in an .npz, or a pair of examples and labels, of which a fifth
    of every class is for testing.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, str):
        return _load(data)
    if isinstance(data, os.PathLike):
        folder = "hf" if is_saved(data) else "leaf"
        return _load(f"{folder if os.path.isdir(data) else 'npz'}:{os.fspath(data)}")
    origin = "the arrays"
    if isinstance(data, Mapping):
        return _source("arrays", {key: np.asarray(array) for key, array in data.items()}, origin)
    if not isinstance(data, Sequence) or len(data) != 2:
        got = len(data) if isinstance(data, Sequence) else type(data).__name__
        raise DataError(f"Arrays come as a pair, the examples and their labels, or by name in a dict; got {got}.")
    x, y = (np.asarray(array) for array in data)
    if x.shape[:1] != y.shape or not len(y):
        raise DataError(f"There must be examples, and one label for each; x has shape {x.shape}, y {y.shape}.")
    return _source("arrays", two_splits({"x": x, "y": checked_y(y, "y", origin)}, 0.2), origin)


def _load(name: str) -> Source:
    """What a name stands for."""
    kind, _, place = name.partition(":")
    if kind == "npz" and place:
        return _source(Path(place).stem, read_npz(place), place)
    if kind == "hf" and place:
        arrays, classes = read_hub(place)
        return _source(name, arrays, place, _Known(classes))
    if kind == "leaf" and place:
        arrays, classes = read_leaf(place)
        return _source(Path(place).name, arrays, place, _Known(classes), arrays["client_names"])
    if kind == "shakespeare" and place:
        if not (place.isdecimal() and int(place)):
            raise SettingError(
                f"{name!r} asks for a window every {place!r} characters; that is a whole number above 0."
            )
        return _named(kind, int(place))
    if name == "digits":
        return _digits()
    if name in _KNOWN:
        return _named(name)
    own = [f"npz:{name}"] if name.endswith(".npz") else []
    raise UnknownName("data set", name, [*NAMES, *own])


# the ways to come by arrays


def _digits() -> Source:
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    x, y = np.rint(bunch.images * (255 / 16)).astype(np.uint8), bunch.target.astype(np.int64)
    return _source("digits", two_splits({"x": x, "y": y}, 0.2), "scikit-learn's digits", _Known(10))


def _named(name: str, step: int = 1) -> Source:
    known, folder = _KNOWN[name], os.environ.get("LATECOMER_DATA", "")
    path = Path(folder) / f"{name}.npz"
    if folder and path.is_file():
        found = read_npz(str(path), AS_PUBLISHED.get(name, ()))
        arrays = _arranged(name, found, str(path), step)
        names = np.unique(found["role"]) if name == "shakespeare" and arrays is not found else None
        return _source(name, arrays, str(path), known, names)
    if name == "femnist" and folder and path.with_suffix("").is_dir():
        arrays, _ = read_leaf(str(path.with_suffix("")))
        return _source(name, arrays, str(path.with_suffix("")), known, arrays["client_names"])
    looked = f"there is no {path}" if folder else "LATECOMER_DATA is not set"
    advice = f"set LATECOMER_DATA to a folder that holds {name}.npz"
    if not known.hub:
        raise DataError(f"The data set {name!r} was not found: {looked}; {advice}.")
    try:
        arrays, _ = read_hub(known.hub)
    except LatecomerError as error:
        reason = f"{known.hub} could not be had from Hugging Face ({brief(error.__cause__ or error)})"
        advice += ", or pip install 'latecomer[hub]' and go online once"
        raise DataError(f"The data set {name!r} was not found: {looked}, and {reason}; {advice}.") from error
    return _source(name, arrays, known.hub, known)


def read_npz(path: str, published: tuple[str, ...] = ()) -> Arrays:
    """The arrays that a source is made of: `published`, where the file holds them all, else those of any .npz."""

    def wanted(found: list[str]) -> tuple[str, ...]:
        if published and set(published) <= set(found):
            return published
        _check_names(found, path)
        return (*REQUIRED, *OPTIONAL)

    return npz.read(path, wanted, "x_train, y_train, x_test and y_test")


def _check_names(found: Iterable[str], origin: str) -> None:
    found = sorted(found)
    if missing := [key for key in REQUIRED if key not in found]:
        holds = ", ".join(found) or "nothing"
        raise DataError(f"{origin} lacks {', '.join(missing)}; it holds {holds}, and must hold {', '.join(REQUIRED)}.")


def _arranged(name: str, arrays: Arrays, origin: str, step: int) -> Arrays:
    """Two sets are kept as they were published, and are given train and test examples here."""
    if name == "omniglot" and "alphabet" in arrays:
        return _omniglot(arrays, origin)
    if name == "shakespeare" and "text" in arrays:
        return read_roles(arrays, origin, step)
    if step > 1:
        raise DataError(f"{origin} holds no text and role, of which to make a window every {step} characters.")
    return arrays  # x_train and the rest, perhaps: the checks will tell


def _omniglot(arrays: Arrays, origin: str) -> Arrays:
    """An alphabet is a client, its characters are numbered from 0, and 3 of the 20 drawings of each are for testing."""
    alphabet, character = (checked_y(arrays[key], key, origin) for key in ("alphabet", "character"))
    if not alphabet.shape == character.shape == arrays["x"].shape[:1] or not len(alphabet):
        raise DataError(f"In {origin} x, alphabet and character differ in length, or are empty.")
    alphabet = np.unique(alphabet, return_inverse=True)[1]
    first = np.full(alphabet.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, alphabet, character)
    return two_splits({"x": arrays["x"], "y": character - first[alphabet], "client": alphabet}, 0.15, character)


def _source(
    name: str,
    arrays: Mapping[str, NDArray[Any]],
    origin: str,
    known: _Known = _UNKNOWN,
    names: NDArray[Any] | None = None,
) -> Source:
    """A source from arrays that may be wrong in any way; every complaint names `origin`."""
    _check_names(arrays, origin)
    for key in (*REQUIRED, *OPTIONAL):
        if key in arrays:
            _check_length(key, arrays, origin)
    x_train, x_test = (checked_x(arrays[key], key, origin) for key in ("x_train", "x_test"))
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise DataError(f"In {origin} x_train and x_test differ: {kind_of(x_train)} and {kind_of(x_test)}.")
    y_train, y_test = (checked_y(arrays[key], key, origin) for key in ("y_train", "y_test"))
    classes = class_count(np.concatenate((y_train, y_test)), known.classes, origin)
    if known.mean and x_train.shape[3:] != (len(known.mean),):
        raise DataError(
            f"{origin} holds {kind_of(x_train)}; {name} consists of images with {len(known.mean)} channels."
        )
    x_train, x_test = (_padded(x, known.side) for x in (x_train, x_test))
    rest = {key: arrays[key] for key in OPTIONAL if key in arrays}
    return Source(name, x_train, y_train, x_test, y_test, classes, known.mean, known.std, **rest, client_names=names)


def _check_length(key: str, arrays: Mapping[str, NDArray[Any]], origin: str) -> None:
    array, half = arrays[key], key.split("_")[1]
    if array.ndim == 0 or (array.ndim != 1 and not key.startswith("x")):
        raise DataError(f"{key} in {origin} has shape {array.shape}; there must be one entry an example.")
    if len(array) == 0:
        raise DataError(f"{key} in {origin} is empty.")
    if len(array) != len(arrays[f"y_{half}"]):
        raise DataError(f"In {origin} {key} has {len(array)} entries, but y_{half} has {len(arrays[f'y_{half}'])}.")


def _padded(x: NDArray[Any], side: int) -> NDArray[Any]:
    """Zeros around the images, up to `side` pixels."""
    if not side or x.ndim < 3 or min(side - x.shape[1], side - x.shape[2]) < 0:
        return x
    margins = [((side - size) // 2, side - size - (side - size) // 2) for size in x.shape[1:3]]
    return np.pad(x, [(0, 0), *margins, *[(0, 0)] * (x.ndim - 3)])
