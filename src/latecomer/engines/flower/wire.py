"""What travels: trees as Flower records and back, exactly (dtypes, shapes, scalars, empty tensors, empty branches)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from ... import tree
from ...tree import Tree

EMPTY = "/"  # how the path of an empty branch ends; no leaf's path does


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
        values: dict[str, Any] = dict(record)
        return Header(**values | {"recall": tuple(values["recall"]), "scratch": values.get("scratch")})


def pack(values: Tree) -> ArrayRecord:
    return ArrayRecord({path: Array(leaf.detach().cpu().contiguous().numpy()) for path, leaf in _paths(values)})


def unpack(record: ArrayRecord) -> Tree:
    leaves = {path: torch.from_numpy(array.numpy()) for path, array in record.items()}
    values = tree.unflatten({path: leaf for path, leaf in leaves.items() if not path.endswith(EMPTY)})
    for path in (path for path in leaves if path.endswith(EMPTY)):
        node = values
        for part in path.removesuffix(EMPTY).split("/"):
            node = node.setdefault(part, {})
    return values


def payload(content: RecordDict) -> int:
    """Bytes of the numbers in all arrays of a message: what the ledger counts."""
    arrays = (array for record in content.array_records.values() for array in record.values())
    return sum(prod(array.shape) * np.dtype(array.dtype).itemsize for array in arrays)


def _paths(values: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every leaf with its path; an empty branch, which `tree.flatten` would drop, as a tensor of no size."""
    for key, value in values.items():
        if not isinstance(value, dict):
            yield f"{prefix}{key}", value
        elif value:
            yield from _paths(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}{EMPTY}", torch.empty(0, dtype=torch.uint8)
