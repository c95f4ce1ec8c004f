"""One thread makes all passes. What is asked for during a pass makes up the next; nobody waits for a timer."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from .problems import later

Item = TypeVar("Item")
Result = TypeVar("Result")
Pass = Callable[[list[Item]], list[Result | Exception]]  # one result for every item, in their order


@dataclass(frozen=True)
class Job:
    work: Pass[Any, Any]
    item: Any
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Batcher:
    """Requests for the same work (a bound method is equal to itself) that wait at the same time share one call."""

    def __init__(self, largest: int, waiting: int) -> None:
        self.largest, self.waiting = largest, waiting
        self.queue: deque[Job] = deque()
        self.changed = threading.Condition()
        self.stopped = False
        self.passes = self.items = 0
        self.thread = threading.Thread(target=self._run, name="passes", daemon=True)
        self.thread.start()

    async def ask(self, work: Pass[Item, Result], item: Item) -> Result:
        """The result of one item."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        with self.changed:
            if len(self.queue) >= self.waiting or self.stopped:
                raise later(f"{len(self.queue)} requests are waiting already; come again in a second.")
            self.queue.append(Job(work, item, future, loop))
            self.changed.notify()
        return await future

    def stop(self) -> None:
        """After what waits is done."""
        with self.changed:
            self.stopped = True
            self.changed.notify()
        self.thread.join()

    def _run(self) -> None:
        while jobs := self._next():
            try:
                results = jobs[0].work([job.item for job in jobs])
            except Exception as error:
                results = [error] * len(jobs)
            self.passes, self.items = self.passes + 1, self.items + len(jobs)
            if not jobs[0].loop.is_closed():
                jobs[0].loop.call_soon_threadsafe(_answer, jobs, results)

    def _next(self) -> list[Job]:
        """What waits for the same work as the first that waits; nothing: it is over."""
        jobs: list[Job] = []
        with self.changed:
            while not jobs and (self.queue or not self.stopped):
                self.changed.wait_for(lambda: self.queue or self.stopped)
                while self.queue and len(jobs) < self.largest and (not jobs or self.queue[0].work == jobs[0].work):
                    job = self.queue.popleft()
                    if not job.future.cancelled():  # else nobody waits for it any more
                        jobs.append(job)
        return jobs


def _answer(jobs: list[Job], results: list[Any]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if job.future.done():
            continue
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
