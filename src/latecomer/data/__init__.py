"""Data: sources of examples, partitions of them, and the packed Federation that comes out.

load("cifar10")                                            a Source: examples and labels
federate("cifar10", partition="classes", clients=100)      a Federation: who owns which of them
Federation.from_arrays(x, y, train=..., test=...)          the same from arrays of your own
from_partitioner(partitioner)                              the same from any partitioner of flwr_datasets

The names load when first used, so that settings and lists need not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .deal import federate
    from .federation import Examples, Federation
    from .form import Form
    from .partitioner import from_partitioner
    from .sources import Source, load
    from .split import Split

_WHERE = {
    "Examples": "federation",
    "Federation": "federation",
    "Form": "form",
    "Source": "sources",
    "Split": "split",
    "federate": "deal",
    "from_partitioner": "partitioner",
    "load": "sources",
}

__all__ = ["Examples", "Federation", "Form", "Source", "Split", "federate", "from_partitioner", "load"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'latecomer.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)
