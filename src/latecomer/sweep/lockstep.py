"""Several runs in lockstep, so that one exchange serves them all.

Each run's server code is a greenlet: it goes on until it needs its clients, and then lets the others go on. When all
wait, one exchange is done for all of them. So method code stays plain and sequential, and the device sees one large
batch of clients. Everything happens in the caller's thread, so PyTorch's modes and streams are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from greenlet import getcurrent, greenlet

from ..clients import Ask, Engine
from ..errors import ProtocolError
from ..private import dispatch_modes, function_modes
from ..tree import Tree

T = TypeVar("T")


class _Server:
    """One run's server code, which can be left at an exchange and gone on with. To that code it is the engine."""

    def __init__(self, engine: Engine, work: Callable[[Engine], object]) -> None:
        self.engine, self.device = engine, engine.device
        self.waiting: tuple[str, Sequence[Ask]] | None = None  # a step, and who is asked for it
        self.result: object = None
        self.caller, self.modes = getcurrent(), _modes()
        self.server = greenlet(partial(work, self))

    def go_on(self) -> None:
        """Until the next exchange, or to the end. Whether gradients are recorded is each side's own affair."""
        self.waiting, recorded = None, torch.is_grad_enabled()
        try:
            self.result = self.server.switch()
        finally:
            torch.set_grad_enabled(recorded)

    @property
    def one_by_one(self) -> bool:
        return self.engine.one_by_one

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        if _modes() != self.modes:  # they are the thread's, so clients and other servers would be in them, too
            raise ProtocolError(
                f"The server asks for step '{step}' within torch.inference_mode, torch.autocast, torch.device or "
                "another mode of PyTorch's; a round must leave it before it asks its clients (torch.no_grad may stay)."
            )
        self.waiting, recorded = (step, asks), torch.is_grad_enabled()
        try:
            self.caller.switch()
        finally:
            torch.set_grad_enabled(recorded)

    def memories(self, run: int) -> Tree:
        return self.engine.memories(run)

    def remember(self, run: int, kept: Tree) -> None:
        self.engine.remember(run, kept)


def _modes() -> list[object]:
    """What PyTorch is told for the whole thread, but for whether gradients are recorded."""
    autocast = [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]
    return [torch.is_inference_mode_enabled(), *autocast, *map(id, function_modes()), *map(id, dispatch_modes())]


class Lockstep:
    """Does several pieces of server work at once on one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __call__(self, works: Sequence[Callable[[Engine], T]]) -> list[T]:
        """Call every work with an engine and return the results; their exchanges are done together, step by step."""
        if len(works) == 1:
            return [works[0](self.engine)]
        runs = [_Server(self.engine, work) for work in works]
        try:
            for run in runs:
                run.go_on()
            while asking := [(run, *run.waiting) for run in runs if run.waiting]:
                step = asking[0][1]  # a run may have more steps than others
                together = [(run, asks) for run, name, asks in asking if name == step]
                self.engine.exchange(step, [ask for _, asks in together for ask in asks])
                for run, _ in together:
                    run.go_on()
        finally:
            for run in runs:
                run.server.throw()  # ends what another run's error has left unfinished
        return [run.result for run in runs]  # type: ignore[misc]
