"""FedProx on two clients, by hand; and its rule for mu."""

from __future__ import annotations

from typing import Any

import byhand
import numpy as np
import pytest
import torch
from byhand import flat, layer, linear_task, owners, tensor

from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.fedprox import FedProx

X, Y = np.array([[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0]]), np.array([0, 1, 0, 1])
ROWS = [[0], [1, 2, 3]]
FEDERATION = owners(X, Y, ROWS, members=2)
START = np.array([0.3, -0.2, 0.1, 0.5, -0.4, 0.2])


def slope(theta: np.ndarray, rows: list[int]) -> np.ndarray:
    return byhand.slope(theta, X[rows], Y[rows])


def loss(theta: np.ndarray, rows: list[int]) -> float:
    scores = X[rows] @ theta[:4].reshape(2, 2).T + theta[4:]
    return float(np.mean(np.log(np.exp(scores).sum(1)) - scores[np.arange(len(rows)), Y[rows]]))


def build(**settings: Any) -> tuple[FedProx, dict[str, Any]]:
    method = FedProx(task=linear_task(2), clients=2, members=2, batch=3, epochs=3, lr=0.3, **settings)
    params = layer(START)
    history = {"loss": tensor(0.0), "falls": tensor(0.0)}
    return method, {"params": params, "mu": tensor(method.mu), "history": history}


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_three_steps_that_are_held_back(engine: str) -> None:
    """The gradient of mu/2 |w - w_t|^2 is mu (w - w_t): nothing at the first step, a pull at the others."""
    method, state = build(mu=0.7)
    after = method.round(state, Clients(make(engine, method, [FEDERATION], "cpu"), torch.tensor([0, 1]), 0))
    ends = []
    for rows in ROWS:
        theta = START
        for _ in range(3):
            theta = theta - 0.3 * (slope(theta, rows) + 0.7 * (theta - START))
        ends.append(theta)
    assert flat(after["params"]) == pytest.approx((ends[0] + 3 * ends[1]) / 4, abs=1e-12)
    assert after["history"]["loss"].item() == pytest.approx(loss(START, [0, 1, 2, 3]), abs=1e-12)
    assert after["mu"].item() == 0.7, "one loss alone neither rises nor falls"


def walk(losses: list[float], mu: float = 1.0) -> list[float]:
    """mu after each of these losses."""
    method, state = build(mu=mu)
    now, history, found = state["mu"], state["history"], []
    for value in losses:
        now, history = method.adapt(now, history, tensor(value))
        found.append(round(now.item(), 6))
    return found


def test_mu_grows_when_the_loss_rises() -> None:
    assert walk([1.0, 2.0, 3.0, 3.0, 2.0]) == [1.0, 1.1, 1.2, 1.2, 1.2]


def test_mu_shrinks_after_five_rounds_of_falling_loss() -> None:
    """The first loss has no predecessor; a rise in between begins the count anew, and so does a shrinking."""
    falling = [20.0 - k for k in range(11)]
    assert walk(falling) == [1.0] * 5 + [0.9] * 5 + [0.8]
    assert walk([9.0, 8.0, 7.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]) == [1.0, 1.0, 1.0] + [1.1] * 5 + [1.0]


def test_mu_is_never_negative() -> None:
    assert walk([20.0 - k for k in range(6)], mu=0.05)[-1] == 0.0


def test_a_round_without_answers_is_left_out() -> None:
    assert walk([3.0, 0.0, 4.0, 0.0, 0.0, 3.5]) == [1.0, 1.0, 1.1, 1.1, 1.1, 1.1]
    assert walk([9.0, 8.0, 7.0, 0.0, 6.0, 5.0, 4.0]) == [1.0] * 6 + [0.9]


def test_mu_stays_where_it_is_fixed() -> None:
    method, state = build(mu=0.7, adaptive=False)
    state["history"]["loss"] = tensor(1e-9)
    after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([0, 1]), 0))
    assert after["mu"].item() == 0.7


def test_a_latecomer_gets_the_common_model() -> None:
    method, state = build()
    sent = method.personalise(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([1]), -1))
    assert sent.shared == {"params": state["params"]}
