"""pFedMe on two members and a latecomer, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from byhand import flat, layer, linear_task, owners, slope

from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.pfedme import PFedMe
from toys import doubled

X, Y = np.array([[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0]]), np.array([0, 1, 0, 1])
ROWS = [[0], [1, 2], [3]]
FEDERATION = owners(X, Y, ROWS, members=2)
START = np.array([0.3, -0.2, 0.1, 0.5, -0.4, 0.2])
ETA, INNER, LAMBDA, BETA = 0.1, 0.2, 1.5, 0.8
Double = doubled(PFedMe)  # so that it can be compared with NumPy to many digits


def build(engine: str = "vector", **more: Any) -> tuple[PFedMe, Any, dict[str, Any]]:
    rates = {"lr": ETA, "inner_lr": INNER, "lambda_prox": LAMBDA, "beta": BETA}
    counts = {"steps": 2, "inner_steps": 3, "batch": 2, "arrive_epochs": 4}
    method = Double(task=linear_task(2), clients=3, members=2, **rates, **counts, **more)
    state = {"params": layer(START)}
    return method, make(engine, method, [FEDERATION], "cpu"), state


def approach(client: int, theta: np.ndarray, w: np.ndarray, steps: int) -> np.ndarray:
    """Steps along the gradient of the loss plus lambda (theta - w)."""
    for _ in range(steps):
        theta = theta - INNER * (slope(theta, X[ROWS[client]], Y[ROWS[client]]) + LAMBDA * (theta - w))
    return theta


def local(client: int, start: np.ndarray = START, batches: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """A client's copy of the common model and its personal model after some batches, each of all its data."""
    w = theta = start
    for _ in range(batches):
        theta = approach(client, theta, w, steps=3)
        w = w - ETA * LAMBDA * (w - theta)
    return w, theta


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_a_round(engine: str) -> None:
    method, made, state = build(engine=engine)
    after = method.round(state, Clients(made, torch.tensor([0, 1]), 0))
    mean = (local(0)[0] + local(1)[0]) / 2
    assert flat(after["params"]) == pytest.approx((1 - BETA) * START + BETA * mean, abs=1e-12)
    expected = np.stack([local(0)[1], local(1)[1]])
    assert flat(made.memories(0)["rows"]["params"]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_who_has_no_model_yet_trains_one(engine: str) -> None:
    """Client 0 has taken part and is left alone; member 1 was never drawn and client 2 is a latecomer."""
    method, made, state = build(engine=engine, arrive_around="common")
    state = method.round(state, Clients(made, torch.tensor([0]), 0))
    ledger: list = []
    sent = method.personalise(state, Clients(made, torch.tensor([0, 1, 2]), -1, ledger=ledger))
    assert (sent.shared, sent.each) == ({}, {}), "the clients hold their models already"
    now = (1 - BETA) * START + BETA * local(0)[0]
    expected = [local(0)[1]] + [approach(client, now, now, steps=4) for client in (1, 2)]
    assert flat(made.memories(0)["rows"]["params"]) == pytest.approx(np.stack(expected), abs=1e-12)
    assert [(exchange.step, int(exchange.asked.sum())) for exchange in ledger] == [("introduce", 3), ("arrive", 2)]


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_a_latecomer_trains_as_members_do(engine: str) -> None:
    method, made, state = build(engine=engine)
    method.personalise(state, Clients(made, torch.tensor([1, 2]), -1))
    expected = [local(client, batches=4)[1] for client in (1, 2)]
    assert flat(made.memories(0)["rows"]["params"]) == pytest.approx(np.stack(expected), abs=1e-12)
