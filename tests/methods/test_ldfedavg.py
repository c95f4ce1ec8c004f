"""LD-FedAvg on two clients, by hand: where FedAvg moves theta by -lr g, v moves by -lr P^T g."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from byhand import flat, linear_task, owners, slope, tensor

from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.ldfedavg import LDFedAvg
from latecomer.nets.subspace import Dense, Subspace
from toys import Spy

X, Y = [[1.0, 2.0], [2.0, 0.0], [0.0, 4.0]], [0, 1, 0]
FEDERATION = owners(X, Y, [[0], [1, 2]], members=2)
P = np.array([[0.6, 0.0], [0.8, 0.0], [0.0, 0.6], [0.0, -0.8], [0.0, 0.0], [0.0, 0.0]])
THETA_0 = np.array([0.3, -0.2, 0.1, 0.5, -0.4, 0.2])
V = np.array([0.5, -0.25])


def build(**settings: float) -> LDFedAvg:
    method = LDFedAvg(task=linear_task(2), clients=2, members=2, dimension=2, batch=2, **settings)
    method.set(space=Subspace(method.task.model, tensor(THETA_0), Dense(tensor(P))))
    return method


def descend(x: np.ndarray, y: np.ndarray, steps: int, lr: float) -> np.ndarray:
    v = V
    for _ in range(steps):
        v = v - lr * P.T @ slope(THETA_0 + P @ v, x, y)
    return v


@pytest.mark.parametrize("engine", ["vector", "loop"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_round(engine: str, epochs: int) -> None:
    method = build(epochs=epochs, lr=0.3)
    spy = Spy(make(engine, method, [FEDERATION], "cpu"))
    after = method.round({"v": tensor(V)}, Clients(spy, torch.tensor([0, 1]), 0))
    ends = [descend(np.array(X)[rows], np.array(Y)[rows], epochs, 0.3) for rows in ([0], [1, 2])]
    assert after["v"].numpy() == pytest.approx((ends[0] + 2 * ends[1]) / 3, abs=1e-12)
    assert spy.asks[0][1].shared.keys() == {"v"}


def test_training_begins_at_theta_0_and_a_latecomer_takes_the_model_as_it_is() -> None:
    method = build()
    engine = make("vector", method, [FEDERATION], "cpu")
    assert method.init(torch.Generator())["v"].tolist() == [0.0, 0.0]
    sent = method.personalise({"v": tensor(V)}, Clients(engine, torch.tensor([1]), -1))
    assert (sent.shared.keys(), sent.each) == ({"v"}, {})
    assert flat(method.space(sent.shared["v"])).tolist() == pytest.approx(
        [0.3 + 0.3, -0.2 + 0.4, 0.1 - 0.15, 0.5 + 0.2, -0.4, 0.2]
    )
