"""The workers: whoever is free takes the next call, and if it dies somebody else does it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayError, RayTaskError

from ... import __version__
from ...errors import ClusterError
from .worker import Worker

LOST = (RayActorError, ObjectLostError, OutOfMemoryError)  # a worker, what it had done, or both
PATIENCE = 300.0  # seconds to wait for a worker where there is none, because the cluster is busy, say
DEATHS = 4  # of every worker, on average, since a call was last done: then the work itself may be what kills

Call = Callable[[Any], Any]
"""Asks a worker for something; returns Ray's promise of it."""


class Crew:
    """Workers that start, die and come back. Ray itself repeats nothing: a call that is lost is made anew here."""

    def __init__(self, workers: Sequence[Any], prepare: Call) -> None:
        self.workers, self.prepare = workers, prepare
        self.idle: list[Any] = []
        self.coming: dict[Any, Any] = {}  # workers that are not there yet, by the promise that they will be
        self.deaths = 0
        for worker in self.workers:
            self._call_back(worker)
        while not self.idle:
            self._arrived(self._first([]))

    def do(self, calls: Sequence[Call]) -> Iterator[Any]:
        """What calls come to, in their order, whoever does them and whoever is first."""
        waiting, busy, done = deque(range(len(calls))), dict[Any, tuple[int, Any]](), dict[int, Any]()
        try:
            for number in range(len(calls)):
                while number not in done:
                    while waiting and self.idle:
                        given, worker = waiting.popleft(), self.idle.pop(0)
                        busy[calls[given](worker)] = given, worker
                    promise = self._first(busy)
                    if promise in self.coming:
                        self._arrived(promise)
                        continue
                    given, worker = busy.pop(promise)
                    try:
                        done[given] = ray.get(promise)
                    except LOST as error:
                        waiting.appendleft(given)
                        self._lost(worker, error)
                        continue
                    except RayTaskError as error:
                        self.idle.append(worker)
                        raise error.cause from error
                    self.deaths = 0
                    self.idle.append(worker)
                yield done.pop(number)
        finally:  # whoever is busy where the caller wants no more is free when it is done
            for _, worker in busy.values():
                self._call_back(worker)

    def _first(self, busy: Any) -> Any:
        """The first promise that is kept or broken."""
        ready, _ = ray.wait([*busy, *self.coming], num_returns=1, timeout=None if busy else PATIENCE)
        if not ready:
            raise ClusterError(
                f"The Ray cluster gave no worker within {PATIENCE:.0f} seconds; others may be using all of it."
            )
        return ready[0]

    def _arrived(self, promise: Any) -> None:
        """A worker is there, or is free again."""
        worker = self.coming.pop(promise)
        try:
            found = ray.get(promise)
        except LOST as error:
            self._lost(worker, error)
            return
        except RayTaskError as error:
            raise error.cause from error
        if isinstance(found, str) and found != __version__:
            raise ClusterError(f"A Ray worker has latecomer {found}; this is {__version__}, and they must be the same.")
        self.idle.append(worker)

    def _lost(self, worker: Any, error: RayError) -> None:
        """A worker died, or what it had done did. Ray starts it again; if work is what kills, that has an end."""
        reason = str(error).strip().splitlines()[-1].strip().rstrip(".")
        if getattr(error, "actor_init_failed", False):
            raise ClusterError(f"A Ray worker could not begin: {reason}.") from error
        self.deaths += 1
        if self.deaths > DEATHS * len(self.workers):
            raise ClusterError(f"Ray workers died {self.deaths} times and nothing got done: {reason}.") from error
        self._call_back(worker)

    def _call_back(self, worker: Any) -> None:
        self.coming[self.prepare(worker)] = worker


_hired: dict[tuple[str, str], list[Any]] = {}  # by the process's connection to a cluster, and what each takes of it
_engines = 0


def hire(count: int, share: dict[str, int]) -> list[Any]:
    """So many workers for another engine, each with a share of the cluster. Those that there are take on its job, too.

    They leave with the last engine.
    """
    global _engines
    found = _hired.setdefault((_connection(), str(share)), [])
    options: dict[str, Any] = {**share, "max_restarts": -1, "max_task_retries": 0}
    actor: Any = ray.remote(**options)(Worker)
    found += [actor.remote(sys.path) for _ in range(len(found), count)]
    _engines += 1
    return found[:count]


def leave() -> None:
    """An engine needs its workers no longer."""
    global _engines
    _engines -= 1
    if not _engines:
        for (connection, _), workers in _hired.items():
            for worker in workers if connection == _connection() else ():
                ray.kill(worker)
        _hired.clear()


def _connection() -> str:
    """A name for this process's connection to a cluster; empty without one."""
    return str(ray.get_runtime_context().get_job_id()) if ray.is_initialized() else ""
