"""LG-FedAvg on two members and a latecomer, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from byhand import owners
from twolayers import BODY, HEAD, START, close, descend, home, part, scores, task, tensors

import toys
from latecomer import tree
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.lgfedavg import LGFedAvg

X, Y = [[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [1.0, -1.0], [3.0, 1.0]], [0, 1, 0, 0, 1]
FEDERATION = owners(X, Y, [[0], [1, 2, 3], [4]], members=2)
BLANK = {"body": {name: value * 0 + 9.0 for name, value in tensors(part(START, BODY)).items()}}  # must never matter


class Known(LGFedAvg):
    """LG-FedAvg in double precision."""

    def memory(self, generator: torch.Generator) -> dict[str, Any]:
        return BLANK | {"has": torch.zeros((), dtype=torch.float64)}


def build(warmup: int) -> tuple[LGFedAvg, dict[str, Any]]:
    method = Known(task=task(), clients=3, members=2, lr=0.5, epochs=2, batch=3, body_epochs=3, warmup=warmup)
    return method, {"params": tensors(START)}


def first(layers: dict[str, Any]) -> dict[str, Any]:
    return descend(layers, X[:1], Y[:1], 2, 0.5)


def second(layers: dict[str, Any]) -> dict[str, Any]:
    return descend(layers, X[1:4], Y[1:4], 2, 0.5)


def mean(one: dict[str, Any], other: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Client 1 has three examples and so counts three times."""
    return {name: (one[name] + 3 * other[name]) / 4 for name in names}


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_one_round_of_fedavg_then_bodies_are_personal(engine: str) -> None:
    method, state = build(warmup=1)
    made = make(engine, method, [FEDERATION], "cpu")
    ledger: list = []
    state = method.round(state, Clients(made, torch.tensor([0, 1]), 0, ledger=ledger))
    warm = mean(first(START), second(START), BODY + HEAD)
    close(state["params"], warm)

    state = method.round(state, Clients(made, torch.tensor([0]), 1, ledger=ledger))
    once = first(warm)  # client 0 makes the common body its own; its head becomes the common one
    close(state["params"], part(warm, BODY) | part(once, HEAD))
    close(tree.row(made.memories(0)["rows"]["body"], made.memories(0)["ids"].tolist().index(0)), part(once, BODY))

    state = method.round(state, Clients(made, torch.tensor([0, 1]), 2, ledger=ledger))
    ends = first(once), second(part(warm, BODY) | part(once, HEAD))  # client 1 begins with the common body
    close(state["params"], part(warm, BODY) | mean(*ends, HEAD))
    for client, end in enumerate(ends):
        close(tree.row(made.memories(0)["rows"]["body"], client), part(end, BODY))
    assert [(e.step, e.down_each, e.up_each) for e in ledger] == [("warm", 96, 96), ("fit", 96, 48), ("fit", 96, 48)]


def test_a_latecomer_trains_the_common_body_for_the_common_head() -> None:
    method, state = build(warmup=1)
    made = make("vector", method, [FEDERATION], "cpu")
    ledger: list = []
    sent = method.personalise(state, Clients(made, torch.arange(3), -1, scratch=1, ledger=ledger))
    assert [(exchange.step, int(exchange.asked.sum())) for exchange in ledger] == [("arrive", 1)]
    close(sent.shared["params"], START)
    late = home(FEDERATION, 2, method.memory(torch.Generator()))
    assert method.arrive(late, params=state["params"]) == {}
    wanted = descend(START, X[4:], Y[4:], 3, 0.5, only=BODY)
    close(late.memory["body"], part(wanted, BODY))
    found = method.predict(late, torch.tensor(X, dtype=torch.float64), params=state["params"])
    assert found.numpy() == pytest.approx(scores(wanted, X), abs=1e-12)


def test_a_member_without_a_body_predicts_with_the_common_model() -> None:
    method, state = build(warmup=1)
    member = home(FEDERATION, 1, method.memory(torch.Generator()))
    found = method.predict(member, torch.tensor(X, dtype=torch.float64), params=state["params"])
    assert found.numpy() == pytest.approx(scores(START, X), abs=1e-12)


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_engines_agree_after_the_split_and_silence_is_survivorship(engine: str) -> None:
    """The contract's rounds are mostly those of the warm-up; here there is none."""
    found = []
    for name, ids, faults in (
        ("vector", torch.tensor([0, 2, 3]), None),
        (engine, torch.tensor([0, 1, 2, 3]), lambda ids, number, step: ids == 1),
    ):
        method = toys.method("lgfedavg", torch.float64, warmup=0)
        made = toys.engine(name, method, [toys.federation()])
        state, _ = toys.rounds(method, made, 2)
        found.append(toys.everything(method.round(state, Clients(made, ids, 2, faults=faults)), made))
    assert toys.gap(*found) < 1e-9
