"""FedAvg on two clients, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from byhand import descend, flat, layer, linear_task, owners, tensor

from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.fedavg import FedAvg

X, Y = [[1.0, 2.0], [2.0, 0.0], [0.0, 4.0]], [0, 1, 0]
FEDERATION = owners(X, Y, [[0], [1, 2]], members=2)


def after_a_round(engine: str, start: np.ndarray, **settings: float) -> np.ndarray:
    method = FedAvg(task=linear_task(2), clients=2, members=2, batch=2, **settings)
    state = {"params": layer(start)}
    clients = Clients(make(engine, method, [FEDERATION], "cpu"), torch.tensor([0, 1]), 0)
    return flat(method.round(state, clients)["params"])


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_one_step_from_zero(engine: str) -> None:
    """With all weights zero every class is as likely as the other, so the gradient is half an input.

    Client 0 has x = (1, 2) of class 0: its change is lr/2 (1, 2) for class 0 and the opposite for class 1.
    Client 1 has x = (2, 0) of class 1 and x = (0, 4) of class 0: (-2, 4) lr/4; its biases cancel out.
    Weighed one to two, with lr = 1/2: ((1/4, 1/2) + 2 (-1/4, 1/2)) / 3 = (-1/12, 1/2).
    """
    found = after_a_round(engine, np.zeros(6), epochs=1, lr=0.5)
    assert found == pytest.approx(np.array([-1 / 12, 1 / 2, 1 / 12, -1 / 2, 1 / 12, -1 / 12]), abs=1e-12)


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_three_steps_with_momentum_and_decay(engine: str) -> None:
    start = np.array([0.3, -0.2, 0.1, 0.5, -0.4, 0.2])
    settings = {"lr": 0.3, "momentum": 0.5}
    ends = [
        descend(start, X[:1], Y[:1], 3, decay=0.1, **settings),
        descend(start, X[1:], Y[1:], 3, decay=0.1, **settings),
    ]
    found = after_a_round(engine, start, epochs=3, weight_decay=0.1, **settings)
    assert found == pytest.approx((ends[0] + 2 * ends[1]) / 3, abs=1e-12)


def test_a_latecomer_gets_the_common_model() -> None:
    method = FedAvg(task=linear_task(2), clients=3, members=2)
    federation = owners(X, Y, [[0], [1], [2]], members=2)
    state = {"params": {"weight": tensor([[1.0, 2.0], [3.0, 4.0]]), "bias": tensor([0.5, -0.5])}}
    sent = method.personalise(state, Clients(make("vector", method, [federation], "cpu"), torch.tensor([2]), -1))
    assert (sent.each, sent.recall) == ({}, ())
    assert flat(sent.shared["params"]).tolist() == [1, 2, 3, 4, 0.5, -0.5]
