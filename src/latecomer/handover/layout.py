"""A safetensors file whose header is known beforehand: the numbers behind it are all that differs between clients."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod

import torch
from torch import Tensor

KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The kinds of numbers that models are made of, as safetensors calls them."""


class Layout:
    """Where every leaf lies: wide numbers first, so that all are aligned, and then by name."""

    def __init__(self, leaves: Mapping[str, Tensor]) -> None:
        order = sorted(leaves, key=lambda name: (-leaves[name].element_size(), name))
        self.leaves = {name: (leaves[name].dtype, tuple(leaves[name].shape)) for name in order}

    def places(self) -> Iterator[tuple[str, int, int]]:
        """Every leaf: its name, where it begins behind the header, and its bytes."""
        start = 0
        for name, (dtype, shape) in self.leaves.items():
            size = prod(shape) * dtype.itemsize
            yield name, start, size
            start += size

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return sum(prod(shape) for _, shape in self.leaves.values())

    @cached_property
    def header(self) -> bytes:
        """The first part of the file; a multiple of eight bytes, as safetensors writes it."""
        table = {
            name: {
                "dtype": KINDS[self.leaves[name][0]],
                "shape": self.leaves[name][1],
                "data_offsets": [start, start + size],
            }
            for name, start, size in self.places()
        }
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    def file(self, leaves: Mapping[str, Tensor]) -> bytes:
        """The whole file with these numbers, which have the shapes that it was laid out for."""
        parts = (leaves[name].detach().contiguous().cpu().numpy().tobytes() for name in self.leaves)
        return self.header + b"".join(parts)
