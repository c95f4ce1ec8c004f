"""Whole rounds, with a plain call in the place of a CUDA graph (test_cuda.py has the real)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import toys
from deciders import Counts, Decays, Lists, Prints, Splits, Stops
from latecomer import tree
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.engines.vector import Vector
from latecomer.methods.fedavg import FedAvg
from latecomer.sweep.packed import Packed
from latecomer.train import Plan, Training


class Calls:
    """In the place of graphs: calls what it is given, or has no memory for a whole round."""

    def __init__(self, room: bool) -> None:
        self.room = room
        self.names: list[str] = []

    def __call__(self, function: Callable[..., Any], name: str, **_: Any) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            self.names.append(name)
            if name == "a whole round" and not self.room:
                raise torch.OutOfMemoryError
            return function(*inputs)

        return call

    def clear(self) -> None:
        pass


def trained(
    graphs: Calls | None, chunk: int = 0, rates: tuple[float, ...] = (0.1, 0.1)
) -> tuple[list[tree.Tree], list[dict[str, Any]], Any]:
    """Two seeds, each with a learning rate of its own."""
    federations = toys.federations(2)
    several = [toys.method("pefll", lr=rate) for rate in rates]
    packed = rates[0] != rates[1]
    engine = Packed(several, federations, chunk=chunk) if packed else Vector(several[0], federations, chunk=chunk)
    engine.capture = graphs or engine.capture  # type: ignore[assignment]
    training = Training(several if packed else several[0], federations, engine, Plan(rounds=3, cohort=5))
    for _ in range(3):
        training.advance()
    return training.states, [line | {"seconds": 0} for line in training.drain()], training.shortcut


class Idle(FedAvg):
    """Asks nobody in a round."""

    def round(self, state: tree.Tree, clients: Clients) -> tree.Tree:
        return tree.scale(state, 0.5)


def test_a_round_may_ask_nobody() -> None:
    federation, usual = toys.federation(), toys.method("fedavg")
    method = Idle(task=usual.task, clients=usual.clients, members=usual.members)
    training = Training(method, [federation], Vector(method, [federation]), Plan(rounds=4, cohort=3))
    before = training.states[0]
    for _ in range(4):
        training.advance()
    assert training.drain() == []
    assert toys.same(training.states[0], tree.scale(before, 0.5**4))


WITHOUT = """
import sys
from latecomer import federate, make_task, methods, train
from latecomer.engines import make
from latecomer.nets.models import MLP
federation = federate("digits", partition="classes", clients=10, unseen=0.2)
sizes = {"clients": 10, "members": federation.members}
method = methods.get("pefll")(task=make_task(federation, MLP), steps=1, **sizes)
train.run(method, federation, make("vector", method, [federation], "cpu", graphs=False), rounds=2, cohort=2)
print([name for name in sys.modules if "capture" in name and name.startswith("latecomer")])
"""


def test_without_graphs_nothing_of_capture_is_imported() -> None:
    found = subprocess.run([sys.executable, "-c", WITHOUT], check=True, capture_output=True, text=True).stdout
    assert found.strip() == "[]"


class Draws(FedAvg):
    """Has a generator of its own, which gives no number twice."""

    generator = torch.Generator()

    def round(self, state: tree.Tree, clients: Clients) -> tree.Tree:
        rate = torch.rand((), generator=self.generator)
        return tree.add(state, tree.scale({"params": clients.mean(self.fit, shared=state)}, rate))


def after(kind: type[FedAvg], engine: str, rounds: int = 10, graphs: bool = True) -> tuple[list[tree.Tree], Any]:
    usual, federations = toys.method("fedavg", lr=0.5), toys.federations(2)
    method = kind(task=usual.task, clients=usual.clients, members=usual.members, lr=0.5, batch=8)
    made: Any = make(engine, method, federations, "cpu", graphs=graphs)
    training = Training(method, federations, made, Plan(rounds=rounds, cohort=3))
    states = []
    for _ in range(rounds):
        training.advance()
        states.append(training.states)
    return [state for both in states for state in both], made


def test_numbers_that_a_method_draws_are_drawn_once() -> None:
    found = []
    for graphs in (True, False):
        Draws.generator.manual_seed(0)
        found.append(after(Draws, "vector", rounds=6, graphs=graphs)[0])
    assert all(toys.same(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("kind", [Stops, Lists, Prints, Splits, Counts])
def test_a_decision_of_the_host_is_never_replayed(kind: type[FedAvg]) -> None:
    """On the engine that is the default, too: what was decided while a round was captured is decided anew."""
    states, _ = after(kind, "vector")
    plain, _ = after(kind, "vector", graphs=False)
    assert all(toys.same(a, b) for a, b in zip(states, plain, strict=True))
    assert toys.same(states[2 * 5], states[2 * 9]), "it stopped"
    assert not toys.same(states[2 * 4], states[2 * 5]), "not before"


def test_rates_that_fall_with_the_round_are_replayed() -> None:
    states, engine = after(Decays, "vector")
    plain, _ = after(Decays, "vector", graphs=False)
    assert all(toys.same(a, b) for a, b in zip(states, plain, strict=True))
    (tape,) = [tape for key, tape in engine.capture._kept.items() if key[0] == "a whole round"]
    assert tape.checked
    assert tape.program is not None
    for other in ("loop", "flower"):
        elsewhere, _ = after(Decays, other)
        assert all(toys.gap(a, b) < 1e-5 for a, b in zip(states, elsewhere, strict=True))
    changes = [tree.sub(states[2 * k + 2], states[2 * k])["params"] for k in range(9)]
    assert float(tree.ravel(changes[8]).norm()) < float(tree.ravel(changes[0]).norm()) / 5


def test_rounds_of_many_chunks_replay_a_chunk() -> None:
    """Two seeds of five clients, a chunk of one: ten chunks."""
    graphs = Calls(room=True)
    trained(graphs, chunk=1)
    assert set(graphs.names) == {"describe in round", "fit in round", "backprop in round"}


@pytest.mark.parametrize("chunk", [0, 3], ids=["at once", "in chunks"])
@pytest.mark.parametrize("room", [True, False], ids=["fits", "out of memory"])
@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.1, 0.3)], ids=["one method", "two methods"])
def test_whole_rounds_are_the_same_rounds(
    rates: tuple[float, ...], room: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    states, lines, _ = trained(None, rates=rates)
    graphs = Calls(room)
    whole, told, shortcut = trained(graphs, chunk, rates)
    assert graphs.names.count("a whole round") == (3 if room else 1), "after one failure it is not tried again"
    assert shortcut.possible == room
    assert told == lines
    for ours, theirs in zip(whole, states, strict=True):
        for path, leaf in tree.flatten(ours).items():
            torch.testing.assert_close(leaf, tree.flatten(theirs)[path], atol=1e-5, rtol=1e-4, msg=path)
