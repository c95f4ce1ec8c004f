"""What travels: a tree as one blob of bytes and back, exactly (dtypes, shapes, scalars, empty tensors and branches).

A blob is a safetensors file, because a SuperLink's time goes by the number of objects in a message and not by their
bytes. Whoever unpacks trusts nobody: the size is compared before anything is read, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from ... import tensorfile, tree
from ...errors import ProtocolError
from ...tree import Tree

BLOB = "blob"  # the one entry of a body
SMALL = 4_000_000  # bytes that travel fastest in a ConfigRecord; more do not pass in one, but do in an Array
KIND, STORED = "uint8", "safetensors"  # what such an Array says of itself
MOST = 2**32  # bytes that a client reads at all; a server knows how many it expects
EMPTY = "/"  # how the path of an empty branch ends; no leaf's path does
DEPTH = 64  # names that a path may have
TRAINING = r"[0-9A-Za-z_-]{1,64}"  # what a training may be called: clients name files after it


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a message says about itself, besides the trees it carries."""

    step: str
    round: int
    run: int = 0  # which of the federations in lockstep
    recall: tuple[str, ...] = ()  # names of what the client holds already this round
    scratch: int | None = None  # the number of an evaluation, whose memories are not kept
    method: str  # what both sides must agree on; see terms.py
    settings: str
    version: str
    training: str  # stays the same when a killed server resumes
    client: int  # the number that the server gave to this client

    def pack(self) -> ConfigRecord:
        values: dict[str, Any] = {**vars(self), "recall": list(self.recall)}
        return ConfigRecord({name: value for name, value in values.items() if value is not None})

    @staticmethod
    def unpack(record: ConfigRecord) -> Header:
        """A header, if it is one."""
        texts, counts = ("step", "method", "settings", "version", "training"), ("round", "run", "client")
        kinds: dict[str, tuple[type, ...]] = {
            **dict.fromkeys(counts, (int,)),
            **dict.fromkeys(texts, (str,)),
            "recall": (list,),
            "scratch": (int, type(None)),
        }
        values: dict[str, Any] = {"scratch": None, **record}
        fit = values.keys() == kinds.keys() and all(type(values[name]) in kinds[name] for name in kinds)
        if not fit or not all(isinstance(name, str) for name in values["recall"]):
            names = ", ".join(Header.__dataclass_fields__)
            raise ProtocolError(f"A message's header must tell {names} and nothing else.")
        check_name(values["training"])
        return Header(**values | {"recall": tuple(values["recall"])})


def check_name(name: str) -> None:
    """Refuse what cannot be the name of a file."""
    if not re.fullmatch(TRAINING, name):
        raise ProtocolError(f"A training cannot be called {name[:64]!r}; letters, digits, - and _ make its name.")


# a tree as one record, and back


def pack(values: Tree) -> ConfigRecord | ArrayRecord:
    """A tree as the body of a message."""
    arrays = {path: leaf.detach().cpu().contiguous().numpy() for path, leaf in paths(values)}
    return body(tensorfile.pack(arrays))


def body(blob: bytes) -> ConfigRecord | ArrayRecord:
    """Bytes as a record, in the way in which so many of them travel."""
    if len(blob) < SMALL:
        return ConfigRecord({BLOB: blob})
    return ArrayRecord({BLOB: Array(KIND, (len(blob),), STORED, blob)})


def blob_of(record: Any, most: int = MOST) -> bytes:
    """The bytes of a body, if it is one and has at most so many; nothing of them is read."""
    entry = dict(record).get(BLOB) if isinstance(record, ConfigRecord | ArrayRecord) and len(record) == 1 else None
    if isinstance(entry, Array) and (entry.dtype, entry.stype, tuple(entry.shape)) == (
        KIND,
        STORED,
        (len(entry.data),),
    ):
        entry = entry.data
    if not isinstance(entry, bytes):
        raise ProtocolError("The body of a message must be one blob of bytes.")
    if len(entry) > most:
        raise ProtocolError(f"A message has {len(entry)} bytes, and at most {most} were expected.")
    return entry


def unpack(record: Any, most: int = MOST) -> Tree:
    """The tree in a body."""
    arrays = arrays_of(blob_of(record, most))
    if deep := next((path for path in arrays if path.count("/") > DEPTH), ""):
        raise ProtocolError(f"A message has a branch of more than {DEPTH} names, {deep[:DEPTH]!r} and so on.")
    branches = {path[:end] for path in arrays for end in _slashes(path)}
    if both := sorted(branches & arrays.keys()):
        raise ProtocolError(f"A message has {both[0]!r} both as a branch and as a leaf.")
    return unflattened({path: tensor(array) for path, array in arrays.items()})


def arrays_of(blob: bytes, longest: int = tensorfile.LONGEST) -> dict[str, NDArray[Any]]:
    """The arrays in a blob, by path; they share its memory. What stands before them has at most so many bytes."""
    try:
        return tensorfile.unpack(blob, longest)
    except tensorfile.TensorFileError as error:
        raise ProtocolError(f"A message cannot be read: {error}.") from error


def tensor(array: NDArray[Any]) -> Tensor:
    """A copy, as steps may write to it. A bool is one bit, whatever else was in its byte."""
    if array.dtype == np.bool_:
        return torch.from_numpy(array.view(np.uint8).copy()) != 0
    return torch.from_numpy(array.copy())


def unflattened(leaves: dict[str, Tensor]) -> Tree:
    """The tree of these leaves, in which some stand for empty branches."""
    values = tree.unflatten({path: leaf for path, leaf in leaves.items() if not path.endswith(EMPTY)})
    for path in (path for path in leaves if path.endswith(EMPTY)):
        node = values
        for part in path.removesuffix(EMPTY).split("/"):
            node = node.setdefault(part, {})
    return values


def paths(values: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every leaf with its path; an empty branch, which `tree.flatten` would drop, as a tensor of no size."""
    for key, value in values.items():
        if not isinstance(value, dict):
            yield f"{prefix}{key}", value
        elif value:
            yield from paths(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}{EMPTY}", torch.empty(0, dtype=torch.uint8)


# messages


def request(header: Header, sent: ConfigRecord | ArrayRecord) -> RecordDict:
    """What a server sends: `sent` is `pack({"shared": ..., "each": ...})`."""
    return RecordDict({"header": header.pack(), "body": sent})


def fingerprint(header: Header, blob: bytes) -> str:
    """By which a client knows that it is asked the very same again."""
    found = hashlib.sha256(repr(header).encode())
    found.update(blob)
    return found.hexdigest()


def payload(content: RecordDict) -> int:
    """Bytes of the numbers in a message: what the ledger counts."""
    return sum(array.nbytes for array in arrays_of(blob_of(content["body"])).values())


def _slashes(path: str) -> list[int]:
    return [place for place, letter in enumerate(path) if letter == "/"]
