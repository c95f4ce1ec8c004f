"""In an actor: does units with an engine of its own, on one thread, and keeps nothing of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import ray
import torch

from ... import __version__, tree
from ...clients import Ask
from ...data.federation import Federation
from ...method import Method
from ...replies import Collector
from ...tree import Tree
from .. import heap
from ..loop import Loop
from ..vector import Vector
from . import cargo


@dataclass(frozen=True)
class Job:
    """What the units of an engine have in common."""

    method: Method
    federations: Sequence[Federation]
    engine: Literal["vector", "loop"]
    device: str
    chunk: int
    graphs: bool
    precision: str  # of matrix products, as PyTorch names it
    tf32: bool


class Worker:
    """Any worker can do any unit of any job: what clients keep comes with it and goes back with it."""

    def __init__(self, path: Sequence[str]) -> None:
        sys.path += [place for place in path if place not in sys.path]  # a job may be of modules found there
        torch.set_num_threads(1)
        cargo.carry(cargo.owned)
        self.job = ""

    def prepare(self, name: str, job: Sequence[Any]) -> str:
        """Be ready for the units of a job, given as Ray's promise in a list; the version of latecomer here."""
        if name != self.job:
            self._begin(ray.get(job[0]))
            self.job = name
        return __version__

    def _begin(self, job: Job) -> None:
        torch.set_float32_matmul_precision(job.precision)
        torch.backends.cudnn.allow_tf32 = job.tf32
        heap.keep(job.device)
        self.engine = (
            Loop(job.method, job.federations, job.device)
            if job.engine == "loop"
            else Vector(job.method, job.federations, job.device, chunk=job.chunk, graphs=job.graphs)
        )

    def answer(
        self, name: str, job: Sequence[Any], step: str, ask: Ask, sent: tuple[Tree, Tree], kept: Tree
    ) -> tuple[Collector, Tree]:
        """Let the clients of a unit do a step: what they answered, folded if it should be, and what they keep now.

        `sent` is what all clients of the exchange get, and hold already.
        """
        self.prepare(name, job)
        device = self.engine.device
        shared, recalled, each = (tree.to(part, device) for part in (*sent, ask.each))
        silent, faults = ask.silent.to(device), None if ask.faults is None else ask.faults.to(device)
        message: dict[str, Any] = {
            "shared": shared,
            "recalled": recalled,
            "each": each,
            "silent": silent,
            "faults": faults,
        }
        self.engine.remember(ask.run, tree.to(kept, device))
        self.engine.exchange(step, [replace(ask, **message, scratch=None)])  # who sent it decides what is kept of it
        return ask.collector.joined(), self.engine.memories(ask.run)
