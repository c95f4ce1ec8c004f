"""Per-FedAvg on two members and a latecomer, by hand, in both variants.

Of a batch of all the client's data, the gradient g and the Hessian H are known; the true direction of a step is
(I - alpha H(w)) g(w - alpha g(w)).
"""

from __future__ import annotations

from typing import Any

import byhand
import numpy as np
import pytest
import torch
from byhand import descend, flat, layer, linear_task, owners

from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.engines.home import DrawnBatches
from latecomer.methods.perfedavg import PerFedAvg
from toys import doubled

X, Y = np.array([[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0]]), np.array([0, 1, 0, 1])
ROWS = [[0], [1, 2], [3]]
FEDERATION = owners(X, Y, ROWS, members=2)
START = np.array([0.3, -0.2, 0.1, 0.5, -0.4, 0.2])
ALPHA, BETA = 0.4, 0.3
Double = doubled(PerFedAvg)  # so that it can be compared with NumPy to many digits


def build(**settings: Any) -> tuple[PerFedAvg, dict[str, Any]]:
    fixed = {"inner_lr": ALPHA, "outer_lr": BETA, "batch": 2, "epochs": 2}
    method = Double(task=linear_task(2), clients=3, members=2, **fixed | settings)
    return method, {"params": layer(START)}


def slope(theta: np.ndarray, rows: list[int]) -> np.ndarray:
    return byhand.slope(theta, X[rows], Y[rows])


def hessian(theta: np.ndarray, rows: list[int]) -> np.ndarray:
    """Of the mean cross-entropy: for each example (diag(p) - p p^T), crossed with its inputs and a one for the bias."""
    total = np.zeros((6, 6))
    for x in X[rows]:
        scores = theta[:4].reshape(2, 2) @ x + theta[4:]
        likely = np.exp(scores) / np.exp(scores).sum()
        reach = np.concatenate([np.kron(np.eye(2), x), np.eye(2)], 1)  # [classes, weights]: scores by theta
        total += reach.T @ (np.diag(likely) - np.outer(likely, likely)) @ reach / len(rows)
    return total


def local(rows: list[int], second: bool) -> np.ndarray:
    theta = START
    for _ in range(2):
        direction = slope(theta - ALPHA * slope(theta, rows), rows)
        if second:
            direction = direction - ALPHA * hessian(theta, rows) @ direction
        theta = theta - BETA * direction
    return theta


@pytest.mark.parametrize("engine", ["vector", "loop"])
@pytest.mark.parametrize("variant", ["first", "hessian-free"])
def test_a_round(engine: str, variant: str) -> None:
    """Differences over a length of 1e-4 are as good as the Hessian to eight digits. Clients count alike."""
    method, state = build(variant=variant, delta=1e-4)
    after = method.round(state, Clients(make(engine, method, [FEDERATION], "cpu"), torch.tensor([0, 1]), 0))
    second = variant == "hessian-free"
    expected = (local(ROWS[0], second) + local(ROWS[1], second)) / 2
    assert flat(after["params"]) == pytest.approx(expected, abs=1e-8 if second else 1e-12)


def test_the_variants_differ() -> None:
    assert np.abs(local(ROWS[1], True) - local(ROWS[1], False)).max() > 0.01


def test_delta_multiplies_the_gradient_as_it_is() -> None:
    """With a delta of one, the differences are no derivative any more, and can be worked out all the same."""
    method, state = build(variant="hessian-free", delta=1.0, epochs=1)
    after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([1]), 0))
    g = slope(START - ALPHA * slope(START, ROWS[1]), ROWS[1])
    bend = (slope(START + g, ROWS[1]) - slope(START - g, ROWS[1])) / 2
    assert flat(after["params"]) == pytest.approx(START - BETA * (g - ALPHA * bend), abs=1e-12)


def test_a_step_draws_its_batches_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    draw = DrawnBatches.__init__

    def spy(self: DrawnBatches, home: Any, steps: int, size: int, name: str, passes: int | None) -> None:
        names.append(name)
        draw(self, home, steps, size, name, passes)

    monkeypatch.setattr(DrawnBatches, "__init__", spy)
    method, state = build()
    method.round(state, Clients(make("loop", method, [FEDERATION], "cpu"), torch.tensor([0]), 0))
    assert names == ["inner", "outer", "curvature"]


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_members_and_latecomers_adapt_the_common_model(engine: str) -> None:
    method, state = build(adapt_epochs=3)
    made = make(engine, method, [FEDERATION], "cpu")
    sent = method.personalise(state, Clients(made, torch.tensor([1, 2]), -1))
    assert (sent.shared, sent.each) == ({}, {}), "the clients hold their models already"
    expected = np.stack([descend(START, X[rows], Y[rows], 3, lr=ALPHA) for rows in ROWS[1:]])
    assert flat(made.memories(0)["rows"]["params"]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_adapting_by_steps(engine: str) -> None:
    """The second member's two examples are one batch; one step is what the paper scores after."""
    method, state = build(adapt_epochs=3, adapt_steps=1)
    made = make(engine, method, [FEDERATION], "cpu")
    method.personalise(state, Clients(made, torch.tensor([1, 2]), -1))
    expected = np.stack([START - ALPHA * slope(START, rows) for rows in ROWS[1:]])
    assert flat(made.memories(0)["rows"]["params"]) == pytest.approx(expected, abs=1e-12)
