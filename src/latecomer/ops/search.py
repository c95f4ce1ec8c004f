"""Exact search for the examples of a datastore that are nearest to queries.

Plainly, all distances at once, which maps over clients. FAISS (extra `knn`) is faster for large datastores, but knows
neither `vmap` nor, in the package for processors, a GPU: it searches for one client at a time on a CPU.
"""

from __future__ import annotations

import importlib.util
from typing import Literal

import torch
from torch import Tensor

from ..errors import SettingError, need
from .mapping import mapped

Search = Literal["auto", "torch", "faiss"]

LARGE = 5000  # examples from which on FAISS pays on a CPU: benchmarks/neighbours.py
SLACK = 32  # FAISS is asked for so many more than vote, so that its rounding and its own order of equals decide nothing
REFUSAL = (
    "--search faiss searches for one client at a time on a CPU; use --engine loop with --device cpu, or --search auto."
)


def check_faiss(search: Search, one_by_one: bool, device: torch.device) -> None:
    """Refuses FAISS where it cannot search, or is not installed."""
    if search == "faiss" and not (one_by_one and device.type == "cpu"):
        raise SettingError(REFUSAL)
    if search == "faiss":
        need("faiss", "knn")


def distances(
    queries: Tensor, keys: Tensor, known: Tensor, count: int, search: Search
) -> tuple[Tensor, Tensor | slice]:
    """From every query to all keys, or to those that can be among the `count` nearest; and the places of these keys.

    By differences, not by products: so equal examples are equally far, and both searches see the same numbers.
    """
    if not by_faiss(queries, keys, known, search):
        return torch.where(known, _gaps(queries, keys), torch.inf), slice(None)
    places = near(keys, known, queries, count + SLACK)
    return _gaps(queries[:, None], keys[places])[:, 0], places


def by_faiss(queries: Tensor, keys: Tensor, known: Tensor, search: Search) -> bool:
    """Whether FAISS searches: asked for or, with `auto`, where it is installed and pays; and somebody can be found."""
    if search == "torch" or torch.compiler.is_exporting() or (search == "auto" and len(keys) < LARGE):
        return False
    plain = not any(map(mapped, (keys, known, queries))) and keys.device.type == "cpu"
    if search == "faiss" and not plain:
        raise SettingError(REFUSAL)
    return plain and (search == "faiss" or installed()) and bool(known.any())


def installed() -> bool:
    return importlib.util.find_spec("faiss") is not None


def near(keys: Tensor, known: Tensor, queries: Tensor, count: int) -> Tensor:
    """Places of the `count` known keys nearest to every query (fewer where there are fewer), in the order of storing.

    FAISS works in single precision and has its own order of equals: ask for more than you need, then compare yourself.
    """
    faiss = need("faiss", "knn")
    places = known.nonzero()[:, 0]
    index = faiss.IndexFlatL2(keys.shape[1])
    index.add(keys[places].detach().float().contiguous().numpy())
    _, found = index.search(queries.detach().float().contiguous().numpy(), min(count, len(places)))
    return places[torch.from_numpy(found)].sort(-1).values


def _gaps(queries: Tensor, keys: Tensor) -> Tensor:
    return torch.cdist(queries, keys, compute_mode="donot_use_mm_for_euclid_dist")
