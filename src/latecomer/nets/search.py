"""FAISS: exact search in datastores so large that all distances at once would take long (extra `knn`)."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from ..errors import need


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
