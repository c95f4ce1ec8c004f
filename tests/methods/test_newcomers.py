"""Newcomers of FedPer and FedRep, to whom the same happens (`rounds.welcome`), by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from byhand import owners
from twolayers import BODY, HEAD, START, close, descend, home, part, scores, task, tensors

from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.fedper import FedPer
from latecomer.methods.fedrep import FedRep
from toys import doubled

X, Y = [[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0]], [0, 1, 0, 1]
FEDERATION = owners(X, Y, [[0], [1, 2], [3]], members=2)
MEMORY = {"head": tensors(part(START, HEAD)), "met": torch.zeros((), dtype=torch.float64)}
PASSES = 4


@pytest.fixture(params=[(FedPer, "head_epochs"), (FedRep, "novel_epochs")], ids=["fedper", "fedrep"])
def method(request: pytest.FixtureRequest) -> FedPer | FedRep:
    kind, passes = request.param
    settings: dict[str, Any] = {"lr": 0.5, "momentum": 0.0, "batch": 2, passes: PASSES}
    made: FedPer | FedRep = doubled(kind)(task=task(), clients=3, members=2, **settings)
    return made


def state() -> dict[str, Any]:
    return {"body": tensors(part(START, BODY))}


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_they_are_asked_to_train_a_head(method: FedPer | FedRep, engine: str) -> None:
    """Client 2 is a latecomer, client 1 was never drawn: client 0 has a head already."""
    made = make(engine, method, [FEDERATION], "cpu")
    after = method.round(state(), Clients(made, torch.tensor([0]), 0))
    ledger: list = []
    sent = method.personalise(after, Clients(made, torch.arange(3), -1, scratch=1, ledger=ledger))
    assert sent.shared.keys() == {"body"}
    close(sent.shared["body"], {name: leaf.numpy() for name, leaf in after["body"].items()})
    exchanges = [(exchange.step, int(exchange.asked.sum()), exchange.up_each) for exchange in ledger]
    assert exchanges == [("introduce", 3, 8), ("arrive", 2, 0)]
    assert made.memories(0)["ids"].tolist() == [0], "an evaluation leaves no trace"


def test_who_has_arrived_is_not_asked_again(method: FedPer | FedRep) -> None:
    made = make("vector", method, [FEDERATION], "cpu")
    for asked in ([("introduce", 3), ("arrive", 3)], [("introduce", 3)]):
        ledger: list = []
        method.personalise(state(), Clients(made, torch.arange(3), -1, ledger=ledger))
        assert [(exchange.step, int(exchange.asked.sum())) for exchange in ledger] == asked


def test_a_newcomer_trains_its_head_and_leaves_the_body(method: FedPer | FedRep) -> None:
    newcomer = home(FEDERATION, 2, MEMORY)
    assert method.arrive(newcomer, **state()) == {}
    late = descend(START, X[3:], Y[3:], PASSES, 0.5, only=HEAD)
    close(newcomer.memory["head"], part(late, HEAD))
    found = method.predict(newcomer, torch.tensor(X, dtype=torch.float64), **state())
    assert found.numpy() == pytest.approx(scores(late, X), abs=1e-12)
