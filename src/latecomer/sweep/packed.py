"""Several runs in one map, whose methods differ in numbers alone: a row brings the numbers of its run along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .. import tree
from ..clients import Ask
from ..data.federation import Federation
from ..engines.memory import Memories
from ..engines.vector import Vector, same_shapes
from ..errors import LatecomerError
from ..method import Method
from ..task import Home
from ..tree import Tree
from .alike import get, put, ways

NUMBERS = "the run's own numbers"  # as part of a message; a step's own keywords are never so called


class Packed(Vector):
    """The vector engine with one method a federation. They must be `alike`.

    Within the map, a step runs on a copy of the first method that has tensors in the place of the numbers which differ.
    Most steps only calculate with them. One that cannot (`if self.proxy`, say: mapped tensors refuse to decide) is
    found out when it is first asked for, and from then on done for one method after the other.
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
        self.ways = list(dict.fromkeys(way for other in methods[1:] for way in ways(methods[0], other)))
        dtype = methods[0].task.dtype if methods[0].task.dtype.is_floating_point else torch.float32
        rows = [[float(get(method, way)) for way in self.ways] for method in methods]
        self.numbers = torch.tensor(rows, dtype=dtype).to(self.device)  # [federations, ways]
        self.kinds = [rows.index(row) for row in rows]  # which runs have the same method
        self.apart: set[str] = set()  # steps that take one method at a time
        for run, (method, federation) in enumerate(zip(methods, federations, strict=True)):
            method.settle(self.device)
            blank = method.memory(torch.Generator().manual_seed(federation.seed))
            self.kept[run] = Memories(tree.to(blank, self.device))

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        for some in same_shapes(asks):
            kinds = sorted({self.kinds[ask.run] for ask in some})
            if len(kinds) > 1 and step not in self.apart and self._at_once(step, some):
                continue
            for kind in kinds:
                super().exchange(f"{kind} {step}", [ask for ask in some if self.kinds[ask.run] == kind])

    def _groups(self, asks: Sequence[Ask]) -> list[Sequence[Ask]]:
        return [asks]  # they are grouped already

    def _at_once(self, step: str, asks: Sequence[Ask]) -> bool:
        """Do a step for several methods in one map, if it can be done."""
        try:
            super().exchange(step, [self._with_numbers(ask) for ask in asks])
        except LatecomerError:
            raise
        except Exception:
            if any(ask.collector.heards for ask in asks):
                raise  # the step is able: some clients have answered
            self.apart.add(step)  # if something else is wrong, it will be so again, one method after the other
        return step not in self.apart

    def _with_numbers(self, ask: Ask) -> Ask:
        return replace(ask, each=ask.each | {NUMBERS: self.numbers[ask.run].expand(len(ask.ids), -1)})

    def _work(self, step: str) -> Callable[..., Tree]:
        kind, _, name = step.rpartition(" ")
        if kind:
            alone: Callable[..., Tree] = getattr(self.methods[int(kind)], name)
            return alone

        def work(home: Home, **message: Any) -> Tree:
            reply: Tree = getattr(self._method(message.pop(NUMBERS)), step)(home, **message)
            return reply

        return work

    def _method(self, numbers: Tensor) -> Method:
        """The first method, with these numbers."""
        method = self.method
        for way, number in zip(self.ways, numbers, strict=True):
            method = put(method, way, number)
        return method
