"""Local on two members and a latecomer, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from byhand import descend, flat, linear_task, owners

from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.evaluate import evaluate
from latecomer.methods.local import Local
from latecomer.sweep.lockstep import Lockstep
from toys import doubled

X, Y = [[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0]], [0, 1, 0, 1]
FEDERATION = owners(X, Y, [[0], [1, 2], [3]], members=2)
SETTINGS = {"lr": 0.4, "momentum": 0.5, "weight_decay": 0.1}
Double = doubled(Local)  # so that it can be compared with NumPy to many digits


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_clients_go_on_from_what_they_keep(engine: str) -> None:
    """Client 0 trains in both rounds, client 1 in the second only; momentum begins anew with every round."""
    method = Double(task=linear_task(2), clients=3, members=2, steps=2, batch=2, clip=0.0, **SETTINGS)
    made = make(engine, method, [FEDERATION], "cpu")
    ledger: list = []
    state = method.round({}, Clients(made, torch.tensor([0]), 0, ledger=ledger))
    state = method.round(state, Clients(made, torch.tensor([0, 1]), 1, ledger=ledger))
    assert state == {}
    start = flat(method.memory(torch.Generator().manual_seed(FEDERATION.seed))["params"])
    rule = {"lr": 0.4, "momentum": 0.5, "decay": 0.1}
    once = descend(start, X[:1], Y[:1], 2, **rule)
    expected = np.stack([descend(once, X[:1], Y[:1], 2, **rule), descend(start, X[1:3], Y[1:3], 2, **rule)])
    kept = made.memories(0)
    assert kept["ids"].tolist() == [0, 1]
    assert flat(kept["rows"]["params"]) == pytest.approx(expected, abs=1e-12)
    assert [(line["asked"], line["down"], line["up"]) for line in (e.line() for e in ledger)] == [(1, 0, 0), (2, 0, 0)]


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_a_latecomer_trains_when_it_arrives_and_forgets(engine: str) -> None:
    method = Double(task=linear_task(2), clients=3, members=2, alone=3, batch=2, clip=0.0, **SETTINGS)
    made = make(engine, method, [FEDERATION], "cpu")
    start = flat(method.memory(torch.Generator().manual_seed(FEDERATION.seed))["params"])
    trained = descend(start, X[3:], Y[3:], 3, lr=0.4, momentum=0.5, decay=0.1)
    scores = trained[:4].reshape(2, 2) @ np.array(X[3]) + trained[4:]
    (found,) = evaluate([method], [{}], Lockstep(made), [torch.tensor([2])], number=1)
    assert found.counts["test"].tolist() == [[float(scores[1] > scores[0]), 1.0, 1.0]], "it has one class alone"
    assert made.memories(0) == {}
