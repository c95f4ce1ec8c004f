"""Functions whose calls are captured when the same shapes come again, and then replayed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ...clients import Unsteady

EAGER_CALLS = 1  # the first call runs as it is: a step used once is not worth capturing
KEPT = 24  # captured calls; the least recently used goes first

Replay = Callable[[list[Tensor], bool], Any]
"""From inputs, and whether the result has to outlast the next call, to what the function returns."""


class Replays(ABC):
    """Calls a function of trees of tensors, by replay where it can.

    The function must be pure. What it makes of its inputs' shapes, and what it returns besides tensors, is what it was
    when it was captured. A call that tells the host numbers is found out (steady.py), and one that was captured is
    called once more, to compare, before it is relied upon. A call within one that is captured is part of that one.
    """

    def __init__(self) -> None:
        self._within = False  # a call that is the first or being captured
        self._seen: dict[Any, int] = {}
        self._kept: OrderedDict[Any, Replay] = OrderedDict()

    def __call__(self, name: str, function: Callable[..., Any], inputs: tuple[Any, ...], lasting: bool = True) -> Any:
        """What the function returns; unless `lasting`, the next call of the same name may overwrite it."""
        if self._within:
            return function(*inputs)
        leaves, shape = tree_flatten(inputs)
        key = (name, _owner(function), torch.get_num_threads(), str(shape), tuple(map(self._form, leaves)))
        if key not in self._kept:
            return self._noted(key, function, inputs, leaves, shape, lasting)
        self._kept.move_to_end(key)
        return self._kept[key](leaves, lasting)

    def _noted(
        self,
        key: Any,
        function: Callable[..., Any],
        inputs: tuple[Any, ...],
        leaves: list[Tensor],
        shape: TreeSpec,
        lasting: bool,
    ) -> Any:
        """A call that is not captured yet."""
        self._seen[key] = self._seen.get(key, 0) + 1
        try:
            with self._one():
                if self._seen[key] <= EAGER_CALLS:
                    makes_sense, result = self._first(function, inputs, mapped=lasting)
                    if makes_sense:
                        return result
                self._kept[key], result = self._capture(function, leaves, shape, lasting)
        except Unsteady:
            if not lasting:
                raise
            self._kept[key] = lambda leaves, _: function(*tree_unflatten(leaves, shape))
            return function(*inputs)
        if len(self._kept) > KEPT:
            gone, _ = self._kept.popitem(last=False)
            del self._seen[gone]
        return result

    @contextmanager
    def _one(self) -> Iterator[None]:
        self._within = True
        try:
            yield
        finally:
            self._within = False

    def clear(self) -> None:
        self._kept.clear()
        self._seen.clear()

    def _form(self, leaf: Tensor) -> tuple[Any, ...]:
        """What a captured call depends on, besides the numbers."""
        return leaf.shape, leaf.dtype

    def _first(self, function: Callable[..., Any], inputs: tuple[Any, ...], mapped: bool) -> tuple[bool, Any]:
        """Whether what the first call returned makes sense, and that. What is `mapped` cannot tell the host numbers."""
        return True, function(*inputs)

    @abstractmethod
    def _capture(
        self, function: Callable[..., Any], leaves: list[Tensor], shape: TreeSpec, lasting: bool
    ) -> tuple[Replay, Any]:
        """A call that can be replayed, and what it returned."""


def _owner(function: Callable[..., Any]) -> Any:
    """Whose method it is: another one's may do something else."""
    owner = getattr(function, "__self__", None)
    return owner if owner is None else ref(owner)
