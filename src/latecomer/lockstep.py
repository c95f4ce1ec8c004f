"""Several runs in lockstep, so that one exchange serves them all.

Each run's server code has a thread of its own, but never two run at a time: a run goes on until it needs its clients,
then the next one does. When all wait, the caller's thread does one exchange for all of them. So method code stays
plain and sequential, results do not depend on timing, and the device sees one large batch of clients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from .clients import Ask, Engine, Whole
from .tree import Tree

T = TypeVar("T")


class _Abandoned(BaseException):
    """Ends a run's work because another run failed."""


class _Worker:
    """A thread for one run's server code, and the baton that lets it go on. To that code it is the engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.device = engine, engine.device
        self.waiting: tuple[str, Sequence[Ask]] | None = None
        self.round = 0
        self.result: object = None
        self.error: BaseException | None = None
        self.work: Callable[[Engine], object] | None = None
        self.abandoned = False
        self.stream: torch.cuda.Stream | None = None
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._live, daemon=True).start()

    def _live(self) -> None:
        torch.set_num_threads(1)
        while True:
            self._go.acquire()
            if self.work is None:
                return
            try:
                with torch.cuda.stream(self.stream):  # the caller's; a thread of its own would have one of its own
                    self.result = self.work(self)
            except BaseException as error:  # handed over to the caller's thread, which raises it
                self.error = error
            self._paused.release()

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        self.waiting, self.round = (step, asks), min((ask.round for ask in asks), default=0)
        self._paused.release()
        self._go.acquire()
        if self.abandoned:
            raise _Abandoned

    def memories(self, run: int) -> Tree:
        return self.engine.memories(run)

    def remember(self, run: int, kept: Tree) -> None:
        self.engine.remember(run, kept)

    def whole(self, rows: int) -> Whole | None:
        return None  # its rounds are parts of what all runs do together

    def begin(self, work: Callable[[Engine], object] | None) -> None:
        self.work, self.error, self.result, self.abandoned = work, None, None, False
        self.stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        if work is None:
            self._go.release()  # the thread ends
        else:
            self.advance()

    def advance(self) -> None:
        """Let the run go on to its next exchange, or to its end."""
        self.waiting = None
        self._go.release()
        self._paused.acquire()

    def abandon(self) -> None:
        if self.waiting:
            self.abandoned = True
            self.advance()


class Lockstep:
    """Does several pieces of server work at once on one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._workers: list[_Worker] = []

    def __call__(self, works: Sequence[Callable[[Engine], T]]) -> list[T]:
        """Call every work with an engine and return the results; their exchanges are done together, step by step."""
        if len(works) == 1:
            return [works[0](self.engine)]
        while len(self._workers) < len(works):
            self._workers.append(_Worker(self.engine))
        workers = self._workers[: len(works)]
        try:
            for worker, work in zip(workers, works, strict=True):
                worker.begin(work)
                _raise(worker)
            while asking := [worker for worker in workers if worker.waiting]:
                self._exchange(asking)
        except BaseException:
            for worker in workers:
                worker.abandon()
            raise
        return [worker.result for worker in workers]  # type: ignore[misc]

    def _exchange(self, asking: list[_Worker]) -> None:
        """One exchange for all that wait for the same step as the one that is furthest behind; so they stay together.

        Runs may have plans of their own: one that evaluates (its round is below zero) is let back into training first.
        """
        last = min(asking, key=lambda worker: worker.round)
        step = last.waiting[0] if last.waiting else ""
        together = [worker for worker in asking if worker.waiting and worker.waiting[0] == step]
        self.engine.exchange(step, [ask for worker in together if worker.waiting for ask in worker.waiting[1]])
        for worker in together:
            worker.advance()
            _raise(worker)

    def close(self) -> None:
        for worker in self._workers:
            worker.begin(None)
        self._workers = []


def _raise(worker: _Worker) -> None:
    if worker.error is not None:
        raise worker.error
