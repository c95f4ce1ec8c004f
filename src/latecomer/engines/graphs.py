"""Exchanges and whole rounds as CUDA graphs: captured when the same shapes come again, then replayed."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .ahead import ahead

EAGER_CALLS = 1  # the first call runs as it is: it warms up the libraries, and a step used once is not worth a graph
KEPT = 24  # graphs; the least recently used goes first


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Any]
    shape: Any


class Graphs:
    """Calls a function of trees of tensors, by replay where it can. The function must be pure.

    What it returns besides tensors is what it returned when it was captured. Called within another, it is part of that
    one's call or graph.
    """

    def __init__(self) -> None:
        self._seen: dict[Any, int] = {}
        self._graphs: OrderedDict[Any, _Captured] = OrderedDict()
        self._ahead = ahead()
        self._within = False  # a call that runs as it is

    def __call__(self, name: str, function: Callable[..., Any], inputs: tuple[Any, ...], lasting: bool = True) -> Any:
        """What the function returns; unless `lasting`, the next call of the same name may overwrite it."""
        if self._within or torch.cuda.is_current_stream_capturing():
            return function(*inputs)
        leaves, shape = tree_flatten(inputs)
        key = (name, str(shape), tuple((leaf.shape, leaf.dtype) for leaf in leaves))
        if key not in self._graphs:
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] <= EAGER_CALLS:
                makes_sense, result = self._eager(function, inputs)
                if makes_sense:
                    return result
            self._graphs[key] = self._capture(function, leaves, shape)
            if len(self._graphs) > KEPT:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        captured = self._graphs[key]
        torch._foreach_copy_(captured.inputs, leaves)
        captured.graph.replay()
        outputs = captured.outputs
        if lasting:
            outputs = [output.clone() if isinstance(output, Tensor) else output for output in outputs]
        return tree_unflatten(outputs, captured.shape)

    def _eager(self, function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[bool, Any]:
        self._within = True
        try:
            return (True, function(*inputs)) if self._ahead is None else self._ahead(function, inputs)
        finally:
            self._within = False

    def _capture(self, function: Callable[..., Any], leaves: list[Tensor], shape: Any) -> _Captured:
        inputs = [leaf.clone() for leaf in leaves]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # a step may only tell what a client remembers
            with torch.cuda.graph(
                graph, capture_error_mode="thread_local"
            ):  # runs in lockstep have threads of their own
                outputs, form = tree_flatten(function(*tree_unflatten(inputs, shape)))
        return _Captured(graph, inputs, outputs, form)

    def clear(self) -> None:
        self._graphs.clear()
        self._seen.clear()
