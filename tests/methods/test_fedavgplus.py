"""FedAvg+ on two members and a latecomer, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from byhand import descend, flat, layer, linear_task, owners

from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.fedavgplus import FedAvgPlus
from toys import doubled

X, Y = [[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0]], [0, 1, 0, 1]
ROWS = [[0], [1, 2], [3]]
FEDERATION = owners(X, Y, ROWS, members=2)
START = np.array([0.3, -0.2, 0.1, 0.5, -0.4, 0.2])
Double = doubled(FedAvgPlus)  # so that it can be compared with NumPy to many digits


def build() -> tuple[FedAvgPlus, dict[str, Any]]:
    rates = {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.1, "tune_lr": 0.2}
    method = Double(task=linear_task(2), clients=3, members=2, batch=2, epochs=2, tune_epochs=3, **rates)
    return method, {"params": layer(START)}


def trained(client: int, theta: np.ndarray, steps: int, lr: float) -> np.ndarray:
    x, y = np.array(X)[ROWS[client]], np.array(Y)[ROWS[client]]
    return descend(theta, x, y, steps, lr=lr, momentum=0.5, decay=0.1)


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_a_round_is_that_of_fedavg(engine: str) -> None:
    method, state = build()
    made = make(engine, method, [FEDERATION], "cpu")
    after = method.round(state, Clients(made, torch.tensor([0, 1]), 0))
    expected = (trained(0, START, 2, 0.3) + 2 * trained(1, START, 2, 0.3)) / 3
    assert flat(after["params"]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_members_and_latecomers_fine_tune_the_common_model(engine: str) -> None:
    method, state = build()
    made = make(engine, method, [FEDERATION], "cpu")
    sent = method.personalise(state, Clients(made, torch.tensor([1, 2]), -1))
    assert (sent.shared, sent.each) == ({}, {}), "the clients hold their models already"
    expected = np.stack([trained(client, START, 3, 0.2) for client in (1, 2)])
    kept = made.memories(0)
    assert kept["ids"].tolist() == [1, 2]
    assert flat(kept["rows"]["params"]) == pytest.approx(expected, abs=1e-12)
