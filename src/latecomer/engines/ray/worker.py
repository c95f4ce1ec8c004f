"""In an actor: does units with an engine of its own, on one thread, and keeps nothing between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

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

    def __init__(self, job: Job) -> None:
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
        here = replace(ask, silent=ask.silent.to(self.device), shared=shared, recalled=recalled, each=each)
        self.engine.remember(ask.run, tree.to(kept, self.device))
        self.engine.exchange(step, [here])
        return ask.collector, self.engine.memories(ask.run)
