"""FedU on three members and a latecomer, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from byhand import descend, flat, linear_task, owners, tensor

from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.fedu import FedU

X, Y = [[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0], [1.0, -1.0]], [0, 1, 0, 1, 0]
ROWS = [[0], [1, 2], [3], [4]]
FEDERATION = owners(X, Y, ROWS, members=3)
START = np.array([[0.3, -0.2, 0.1, 0.5, -0.4, 0.2], [0.1, 0.2, -0.3, 0.4, 0.5, -0.6], [-0.5, 0.1, 0.0, 0.2, 0.3, 0.4]])


def build(
    kind: type[FedU] = FedU, met: tuple[bool, ...] = (False,) * 3, **settings: Any
) -> tuple[FedU, dict[str, Any]]:
    fixed: dict[str, Any] = {"lr": 0.5, "epochs": 2, "batch": 2, "mu": 0.25, "novel_epochs": 3}
    method = kind(task=linear_task(2), clients=4, members=3, **fixed | settings)
    models = {"weight": tensor(START[:, :4].reshape(3, 2, 2)), "bias": tensor(START[:, 4:])}
    return method, {"models": models, "met": torch.tensor(met)}


def trained(theta: np.ndarray, client: int, steps: int) -> np.ndarray:
    rows = ROWS[client]
    return descend(theta, np.array(X)[rows], np.array(Y)[rows], steps, lr=0.5)


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_two_of_three_members_are_drawn_together(engine: str) -> None:
    """mu eta = 1/8: each takes an eighth of the way to the other. The third stays where it is."""
    method, state = build()
    clients = Clients(make(engine, method, [FEDERATION], "cpu"), torch.tensor([2, 0]), 0)
    after = method.round(state, clients)
    first, third = trained(START[0], 0, 2), trained(START[2], 2, 2)
    wanted = np.stack([first - (first - third) / 8, START[1], third - (third - first) / 8])
    assert flat(after["models"]) == pytest.approx(wanted, abs=1e-12)
    assert after["met"].tolist() == [True, False, True]


def test_one_who_is_silent_draws_nobody() -> None:
    method, state = build()
    engine = make("vector", method, [FEDERATION], "cpu")
    clients = Clients(engine, torch.arange(3), 0, faults=lambda ids, number, step: ids > 0)
    after = method.round(state, clients)
    assert flat(after["models"]) == pytest.approx(np.stack([trained(START[0], 0, 2), *START[1:]]), abs=1e-12)
    assert after["met"].tolist() == [True, False, False]


def test_no_one_goes_beyond_the_mean() -> None:
    """With mu eta = 50 instead of one third, all three land on their mean; in single precision, as the graph is."""
    method, state = build(mu=100.0)
    after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.arange(3), 0))
    mean = np.mean([trained(START[client], client, 2) for client in range(3)], 0)
    assert flat(after["models"]) == pytest.approx(np.stack([mean] * 3), abs=1e-6)


def test_a_graph_of_ones_own() -> None:
    """Clients 0 and 1 are alike by one half, client 2 is like nobody."""

    class Known(FedU):
        def similarity(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[0.0, 0.5, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])[ids][:, ids]

    method, state = build(Known)
    after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([1, 2, 0]), 0))
    ends = [trained(START[client], client, 2) for client in range(3)]
    pull = (ends[0] - ends[1]) / 16
    assert flat(after["models"]) == pytest.approx(np.stack([ends[0] - pull, ends[1] + pull, ends[2]]), abs=1e-12)


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_newcomers_start_at_the_mean_of_trained_models(engine: str) -> None:
    """Client 3 is a latecomer and client 1 was never drawn; client 2 has its model."""
    method, state = build(met=(True, False, True))
    ledger: list = []
    clients = Clients(make(engine, method, [FEDERATION], "cpu"), torch.tensor([3, 2, 1]), -1, scratch=1, ledger=ledger)
    sent = method.personalise(state, clients)
    mean = (START[0] + START[2]) / 2
    wanted = np.stack([trained(mean, 3, 3), START[2], trained(mean, 1, 3)])
    assert flat(sent.each["params"]) == pytest.approx(wanted, abs=1e-12)
    assert [(exchange.step, int(exchange.asked.sum())) for exchange in ledger] == [("arrive", 2)]
