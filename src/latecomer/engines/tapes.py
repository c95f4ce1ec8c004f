"""Exchanges and whole rounds on a CPU as tapes: the plain operations that they come down to, and nothing else.

With many small networks, most of a round is not arithmetic but Python and PyTorch's transforms (`vmap`, `grad`), which
arrive at the same operations every time. A tape has these operations, as the source of a Python function. Playing it
does the same arithmetic in the same order on as many threads, so the results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .recorder import Program, Recorder
from .replays import Replay, Replays


class Tapes(Replays):
    """Plays tapes."""

    def _form(self, leaf: Tensor) -> tuple[Any, ...]:
        return leaf.shape, leaf.dtype, leaf.stride()

    def _capture(
        self, function: Callable[..., Any], leaves: list[Tensor], shape: TreeSpec, lasting: bool
    ) -> tuple[Replay, Any]:
        inputs = [leaf.view_as(leaf) for leaf in leaves]  # tensors of their own, though somebody be passed twice
        chance = torch.get_rng_state()
        with Recorder(inputs) as recorder:
            result = function(*tree_unflatten(inputs, shape))
        outputs, form = tree_flatten(result)
        draws = not torch.equal(chance, torch.get_rng_state())  # to compare would be to draw twice
        program = None if recorder.calls is None or draws else recorder.program(outputs)
        return _Tape(function, shape, program, form, self._one), result


@dataclass
class _Tape:
    """A recorded call. When it is first played, the function is called, too: if they differ, the tape is no good."""

    function: Callable[..., Any]
    shape: TreeSpec
    program: Program | None
    form: TreeSpec
    as_one: Callable[[], AbstractContextManager[None]]  # calls within are not tapes of their own
    checked: bool = False
    luck: int = 0  # how much more often it could be played than not

    def __call__(self, leaves: list[Tensor], lasting: bool) -> Any:
        played = None if self.program is None else self._played(self.program, leaves)
        if self.checked and played is not None:
            return tree_unflatten(played, self.form)
        inputs = tree_unflatten(leaves, self.shape)
        if played is None:
            return self.function(*inputs)
        with self.as_one():
            result = self.function(*inputs)
        outputs, form = tree_flatten(result)
        self.checked = form == self.form and all(map(_same, played, outputs))
        self.program = self.program if self.checked else None
        return result

    def _played(self, program: Program, leaves: list[Tensor]) -> list[Any] | None:
        """What the program returns. One that more often finds other numbers than it knows is given up."""
        threads = torch.get_num_threads()
        try:
            with torch.no_grad():
                played = program(*leaves)
        finally:
            torch.set_num_threads(threads)
        self.luck += 1 if played is not None else -1
        self.program = program if self.luck >= 0 else None
        return played


def _same(a: Any, b: Any) -> bool:
    """Whether two outputs are the same, to the last bit."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and bool(((a == b) | ((a != a) & (b != b))).all())
