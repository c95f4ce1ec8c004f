"""The door to what is captured: functions whose calls are captured when the same shapes come again, then replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from ...private import TreeSpec, tree_flatten, tree_unflatten
from .steady import Unsteady

EAGER_CALLS = 1  # the first call runs as it is: a step used once is not worth capturing
KEPT = 24  # captured calls; the least recently used goes first

Function = Callable[..., Any]
"""Of trees of tensors, and pure. What it makes of its inputs' shapes, and what it returns besides tensors, must always
be the same."""
Replay = Callable[[list[Tensor], bool], Any]
"""From inputs, and whether the result has to outlast the next call, to what the function returns."""


class Capture(ABC):
    """`capture(function, name)` is a function that does the same, and may be faster.

    Of every shape of inputs, the first call is done as it is and the second is captured. The third is replayed and
    done as well, and compared; only then are replays relied upon. A call that tells the host numbers, by which the host
    could decide otherwise the next time, is found out (steady.py) and never replayed. A function called within one that
    is being captured is part of that one.
    """

    @staticmethod
    def on(device: torch.device) -> Capture:
        """The way that a device has."""
        if device.type == "cuda":
            from .graphs import Graphs

            return Graphs()
        from .tapes import Tapes

        return Tapes()

    def __init__(self) -> None:
        self.within = False  # a call that is the first of its shape, or being captured
        self._seen: dict[Any, int] = {}
        self._kept: OrderedDict[Any, Replay] = OrderedDict()

    def __call__(
        self, function: Function, name: str, *, otherwise: Function | None = None, lasting: bool = True
    ) -> Function:
        """The function, faster. Functions of one name must do the same, unless they are methods of other objects.

        Where the host decides something, so that it cannot be captured, `otherwise` is called in its place: by default
        the function itself, as mapped functions cannot decide. Unless `lasting`, a call overwrites what the last one
        returned, which saves a copy.
        """
        return partial(self._call, function, name, otherwise, lasting)

    def _call(self, function: Function, name: str, otherwise: Function | None, lasting: bool, *inputs: Any) -> Any:
        if self.within:
            return function(*inputs)
        leaves, shape = tree_flatten(inputs)
        owner = getattr(function, "__self__", None)  # whose method it is: another one's may do something else
        owner = owner if owner is None else ref(owner)
        key = (name, owner, torch.get_num_threads(), str(shape), tuple(map(self._form, leaves)))
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key](leaves, lasting)
        self._seen[key] = self._seen.get(key, 0) + 1
        try:
            with self.as_one():
                if self._seen[key] <= EAGER_CALLS:
                    makes_sense, result = self._first(function, inputs, watched=otherwise is not None)
                    if makes_sense:
                        return result
                self._kept[key], result = self._capture(function, leaves, shape, lasting)
        except Unsteady:
            if otherwise is None:
                self._kept[key] = lambda leaves, _: function(*tree_unflatten(leaves, shape))
            return (otherwise or function)(*inputs)
        if len(self._kept) > KEPT:
            gone, _ = self._kept.popitem(last=False)
            del self._seen[gone]
        return result

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Calls within are not captured by themselves."""
        self.within = True
        try:
            yield
        finally:
            self.within = False

    def clear(self) -> None:
        self._kept.clear()
        self._seen.clear()

    def _form(self, leaf: Tensor) -> tuple[Any, ...]:
        """What a captured call depends on, besides the numbers."""
        return leaf.shape, leaf.dtype

    def _first(self, function: Function, inputs: tuple[Any, ...], watched: bool) -> tuple[bool, Any]:
        """Whether what the first call returned makes sense, and that. `watched`: it might tell the host numbers."""
        return True, function(*inputs)

    @abstractmethod
    def _capture(self, function: Function, leaves: list[Tensor], shape: TreeSpec, lasting: bool) -> tuple[Replay, Any]:
        """A call that can be replayed, and what it returned."""
