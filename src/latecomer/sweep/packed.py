"""Several runs in one map whose methods differ in sweepable settings alone: a row brings the numbers of its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import tree
from ..clients import Ask
from ..data.federation import Federation
from ..engines.blank import blank_memory
from ..engines.memory import Memories
from ..engines.vector import Vector, same_shapes
from ..method import Method
from ..settings import settings_of
from ..steps import Phase, Step, perform
from ..task import Home
from ..tree import Tree

NUMBERS = "the run's own numbers"  # as part of a message; a step's own keywords are never so called


class Packed(Vector):
    """The vector engine with one method a federation, any two of which differ in sweepable settings alone.

    Within the map, a step runs on a copy of the first method that has tensors in the place of the settings that differ.
    """

    def __init__(
        self,
        methods: Sequence[Method],
        federations: Sequence[Federation],
        device: torch.device | str = "cpu",
        *,
        chunk: int = 0,
        graphs: bool = True,
    ) -> None:
        super().__init__(methods[0], federations, device, chunk=chunk, graphs=graphs)
        self.methods = methods
        sweepable = [name for name, field in settings_of(methods[0]).items() if field.metadata["sweepable"]]
        self.names = [name for name in sweepable if len({getattr(method, name) for method in methods}) > 1]
        dtype = methods[0].task.dtype if methods[0].task.dtype.is_floating_point else torch.float32
        rows = [[float(getattr(method, name)) for name in self.names] for method in methods]
        self.numbers = torch.tensor(rows, dtype=dtype).to(self.device)  # [federations, names]
        for run, (method, federation) in enumerate(zip(methods, federations, strict=True)):
            method.settle(self.device)
            self.kept[run] = Memories(tree.to(blank_memory(method, federation.seed), self.device))

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        numbers = [{NUMBERS: self.numbers[ask.run].expand(len(ask.ids), -1)} for ask in asks]
        super().exchange(step, [replace(ask, each=ask.each | own) for ask, own in zip(asks, numbers, strict=True)])

    def _groups(self, asks: Sequence[Ask]) -> list[Sequence[Ask]]:
        return list(same_shapes(asks))  # four settings took less time in one map than in four, convolutions too

    def _work(self, step: str, phase: Phase) -> Step:
        def work(home: Home, **message: Any) -> Tree:
            method = self.method.with_numbers(**dict(zip(self.names, message.pop(NUMBERS), strict=True)))
            return perform(method, step, home, message, phase)

        return work
