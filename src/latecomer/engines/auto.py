"""`--engine auto`: the faster of vector and loop, by timing a short piece of local training on both.

A network so large that a few examples take long is bound by arithmetic, of which mapping saves none: it gets the loop
at once, for timing it properly would take minutes. So do clients of very different sizes, where what a step needs grows
with their square or more: mapped together, all would be as large as the largest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from .. import learn
from ..clients import Clients, Sending
from ..data.federation import Federation
from ..method import Method, asked_in
from ..task import Home
from ..tree import Tree
from .fitting import MUCH, padding
from .loop import SMALL, Loop
from .vector import Vector

ROWS, STEPS, BATCH, REPEATS = 5, 3, 32, 3
FEW, LONG = 8, 0.05  # examples in a batch of the first trial, and the seconds that a step on them may take


@dataclass(frozen=True, kw_only=True)
class _Probe(Method):
    """What nearly all methods spend their time on: a few steps of local training, each client from its own weights."""

    steps: int = STEPS
    batch: int = BATCH

    @asked_in("round")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        return learn.SGD(lr=1e-3, momentum=0.9)(self.task.loss, params, home.batches(self.steps, self.batch))

    def model(self, home: Home, **sent: Tree) -> Tree:
        return sent["params"]

    def init(self, generator: torch.Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        clients.run(self.fit, shared=state)
        return state

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return Sending(shared=state)


def faster(method: Method, federations: Sequence[Federation], device: torch.device, graphs: bool = True) -> str:
    """The name of the engine to take. On a GPU that is always `vector`."""
    if device.type == "cuda":
        return "vector"
    if padding(method, federations) > MUCH:
        return "loop"
    if method.task.model.size >= SMALL:  # a smaller one takes long only because the machine is busy
        trial = _seconds(method, federations, device, ["loop"], graphs, rows=1, repeats=1, steps=1, batch=FEW)
        if trial["loop"] > LONG:
            return "loop"
    seconds = _seconds(method, federations, device, ["vector", "loop"], graphs, ROWS, REPEATS, STEPS, BATCH)
    return min(seconds, key=lambda name: seconds[name])


def _seconds(
    method: Method,
    federations: Sequence[Federation],
    device: torch.device,
    names: Sequence[str],
    graphs: bool,
    rows: int,
    repeats: int,
    steps: int,
    batch: int,
) -> dict[str, float]:
    """The shortest of some repetitions, for every engine named."""
    probe = _Probe(task=method.task, clients=method.clients, members=method.members, steps=steps, batch=batch)
    state = probe.init(torch.Generator().manual_seed(0))
    kinds: dict[str, Callable[..., Vector | Loop]] = {"vector": partial(Vector, graphs=graphs), "loop": Loop}
    engines = {name: kinds[name](probe, federations[:1], device) for name in names}
    seconds = {name: float("inf") for name in engines}
    ids = torch.arange(min(rows, federations[0].members))
    for repeat in range(repeats + 1):  # the first warms up
        for name, engine in engines.items():
            began = time.perf_counter()
            probe.round(state, Clients(engine, ids, repeat))
            if repeat:
                seconds[name] = min(seconds[name], time.perf_counter() - began)
    return seconds
