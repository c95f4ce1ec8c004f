"""APFL on two members and a latecomer, by hand."""

from __future__ import annotations

from typing import Any

import byhand
import numpy as np
import pytest
import torch
from byhand import descend, flat, layer, linear_task, owners, tensor

from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.apfl import APFL
from toys import doubled

X, Y = np.array([[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0]]), np.array([0, 1, 0, 1])
ROWS = [[0], [1, 2], [3]]
FEDERATION = owners(X, Y, ROWS, members=2)
START = np.array([0.3, -0.2, 0.1, 0.5, -0.4, 0.2])
LR, ALPHA = 0.3, 0.25
Double = doubled(APFL)  # so that it can be compared with NumPy to many digits


def build(engine: str, **settings: Any) -> tuple[APFL, Any, dict[str, Any]]:
    fixed = {"mix": ALPHA, "lr": LR, "epochs": 2, "batch": 2, "arrive_epochs": 4}
    method = Double(task=linear_task(2), clients=3, members=2, **fixed | settings)
    state = {"params": layer(START)}
    return method, make(engine, method, [FEDERATION], "cpu"), state


def slope(client: int, theta: np.ndarray) -> np.ndarray:
    return byhand.slope(theta, X[ROWS[client]], Y[ROWS[client]])


def personal(client: int, v: np.ndarray, w: np.ndarray, alpha: float = ALPHA) -> np.ndarray:
    """Two steps of v, while w goes its own way; by the chain rule v gets alpha times the gradient at the mixture."""
    for _ in range(2):
        v, w = v - LR * alpha * slope(client, alpha * v + (1 - alpha) * w), w - LR * slope(client, w)
    return v


def common(client: int, w: np.ndarray) -> np.ndarray:
    return descend(w, X[ROWS[client]], Y[ROWS[client]], 2, lr=LR)


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_two_rounds_with_a_fixed_share(engine: str) -> None:
    """Client 0 takes part in both rounds, client 1 in the second only."""
    method, made, state = build(engine)
    state = method.round(state, Clients(made, torch.tensor([0]), 0))
    second = common(0, START)
    assert flat(state["params"]) == pytest.approx(second, abs=1e-12)
    state = method.round(state, Clients(made, torch.tensor([0, 1]), 1))
    assert flat(state["params"]) == pytest.approx((common(0, second) + common(1, second)) / 2, abs=1e-12)
    kept = made.memories(0)["rows"]
    expected = np.stack([personal(0, personal(0, START, START), second), personal(1, second, second)])
    assert flat(kept["params"]) == pytest.approx(expected, abs=1e-12)
    assert kept["mix"].tolist() == [ALPHA, ALPHA]


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_a_share_is_learned(engine: str) -> None:
    """The gradient of alpha is that of the mixture times v - w: nothing in a first round, where v is w."""
    method, made, state = build(engine, adaptive=True)
    state = method.round(state, Clients(made, torch.tensor([0]), 0))
    assert made.memories(0)["rows"]["mix"].tolist() == [ALPHA]
    method.round(state, Clients(made, torch.tensor([0]), 1))
    v, w = personal(0, START, START), common(0, START)
    alpha = ALPHA - LR * (v - w) @ slope(0, ALPHA * v + (1 - ALPHA) * w)
    assert 0 < alpha < 1
    assert abs(alpha - ALPHA) > 1e-3
    kept = made.memories(0)["rows"]
    assert kept["mix"].numpy() == pytest.approx([alpha], abs=1e-12)
    assert flat(kept["params"]) == pytest.approx(personal(0, v, w, alpha)[None], abs=1e-12)


def test_a_share_stays_between_none_and_all() -> None:
    """With a learning rate this large, alpha is clipped on either side."""
    found = []
    for far in (5.0, -5.0):
        method, made, state = build("loop", adaptive=True, lr=50.0)
        method.round(state, Clients(made, torch.tensor([1]), 0))
        own = START - far * slope(1, START)  # down the slope, or up
        theta = {"weight": tensor(own[:4].reshape(2, 2))[None], "bias": tensor(own[4:])[None]}
        one = torch.ones(1, dtype=torch.float64)
        made.remember(0, {"ids": torch.tensor([1]), "rows": {"params": theta, "mix": 0.1 * one, "met": one}})
        method.round(state, Clients(made, torch.tensor([1]), 1))
        found.append(made.memories(0)["rows"]["mix"].item())
    assert found == [1.0, 0.0]


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_who_has_no_weights_yet_trains_them(engine: str) -> None:
    """Client 0 has taken part and is left alone; member 1 was never drawn and client 2 is a latecomer."""
    method, made, state = build(engine)
    state = method.round(state, Clients(made, torch.tensor([0]), 0))
    ledger: list = []
    sent = method.personalise(state, Clients(made, torch.tensor([0, 1, 2]), -1, ledger=ledger))
    second = common(0, START)
    assert flat(sent.shared["params"]) == pytest.approx(second, abs=1e-12)
    expected = [personal(0, START, START)]
    for client in (1, 2):
        v = second
        for _ in range(4):
            v = v - LR * ALPHA * slope(client, ALPHA * v + (1 - ALPHA) * second)
        expected.append(v)
    assert flat(made.memories(0)["rows"]["params"]) == pytest.approx(np.stack(expected), abs=1e-12)
    assert [(exchange.step, int(exchange.asked.sum())) for exchange in ledger] == [("introduce", 3), ("arrive", 2)]
