"""Exchanges and whole rounds as CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .ahead import ahead
from .replays import Replays


class Graphs(Replays):
    """Replays graphs."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = ahead()

    def _first(self, function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[bool, Any]:
        """It warms up the libraries, and all kernels are compiled."""
        return super()._first(function, inputs) if self._ahead is None else self._ahead(function, inputs)

    def _capture(
        self, function: Callable[..., Any], leaves: list[Tensor], shape: TreeSpec, lasting: bool
    ) -> tuple[_Graph, Any]:
        inputs = [leaf.clone() for leaf in leaves]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # a step may only tell what a client remembers
            with torch.cuda.graph(
                graph, capture_error_mode="thread_local"
            ):  # runs in lockstep have threads of their own
                outputs, form = tree_flatten(function(*tree_unflatten(inputs, shape)))
        captured = _Graph(graph, inputs, outputs, form)
        return captured, captured(leaves, lasting)  # capturing computes nothing


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Any]
    shape: TreeSpec

    def __call__(self, leaves: list[Tensor], lasting: bool) -> Any:
        torch._foreach_copy_(self.inputs, leaves)
        self.graph.replay()
        outputs = self.outputs
        if lasting:
            outputs = [output.clone() if isinstance(output, Tensor) else output for output in outputs]
        return tree_unflatten(outputs, self.shape)
