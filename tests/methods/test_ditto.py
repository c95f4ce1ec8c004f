"""Ditto on two members and a latecomer, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from byhand import descend, flat, layer, linear_task, owners, slope

from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.ditto import Ditto
from toys import doubled

X, Y = np.array([[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0]]), np.array([0, 1, 0, 1])
ROWS = [[0], [1, 2], [3]]
FEDERATION = owners(X, Y, ROWS, members=2)
START = np.array([0.3, -0.2, 0.1, 0.5, -0.4, 0.2])
LR, LAMBDA = 0.3, 0.7
Double = doubled(Ditto)  # so that it can be compared with NumPy to many digits


def build() -> tuple[Ditto, dict[str, Any]]:
    passes = {"epochs": 2, "personal_epochs": 3, "arrive_epochs": 5}
    method = Double(task=linear_task(2), clients=3, members=2, batch=2, lr=LR, lambda_prox=LAMBDA, **passes)
    return method, {"params": layer(START)}


def common(client: int, theta: np.ndarray) -> np.ndarray:
    return descend(theta, X[ROWS[client]], Y[ROWS[client]], 2, lr=LR)


def personal(client: int, own: np.ndarray, theta: np.ndarray, steps: int = 3) -> np.ndarray:
    """Steps along the gradient of the loss plus lambda (v - w)."""
    for _ in range(steps):
        own = own - LR * (slope(own, X[ROWS[client]], Y[ROWS[client]]) + LAMBDA * (own - theta))
    return own


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_two_rounds(engine: str) -> None:
    """Client 0 takes part in both rounds, client 1 in the second only: it begins as the second common model."""
    method, state = build()
    made = make(engine, method, [FEDERATION], "cpu")
    state = method.round(state, Clients(made, torch.tensor([0]), 0))
    second = common(0, START)
    assert flat(state["params"]) == pytest.approx(second, abs=1e-12)
    state = method.round(state, Clients(made, torch.tensor([0, 1]), 1))
    assert flat(state["params"]) == pytest.approx((common(0, second) + 2 * common(1, second)) / 3, abs=1e-12)
    kept = made.memories(0)
    assert kept["ids"].tolist() == [0, 1]
    expected = np.stack([personal(0, personal(0, START, START), second), personal(1, second, second)])
    assert flat(kept["rows"]["params"]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_who_has_no_model_yet_trains_one(engine: str) -> None:
    """Client 0 has taken part and is left alone; member 1 was never drawn and client 2 is a latecomer."""
    method, state = build()
    made = make(engine, method, [FEDERATION], "cpu")
    state = method.round(state, Clients(made, torch.tensor([0]), 0))
    ledger: list = []
    sent = method.personalise(state, Clients(made, torch.tensor([0, 1, 2]), -1, ledger=ledger))
    assert (sent.shared, sent.each) == ({}, {}), "the clients hold their models already"
    second = common(0, START)
    expected = [personal(0, START, START)] + [personal(client, second, second, steps=5) for client in (1, 2)]
    assert flat(made.memories(0)["rows"]["params"]) == pytest.approx(np.stack(expected), abs=1e-12)
    assert [(exchange.step, int(exchange.asked.sum())) for exchange in ledger] == [("introduce", 3), ("arrive", 2)]
