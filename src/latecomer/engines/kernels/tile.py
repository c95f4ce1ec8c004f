"""How much of a product of matrices one program makes, and how exactly."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton


class Tile(NamedTuple):
    """Places (or squares of them), terms of a sum at a time, filters; by how many warps, and how many loads ahead."""

    places: int
    terms: int
    filters: int
    warps: int
    stages: int

    def on(self, device: torch.device, spots: int = 1) -> Tile:
        """The same, with as many stages as fit into the GPU's shared memory; `spots` are worked out for every place."""
        each = 4 * self.terms * (self.places + spots * self.filters)
        return self._replace(stages=max(1, min(self.stages, _shared_memory(device) // each)))


@lru_cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that one program may have."""
    if device.type != "cuda":  # Triton's interpreter
        return 2**18
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 2**16))


def rounded(count: int, most: int) -> int:
    """A power of two that holds so many, if that is not too much. Matrix units take at least sixteen of everything."""
    return int(min(most, max(16, triton.next_power_of_2(count))))


def precision() -> Any:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
