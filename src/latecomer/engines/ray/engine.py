"""In the driver: an exchange is cut into units, any worker does any unit, and the answers are added in order."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import ray
import torch

from ... import tree
from ...clients import Ask
from ...data.federation import Federation
from ...method import Method
from ..fitting import MUCH, activation_bytes, padding
from ..memory import KeepsMemories
from .cargo import lending
from .cluster import seats
from .crew import Crew, hire, leave
from .worker import Job

CORE, GPU = 4, 16  # clients of a unit, unless a user says how many: whatever the number of workers
WIDE = 2**16  # bytes that an example takes in a model, from which on mapping clients on one core gains nothing


class Ray(KeepsMemories):
    """Units of `chunk` consecutive clients, each done and folded by one worker on one thread.

    What a unit comes to depends on nothing else, and units are added in the order of the cohort: so results depend on
    the chunk alone, and neither on who did what nor on how many workers there are. Workers keep nothing. What clients
    keep lies here, goes with a unit and comes back with it, so a unit whose worker died is done again, exactly.
    """

    def __init__(
        self,
        method: Method,
        federations: Sequence[Federation],
        device: torch.device | str = "cpu",
        *,
        chunk: int = 0,
        graphs: bool = True,
        workers: int = 0,
        gpus: bool = True,
    ) -> None:
        self.method, self.device = method, torch.device(device)
        super().__init__(method, federations, self.device)
        count, share = seats(workers, gpus)
        self.computes_on = "cuda" if "num_gpus" in share else "cpu"
        self.chunk = chunk or (GPU if self.computes_on == "cuda" else CORE)
        kind = choose(method, federations, self.computes_on)
        self.one_by_one = kind == "loop"
        precision = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        job = Job(method, _unnamed(federations), kind, self.computes_on, self.chunk, graphs, *precision)
        with lending():
            self.job = ray.put(job)
        hired = hire(count, share)
        self.close = weakref.finalize(self, leave)
        self.close.atexit = False  # Ray itself ends what this process has begun
        try:
            self.crew = Crew(hired, partial(_prepare, self.job))
        except BaseException:
            self.close()
            raise

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        """Let the clients of all asks do a step, in units."""
        with lending():
            sent = [ray.put((ask.shared, ask.recalled)) for ask in asks]
        units = [(k, rows) for k, ask in enumerate(asks) for rows in self._rows(len(ask.ids))]
        done = self.crew.do([partial(self._unit, step, asks[k], rows, sent[k]) for k, rows in units])
        kept: list[list[tree.Tree]] = [[] for _ in asks]
        for (k, _), (collector, memories) in zip(units, done, strict=True):
            asks[k].collector.add(collector, self.device)
            kept[k] += [memories] if memories else []
        for ask, parts in zip(asks, kept, strict=True):
            if parts:
                now = tree.concatenate(parts)
                every = torch.ones(len(now["ids"]), dtype=torch.bool, device=self.device)  # workers decided who keeps
                self.of(ask.run, ask.scratch).write(now["ids"], tree.to(now["rows"], self.device), every)

    def _rows(self, count: int) -> Iterator[slice]:
        for first in range(0, count, self.chunk):
            yield slice(first, min(first + self.chunk, count))

    def _unit(self, step: str, ask: Ask, rows: slice, sent: Any, worker: Any) -> Any:
        """Hand a unit to a worker."""
        memories, ids = self.of(ask.run, ask.scratch), ask.ids[rows]
        kept = {"ids": ids, "rows": memories.read(ids)} if memories.blank else {}
        with lending():
            return worker.answer.remote(self.job.hex(), [self.job], step, ask.part(rows), sent, kept)


def _prepare(job: Any, worker: Any) -> Any:
    """Have a worker prepare for a job, as soon as there is one. It must not know the engine, which ends when unused."""
    return worker.prepare.options(max_task_retries=-1).remote(job.hex(), [job])


def _unnamed(federations: Sequence[Federation]) -> list[Federation]:
    """Without what clients are called, which may be any object. Runs that have one federation still have one."""
    several = {federation: replace(federation, names=None, notes=()) for federation in federations}
    return [several[federation] for federation in federations]


def choose(method: Method, federations: Sequence[Federation], device: str) -> Literal["vector", "loop"]:
    """What a worker does its units with, by rule: clocks could decide otherwise the next time, and other bits follow.

    Where this was measured, on one core, wide models were 1.5 times as fast one by one, and small ones 2 to 5 times as
    fast together.
    """
    wide = activation_bytes(method) >= WIDE or padding(method, federations) > MUCH
    return "loop" if device == "cpu" and wide else "vector"
