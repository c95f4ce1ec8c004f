"""latecomer: every client of a federation gets its own model, also the one that arrives tomorrow.

The names below are the public door; everything else may move. They load when first used, so that `import latecomer`
and the command line start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import rounds, train, tree
    from .clients import Clients, Sending
    from .data import Federation, federate
    from .engines import make as make_engine
    from .errors import LatecomerError
    from .handover.join import join
    from .handover.personal import Personal
    from .handover.trained import Trained, load
    from .method import Method, asked_in, made
    from .replies import Replies
    from .runs.experiment import Experiment, make_task
    from .settings import setting
    from .task import Batch, Home, Task
    from .tree import Tree

_WHERE = {
    "Batch": "task",
    "Clients": "clients",
    "Experiment": "runs.experiment",
    "Federation": "data",
    "Home": "task",
    "LatecomerError": "errors",
    "Method": "method",
    "Personal": "handover.personal",
    "Replies": "replies",
    "Sending": "clients",
    "Task": "task",
    "Trained": "handover.trained",
    "Tree": "tree",
    "asked_in": "method",
    "federate": "data",
    "join": "handover.join",
    "load": "handover.trained",
    "made": "method",
    "make_engine": "engines:make",
    "make_task": "runs.experiment",
    "rounds": "rounds:",
    "setting": "settings",
    "train": "train:",
    "tree": "tree:",
}

__all__ = [
    "Batch",
    "Clients",
    "Experiment",
    "Federation",
    "Home",
    "LatecomerError",
    "Method",
    "Personal",
    "Replies",
    "Sending",
    "Task",
    "Trained",
    "Tree",
    "__version__",
    "asked_in",
    "federate",
    "join",
    "load",
    "made",
    "make_engine",
    "make_task",
    "rounds",
    "setting",
    "train",
    "tree",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'latecomer' has no attribute {name!r}")
    module, _, attribute = _WHERE[name].partition(":")
    found = importlib.import_module(f".{module}", __name__)
    return found if _WHERE[name].endswith(":") else getattr(found, attribute or name)


def __dir__() -> list[str]:
    return __all__
