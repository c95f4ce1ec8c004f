"""Exchanges and whole rounds as CUDA graphs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...ops.first_calls import first_calls
from ...private import TreeSpec, copy_all, tree_flatten, tree_unflatten
from .capture import Capture, Function
from .steady import Steadily, Unsteady

LOG = logging.getLogger(__name__)
CLOSE = 1e-4  # share of a tensor's largest number by which a replay may differ from the call that it stands for


class Graphs(Capture):
    """Replays graphs."""

    def __init__(self) -> None:
        super().__init__()
        self._first_calls = first_calls()

    def _first(self, function: Function, inputs: tuple[Any, ...], watched: bool) -> tuple[bool, Any]:
        """It warms up the libraries, and all kernels are compiled. It also shows whether the host is told anything."""
        with Steadily() if watched else nullcontext():
            return (True, function(*inputs)) if self._first_calls is None else self._first_calls(function, inputs)

    def _capture(self, function: Function, leaves: list[Tensor], shape: TreeSpec, lasting: bool) -> tuple[_Graph, Any]:
        inputs = [leaf.clone() for leaf in leaves]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # a step may only tell what a client remembers
            try:
                # other threads of the program may use the GPU meanwhile
                with torch.cuda.graph(graph, capture_error_mode="thread_local"), Steadily(captured=True):
                    outputs, form = tree_flatten(function(*tree_unflatten(inputs, shape)))
            except RuntimeError as error:  # of something that no operation shows, a tensor made of a number, say
                if "captur" not in str(error):
                    raise
                raise Unsteady from error
        captured = _Graph(function, shape, graph, inputs, outputs, form, self.as_one)
        return captured, captured.replay(leaves, lasting)  # capturing computes nothing


@dataclass
class _Graph:
    """A captured call. When it is next asked for, the function is called, too: if they differ, the graph is no good."""

    function: Function
    shape: TreeSpec
    graph: torch.cuda.CUDAGraph | None
    inputs: list[Tensor]
    outputs: list[Any]
    form: TreeSpec
    as_one: Callable[[], AbstractContextManager[None]]  # calls within are not graphs of their own
    checked: bool = False

    def __call__(self, leaves: list[Tensor], lasting: bool) -> Any:
        if self.graph is None:
            return self.function(*tree_unflatten(leaves, self.shape))
        if self.checked:
            return self.replay(leaves, lasting)
        played = tree_flatten(self.replay(leaves, lasting=False))[0]
        inputs = [leaf.clone() for leaf in self.inputs]  # what was passed may be what was replayed before: gone by now
        with self.as_one():
            result = self.function(*tree_unflatten(inputs, self.shape))
        outputs, form = tree_flatten(result)
        self.checked = form == self.form and all(map(_close, played, outputs))
        if not self.checked:
            LOG.warning("A captured call differs from the call itself, so it is not replayed, which takes longer.")
            self.graph, self.inputs, self.outputs = None, [], []
        return result

    def replay(self, leaves: list[Tensor], lasting: bool) -> Any:
        assert self.graph is not None
        copy_all(self.inputs, leaves)
        self.graph.replay()
        outputs = self.outputs
        if lasting:
            outputs = [output.clone() if isinstance(output, Tensor) else output for output in outputs]
        return tree_unflatten(outputs, self.form)


def _close(a: Any, b: Any) -> bool:
    """Whether two outputs are the same but for the order of sums."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point() or not a.numel():
        return bool(torch.equal(a, b))
    size = b.nan_to_num(0.0, 0.0, 0.0).abs().max()
    near = (a - b).abs() <= CLOSE * size
    return bool((near | (a == b) | (a.isnan() & b.isnan())).all())
