"""Several runs in lockstep, so that one exchange serves them all.

Each run's server code has a thread of its own and goes on until it needs its clients: one run at a time on a GPU, or
while somebody watches the caller's operations, else as many at a time as PyTorch may use threads. When all wait, the
caller's thread does one exchange for all of them. So method code stays plain and sequential, and the device sees one
large batch of clients. Seeds share nothing that a round changes, and each has one thread to compute with, so results do
not depend on timing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from ..clients import Ask, Engine, Whole
from ..tree import Tree

T = TypeVar("T")


class _Abandoned(BaseException):
    """Ends a run's work because another run failed."""


class _Watch(TorchDispatchMode):
    """Shows a worker's operations to whoever watches those of the caller's thread."""

    def __init__(self, watcher: TorchDispatchMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watcher = watcher

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.watcher.__torch_dispatch__(operation, types, args, kwargs)


class _Listen(TorchFunctionMode):
    """Shows a worker's calls to whoever listens to those of the caller's thread."""

    def __init__(self, listener: TorchFunctionMode) -> None:
        super().__init__()
        self.listener = listener

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.listener.__torch_function__(function, types, args, kwargs)


class _Worker:
    """A thread for one run's server code, and the baton that lets it go on. To that code it is the engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.device = engine, engine.device
        self.waiting: tuple[str, Sequence[Ask]] | None = None
        self.result: object = None
        self.error: BaseException | None = None
        self.work: Callable[[Engine], object] | None = None
        self.abandoned = False
        self.stream: torch.cuda.Stream | None = None
        self.watch: AbstractContextManager[Any] = nullcontext()
        self.listen: AbstractContextManager[Any] = nullcontext()
        self.running = False  # somebody has to wait for it
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        torch.set_num_threads(1)
        while True:
            self._go.acquire()
            if self.work is None:
                return
            try:
                with torch.cuda.stream(self.stream), self.watch, self.listen:  # the caller's; a thread has its own
                    self.result = self.work(self)
            except BaseException as error:  # handed over to the caller's thread, which raises it
                self.error = error
            self._paused.release()

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        self.waiting = step, asks
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

    def begin(self, work: Callable[[Engine], object]) -> None:
        """Let work begin."""
        self.work, self.error, self.result, self.abandoned = work, None, None, False
        self.stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        watcher = _get_current_dispatch_mode()
        self.watch = nullcontext() if watcher is None else _Watch(watcher)
        listener = _get_current_function_mode()
        self.listen = nullcontext() if listener is None else _Listen(listener)
        self.resume()

    def resume(self) -> None:
        """Let the run go on."""
        self.waiting, self.running = None, True
        self._go.release()

    def wait(self) -> None:
        """Until the run has come to its next exchange, or to its end."""
        self._paused.acquire()
        self.running = False

    def abandon(self) -> None:
        if self.running:  # the caller was interrupted
            self.wait()
        if self.waiting:
            self.abandoned = True
            self.resume()
            self.wait()

    def end(self) -> None:
        self.work = None
        self._go.release()
        self._thread.join()


class Lockstep:
    """Does several pieces of server work at once on one engine: on a CPU side by side."""

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
            self._go_on([partial(worker.begin, work) for worker, work in zip(workers, works, strict=True)], workers)
            while asking := [worker for worker in workers if worker.waiting]:
                self._exchange(asking)
        except BaseException:
            for worker in workers:
                worker.abandon()
            raise
        torch.set_num_threads(
            torch.get_num_threads()
        )  # else threads begun after the workers would have one, as they do
        return [worker.result for worker in workers]  # type: ignore[misc]

    def _exchange(self, asking: list[_Worker]) -> None:
        """One exchange for all that wait for the same step as the first; a run may have more steps than others."""
        step = asking[0].waiting[0] if asking[0].waiting else ""
        together = [worker for worker in asking if worker.waiting and worker.waiting[0] == step]
        self.engine.exchange(step, [ask for worker in together if worker.waiting for ask in worker.waiting[1]])
        self._go_on([worker.resume for worker in together], together)

    def _go_on(self, starts: Sequence[Callable[[], None]], workers: Sequence[_Worker]) -> None:
        """Start workers, as many at a time as there are threads, and wait for them."""
        alone = self.engine.device.type != "cpu" or _get_current_dispatch_mode() is not None
        abreast = 1 if alone else torch.get_num_threads()
        for first in range(0, len(workers), abreast):
            some = slice(first, first + abreast)
            for start in starts[some]:
                start()
            for worker in workers[some]:
                worker.wait()
            for worker in workers[some]:
                if worker.error is not None:
                    raise worker.error

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []
