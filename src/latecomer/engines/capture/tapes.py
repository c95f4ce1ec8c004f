"""Exchanges and whole rounds on a CPU as tapes: the plain operations that they come down to, and nothing else.

With many small networks, most of a round is not arithmetic but Python and PyTorch's transforms (`vmap`, `grad`), which
arrive at the same operations every time. A tape has these operations, as the source of a Python function. Playing it
does the same arithmetic in the same order, so the results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...private import TreeSpec, tree_flatten, tree_unflatten
from .capture import Capture, Function, Replay
from .steady import Escapes
from .trace import Program, Trace

TRIES = 4  # recordings of a call that tells the host other numbers than it did, and so does something else


class Tapes(Capture):
    """Plays tapes."""

    def _form(self, leaf: Tensor) -> tuple[Any, ...]:
        return leaf.shape, leaf.dtype, leaf.stride()

    def _capture(self, function: Function, leaves: list[Tensor], shape: TreeSpec, lasting: bool) -> tuple[Replay, Any]:
        tape = _Tape(function, shape, self.as_one)
        return tape, tape.record(leaves)


@dataclass
class _Tape:
    """A recorded call. When it is first played, the function is called, too: if they differ, the tape is no good.

    What the call told the host when it was recorded is compared whenever the tape is played. Where that differs, the
    call does something else: it is done as it is, and the second time in a row recorded anew.
    """

    function: Function
    shape: TreeSpec
    as_one: Callable[[], AbstractContextManager[None]]  # calls within are not tapes of their own
    program: Program | None = None
    form: TreeSpec | None = None
    checked: bool = False
    records: int = 0
    missed: int = 0  # calls in a row that did something else

    def record(self, leaves: list[Tensor]) -> Any:
        """Call the function, and write down what it does."""
        inputs = [leaf.view_as(leaf) for leaf in leaves]  # tensors of their own, though somebody be passed twice
        with Escapes() as escapes, Trace(inputs) as trace:
            result = self.function(*tree_unflatten(inputs, self.shape))
        outputs, self.form = tree_flatten(result)
        unfit = trace.calls is None or escapes.any
        self.program, self.checked = None if unfit else trace.program(outputs), False
        self.records, self.missed = self.records + 1, 0
        return result

    def __call__(self, leaves: list[Tensor], lasting: bool) -> Any:
        if self.program is None:
            return self.function(*tree_unflatten(leaves, self.shape))
        with torch.no_grad():
            played = self.program(*leaves)
        if played is None:  # it found other numbers than it knows
            return self._otherwise(leaves)
        self.missed = 0
        if self.checked:
            return tree_unflatten(played, self.form)  # type: ignore[arg-type]
        with self.as_one():
            result = self.function(*tree_unflatten(leaves, self.shape))
        outputs, form = tree_flatten(result)
        self.checked = form == self.form and all(map(_same, played, outputs))
        self.program = self.program if self.checked else None
        return result

    def _otherwise(self, leaves: list[Tensor]) -> Any:
        """A call that is not the one on the tape."""
        self.missed += 1
        if self.missed > 1 and self.records < TRIES:
            with self.as_one():
                return self.record(leaves)
        self.program = self.program if self.missed <= TRIES else None
        return self.function(*tree_unflatten(leaves, self.shape))


def _same(a: Any, b: Any) -> bool:
    """Whether two outputs are the same, to the last bit."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and bool(((a == b) | ((a != a) & (b != b))).all())
