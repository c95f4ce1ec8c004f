"""What travels: trees as Flower records and back, exactly (dtypes, shapes, scalars, empty tensors, empty branches).

Whoever unpacks trusts nobody: an array is read only if its bytes are those of the kind and shape that it tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib.format import write_array_header_1_0
from torch import Tensor

from ... import tree
from ...errors import ProtocolError
from ...tree import Tree

EMPTY = "/"  # how the path of an empty branch ends; no leaf's path does
HEADER = 1024  # more bytes than the numbers themselves an array cannot have
DIMENSIONS, DEPTH = 64, 64  # that an array, and names that a path may have
KINDS = {  # of numbers that travel; by NumPy's names, which are PyTorch's
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
}


@dataclass(frozen=True)
class Header:
    """What a message says about itself, besides the trees it carries."""

    step: str
    round: int
    run: int  # which of the federations in lockstep
    recall: tuple[str, ...]  # names of what the client holds already this round
    scratch: int | None  # the number of an evaluation, whose memories are not kept

    def pack(self) -> ConfigRecord:
        record = ConfigRecord({"step": self.step, "round": self.round, "run": self.run, "recall": list(self.recall)})
        if self.scratch is not None:
            record["scratch"] = self.scratch
        return record

    @staticmethod
    def unpack(record: ConfigRecord) -> Header:
        values: dict[str, Any] = {"scratch": None, **record}
        kinds = {"step": (str,), "round": (int,), "run": (int,), "recall": (list,), "scratch": (int, type(None))}
        fit = values.keys() == kinds.keys() and all(type(values[name]) in kinds[name] for name in kinds)
        if not fit or not all(isinstance(name, str) for name in values["recall"]):
            raise ProtocolError(f"A message's header must tell {', '.join(kinds)} and nothing else.")
        return Header(**values | {"recall": tuple(values["recall"])})


def pack(values: Tree) -> ArrayRecord:
    return ArrayRecord({path: Array(leaf.detach().cpu().contiguous().numpy()) for path, leaf in paths(values)})


def unpack(record: ArrayRecord) -> Tree:
    if deep := next((path for path in record if path.count("/") > DEPTH), ""):
        raise ProtocolError(f"A message has a branch of more than {DEPTH} names, {deep[:DEPTH]!r} and so on.")
    leaves = {path: numbers(path, array) for path, array in record.items()}
    parents = {path.removesuffix(EMPTY)[:end] for path in leaves for end in _slashes(path.removesuffix(EMPTY))}
    if both := sorted(parents & leaves.keys()):
        raise ProtocolError(f"A message has {both[0]!r} both as a branch and as a leaf.")
    return unflattened(leaves)


def unflattened(leaves: dict[str, Tensor]) -> Tree:
    """The tree of these leaves, in which some stand for empty branches."""
    values = tree.unflatten({path: leaf for path, leaf in leaves.items() if not path.endswith(EMPTY)})
    for path in (path for path in leaves if path.endswith(EMPTY)):
        node = values
        for part in path.removesuffix(EMPTY).split("/"):
            node = node.setdefault(part, {})
    return values


def numbers(path: str, array: Array) -> Tensor:
    """An array's numbers, if its bytes are those that NumPy writes for this kind and shape.

    What the bytes say of themselves is compared and never read: NumPy's own reader would believe it, or stumble.
    """
    shape = tuple(array.shape)
    if array.stype != "numpy.ndarray" or array.dtype not in KINDS:
        raise ProtocolError(f"{path!r} is of kind {array.dtype!r} by {array.stype!r}, which does not travel.")
    if len(shape) > DIMENSIONS or min(shape, default=0) < 0:
        raise ProtocolError(f"{path!r} has {len(shape)} dimensions, or fewer numbers than none.")
    kind, count, start = np.dtype(array.dtype), prod(shape), BytesIO()
    write_array_header_1_0(start, {"descr": kind.str, "fortran_order": False, "shape": shape})
    head = start.getvalue()
    if len(array.data) != len(head) + count * kind.itemsize or not array.data.startswith(head):
        raise ProtocolError(f"The bytes of {path!r} are not {array.dtype} of shape {shape}.")
    flat = np.frombuffer(array.data, kind, count, len(head)) if count else np.empty(0, kind)
    return torch.from_numpy(flat.reshape(shape).copy())  # a copy: steps may write to it


def payload(content: RecordDict) -> int:
    """Bytes of the numbers in all arrays of a message: what the ledger counts."""
    arrays = (array for record in content.array_records.values() for array in record.values())
    return sum(prod(array.shape) * np.dtype(array.dtype).itemsize for array in arrays)


def paths(values: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every leaf with its path; an empty branch, which `tree.flatten` would drop, as a tensor of no size."""
    for key, value in values.items():
        if not isinstance(value, dict):
            yield f"{prefix}{key}", value
        elif value:
            yield from paths(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}{EMPTY}", torch.empty(0, dtype=torch.uint8)


def _slashes(path: str) -> list[int]:
    return [place for place, letter in enumerate(path) if letter == "/"]
