"""In an actor: does units with an engine of its own, on one thread, and keeps nothing between them."""

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
    """All that a worker has to know before its first unit."""

    method: Method
    federations: Sequence[Federation]
    engine: Literal["vector", "loop"]
    device: str
    chunk: int
    graphs: bool
    precision: str  # of matrix products, as PyTorch names it
    tf32: bool


class Worker:
    """Any worker can do any unit: what clients keep comes with it and goes back with it."""

    def __init__(self, path: Sequence[str], jobs: Sequence[Any]) -> None:
        sys.path += [place for place in path if place not in sys.path]  # a job may be of modules found there
        job: Job = ray.get(jobs[0])
        cargo.carry(cargo.owned)
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision(job.precision)
        torch.backends.cudnn.allow_tf32 = job.tf32
        self.device = torch.device(job.device)
        heap.keep(self.device)
        self.engine = (
            Loop(job.method, job.federations, self.device)
            if job.engine == "loop"
            else Vector(job.method, job.federations, self.device, chunk=job.chunk, graphs=job.graphs)
        )

    def version(self) -> str:
        """Of latecomer, where this worker is."""
        return __version__

    def answer(self, step: str, ask: Ask, sent: tuple[Tree, Tree], kept: Tree) -> tuple[Collector, Tree]:
        """Let the clients of a unit do a step: what they answered, folded if it should be, and what they keep now.

        `sent` is what all clients of the exchange get, and hold already.
        """
        shared, recalled, each = (tree.to(part, self.device) for part in (*sent, ask.each))
        silent, faults = ask.silent.to(self.device), None if ask.faults is None else ask.faults.to(self.device)
        message = {"shared": shared, "recalled": recalled, "each": each, "silent": silent, "faults": faults}
        self.engine.remember(ask.run, tree.to(kept, self.device))
        self.engine.exchange(step, [replace(ask, **message, scratch=None)])  # what is kept is decided by who sent it
        return ask.collector, self.engine.memories(ask.run)
