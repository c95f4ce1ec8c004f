"""Everything latecomer raises on purpose.

LatecomerError                 one sentence for a person; the command line prints it and exits with 2
├── SettingError               a setting that is unknown, of the wrong type or out of range
│   └── UnknownName            a method, data set, partition, model or setting that does not exist
├── DataError                  data that is missing, damaged or does not fit the task
│   └── OddValue               a number in somebody's data that cannot be; only its owner should read which
├── ModelError                 a network that breaks the rules of a client step
├── ProtocolError              a method that misuses the boundary between server and clients
├── BudgetSpent                a client that has given away as much as it may, and does not answer
├── StepError                  a client step that raised; names client, round, step and argument
├── RunError                   a run folder or checkpoint that cannot be used
├── BundleError                a bundle that cannot be made, or is damaged
├── ServerError                a server of models that cannot be reached, refuses, or sends what it did not promise
├── LinkError                  a SuperLink that cannot be reached, or refuses
├── ClusterError               a Ray cluster that cannot be reached, does not fit, or loses its workers
├── MemoryShortage             the device is out of memory; says which --chunk would fit, or what to make smaller
└── MissingExtra               an optional dependency that is not installed; says which extra brings it
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType


class LatecomerError(Exception):
    """One clear sentence about what went wrong."""


class SettingError(LatecomerError):
    pass


class UnknownName(SettingError):
    def __init__(self, kind: str, name: str, allowed: Iterable[str]) -> None:
        allowed = sorted(allowed)
        folder = name[: name.rfind("/") + 1]  # where all share it, it makes nothing near
        shared = len(folder) if all(one.startswith(folder) for one in allowed) else 0
        own = {one[shared:]: one for one in allowed}
        near = difflib.get_close_matches(name[shared:].lower(), own, n=1, cutoff=0.5)
        parts = {one.partition("/")[0] for one in own}
        part = difflib.get_close_matches(name.lower(), parts, n=1) if len(parts) < len(own) else []
        some = [one for one in allowed if one.startswith(f"{part[0]}/")] if part else allowed
        hint = f"did you mean {own[near[0]]!r}?" if near else f"there are: {', '.join(some)}."
        super().__init__(f"There is no {kind} {name!r}; {hint}")


class DataError(LatecomerError):
    pass


class OddValue(DataError):
    pass


class ModelError(LatecomerError):
    pass


class ProtocolError(LatecomerError):
    pass


class BudgetSpent(LatecomerError):
    pass


class TooFewReplies(LatecomerError):
    """So few clients answered that the round was given up."""


class StepError(LatecomerError):
    pass


class RunError(LatecomerError):
    pass


class BundleError(LatecomerError):
    pass


class ServerError(LatecomerError):
    pass


class LinkError(LatecomerError):
    pass


class ClusterError(LatecomerError):
    pass


class MemoryShortage(LatecomerError):
    pass


class MissingExtra(LatecomerError):
    pass


SHORT = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
"""How PyTorch words it, which on a CPU has no kind of error for it."""


@contextmanager
def within_memory() -> Iterator[None]:
    """What memory cannot hold is one sentence, whoever asked for it."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in SHORT):
            raise
        asked = re.search(r"allocate (\d+) bytes", str(error))
        much = f": {int(asked[1]) / 1e9:,.1f} GB were asked for at once" if asked else ""
        raise MemoryShortage(
            f"Memory cannot hold this run{much}; use a smaller --batch, --model or --cohort, or a --chunk of 1."
        ) from error


def need(module: str, extra: str) -> ModuleType:
    """Import an optional dependency where it is used."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name.split(".")[0]):
            raise
        raise MissingExtra(
            f"This needs the package {module.split('.')[0]!r}; pip install 'latecomer[{extra}]' brings it."
        ) from error
