"""Silence is survivorship: a round with silent clients equals a round on the survivors, whatever made them silent."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import toys
from latecomer import tree
from latecomer.clients import Clients, Exchange
from latecomer.engines.home import CLIENT
from latecomer.method import Method
from latecomer.steps import steps as steps_of
from latecomer.task import Home
from latecomer.tree import Tree

DEAD = torch.tensor([1, 4])
IDS = torch.arange(toys.MEMBERS)
SURVIVORS = IDS[~torch.isin(IDS, DEAD)]
Faults = Callable[[Tensor, int, str], Tensor]


@pytest.fixture
def name(variant: str) -> str:
    return variant


def build(name: str, engine: str, method: Method | None = None) -> tuple[Method, Any]:
    method = method or toys.method(name, torch.float64)
    return method, toys.engine(engine, method, [toys.federation()])


@functools.cache
def first_round(name: str) -> tuple[Tree, Tree]:
    method, engine = build(name, "vector")
    return toys.rounds(method, engine, 1)[0], engine.memories(0)


def begun(name: str, engine: str, method: Method | None = None) -> tuple[Method, Any, Tree]:
    """A method, an engine and a state after the first round, so that memories are not blank."""
    method, made = build(name, engine, method)
    if engine == "chunked":  # itself, so that the second round plays tapes
        return method, made, toys.rounds(method, made, 1)[0]
    state, memories = first_round(name)
    made.remember(0, memories)
    return method, made, state


def after_a_round(
    name: str, engine: str, method: Method | None = None, ids: Tensor = IDS, faults: Faults | None = None
) -> tuple[Tree, list[Exchange]]:
    """State and memories after the second round, and its ledger."""
    method, made, state = begun(name, engine, method)
    clients = Clients(made, ids, 1, faults=faults)
    state = method.round(state, clients)
    return toys.everything(state, made), clients.ledger


@functools.cache
def survivors(name: str) -> tuple[Tree, list[Exchange]]:
    return after_a_round(name, "vector", ids=SURVIVORS)


@functools.cache
def silent_at(name: str, step: str) -> Tree:
    return after_a_round(name, "vector", faults=lambda ids, number, now: torch.isin(ids, DEAD) & (now == step))[0]


@functools.cache
def all_silent(name: str) -> Tree:
    return after_a_round(name, "vector", faults=nobody)[0]


def dead(ids: Tensor, number: int, step: str) -> Tensor:
    return torch.isin(ids, DEAD)


def nobody(ids: Tensor, number: int, step: str) -> Tensor:
    return torch.full(ids.shape, number > 0)


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_injected_faults(name: str, engine: str) -> None:
    found, _ = after_a_round(name, engine, faults=dead)
    assert toys.gap(survivors(name)[0], found) < 1e-9


def test_flower_replies_that_never_come(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, engine, state = begun(name, "flower")
    gone = {engine.grid.node(0, client) for client in DEAD.tolist()}
    deliver = engine.grid.deliver
    monkeypatch.setattr(
        engine.grid, "deliver", lambda message: None if message.metadata.dst_node_id in gone else deliver(message)
    )
    clients = Clients(engine, IDS, 1)
    state = method.round(state, clients)
    expected, alone = survivors(name)
    assert toys.gap(expected, toys.everything(state, engine)) < 1e-9
    first = clients.ledger[0].line()
    assert (first["asked"], first["answered"]) == (len(IDS), len(SURVIVORS))
    asked = [[exchange.line()["asked"] for exchange in ledger[1:]] for ledger in (clients.ledger, alone)]
    assert asked[0] == asked[1], "the dead are asked once"


def test_flower_clients_that_fail(name: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(home: Any, reply: Tree) -> Tree:
        if int(home._client[CLIENT]) in DEAD:
            raise RuntimeError("this client is broken")
        return reply

    found, _ = after_a_round(name, "flower", spoilt(toys.method(name, torch.float64), fail))
    assert toys.gap(survivors(name)[0], found) < 1e-9
    assert "this client is broken" in caplog.text


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_an_answer_that_is_not_finite_is_silence(name: str, engine: str) -> None:
    """At every step of the round, the last included: then the others' answers stand, and the memory stays as it was."""
    steps = dict.fromkeys(exchange.step for exchange in survivors(name)[1])
    for step in steps:
        method = spoilt(toys.method(name, torch.float64), not_finite, step)
        found, ledger = after_a_round(name, engine, method)
        assert steps.keys() == {exchange.step for exchange in ledger}
        assert toys.gap(silent_at(name, step), found) < 1e-9, step


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_nobody_answers(name: str, engine: str) -> None:
    """A round in which everybody is silent is still a round, the same on every engine, and no memory moves."""
    method, made, before = begun(name, engine)
    remembered = toys.remembered(made)
    clients = Clients(made, IDS, 1, faults=nobody)
    after = method.round(before, clients)
    assert toys.same(remembered, toys.remembered(made))
    assert toys.gap(after, all_silent(name)["state"]) < 1e-9
    assert all(exchange.line()["answered"] == 0 and exchange.line()["up"] == 0 for exchange in clients.ledger)


def not_finite(home: Any, reply: Tree) -> Tree:
    """In the second round, nonsense from the dead: in every number, or beside an empty answer."""
    bad = (home._client[CLIENT] == DEAD).any() & (home._round == 1)
    reply = tree.map(lambda leaf: torch.where(bad, torch.full_like(leaf, torch.nan), leaf), reply)
    return reply or {"nonsense": torch.where(bad, torch.nan, 0.0)}


def spoilt(method: Method, spoil: Callable[[Home, Tree], Tree], only: str = "") -> Method:
    """The same method, but its clients' answers (at one step, or at all) pass through `spoil`."""
    kind = type(method)

    def wrap(step: Any) -> Any:
        @functools.wraps(step)
        def work(self: Method, home: Home, **sent: Tree) -> Tree:
            return spoil(home, step(self, home, **sent))

        return work

    steps = [step for step in steps_of(kind) if step != "score" and only in ("", step)]
    changed = type(kind.__name__, (kind,), {step: wrap(getattr(kind, step)) for step in steps})
    copy = object.__new__(changed)
    copy.__dict__.update(method.__dict__)
    return copy
