"""ClusteredFL on four members that want opposite things, and two latecomers, by hand.

Members 0 and 2 hold x = 1 as class 0, members 1 and 3 as class 1. From zero, with lr 1/2, each moves weight and bias by
1/4 towards its class and by 1/4 away from the other: an update of length 1/2, and all four add up to nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from byhand import descend, flat, linear_task, tensor

from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.engines import make
from latecomer.methods.clusteredfl import ClusteredFL

X, Y = [[1.0], [1.0], [1.0], [1.0], [2.0], [2.0]], [0, 1, 0, 1, 1, 1]
ROWS = [[k] for k in range(6)]
LABELLED = (True, True, True, True, True, False)
FEDERATION = Federation.from_arrays(
    np.array(X), np.array(Y), train=ROWS, val=ROWS, test=ROWS, members=4, classes=2, labelled=LABELLED
)
TOWARDS = np.array([0.25, -0.25, 0.25, -0.25])  # the update of a client of class 0


def build(**settings: Any) -> tuple[ClusteredFL, dict[str, Any]]:
    fixed: dict[str, Any] = {"lr": 0.5, "batch": 2, "eps1": 0.1, "eps2": 0.4, "clusters": 3}
    method = ClusteredFL(task=linear_task(1), clients=6, members=4, **fixed | settings)
    state = method.init(torch.Generator().manual_seed(0))
    models = {"weight": torch.zeros(method.clusters, 2, 1), "bias": torch.zeros(method.clusters, 2)}
    state = state | {"models": models}
    return method, {key: double(value) for key, value in state.items()}


def double(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: double(leaf) for key, leaf in value.items()}
    return value.double() if value.is_floating_point() else value


def rounds(method: ClusteredFL, state: dict[str, Any], *cohorts: list[int], engine: str = "vector") -> dict[str, Any]:
    made = make(engine, method, [FEDERATION], "cpu")
    for number, cohort in enumerate(cohorts):
        state = method.round(state, Clients(made, torch.tensor(cohort), number))
    return state


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_a_cluster_that_stands_still_is_parted(engine: str) -> None:
    method, state = build()
    once = rounds(method, state, [3, 0, 1, 2], engine=engine)
    assert once["cluster"].tolist() == [0, 1, 0, 1]
    assert flat(once["models"]) == pytest.approx(np.zeros((3, 4)), abs=1e-12)
    assert once["update"].numpy()[:, [0, 1]] == pytest.approx(np.outer([1, -1, 1, -1], [0.25, -0.25]), abs=1e-12)
    assert not once["heard"].any(), "both halves begin anew"
    twice = rounds(method, once, [0, 1, 2, 3], engine=engine)
    one, other = descend(np.zeros(4), [[1.0]], [0], 1, 0.5), descend(np.zeros(4), [[1.0]], [1], 1, 0.5)
    assert one == pytest.approx(TOWARDS)
    assert flat(twice["models"])[:2] == pytest.approx(np.stack([one, other]), abs=1e-12)
    assert twice["cluster"].tolist() == [0, 1, 0, 1], "within a cluster all agree"


def test_halves_are_the_most_unlike() -> None:
    """Three directions, at 0, 30 and 90 degrees: the first two belong together. A zero update stays with the first."""
    method, state = build()
    angles = np.deg2rad([0, 90, 30])
    update = np.zeros((4, 4))
    update[:3, 0], update[:3, 1] = np.cos(angles), np.sin(angles)
    after = method.split(state | {"update": tensor(update), "heard": torch.ones(4, dtype=torch.bool)}, 0)
    assert after["cluster"].tolist() == [0, 1, 0, 0]


def test_a_cluster_waits_for_all_its_members() -> None:
    """Three of four: two of class 0 and one of class 1 leave a mean of a third; then the fourth comes."""
    method, state = build(eps1=0.3)
    most = rounds(method, state, [0, 1, 2])
    assert flat(most["models"])[0] == pytest.approx(TOWARDS / 3, abs=1e-12)
    assert most["cluster"].tolist() == [0, 0, 0, 0]
    assert most["heard"].tolist() == [True, True, True, False]
    assert rounds(method, most, [3])["cluster"].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("settings", [{"eps2": 0.6}, {"eps1": 0.0}, {"clusters": 1}])
def test_a_cluster_stays_whole(settings: dict[str, Any]) -> None:
    """Nobody pulls enough, it does not stand still enough, or there is no place for another."""
    method, state = build(**settings)
    assert rounds(method, state, [0, 1, 2, 3])["cluster"].tolist() == [0, 0, 0, 0]


def test_latecomers_choose_by_loss_or_by_size() -> None:
    """The model of row 2 would be best for class 1, but no member uses it."""
    method, state = build()
    models = {"weight": tensor([[[1.0], [-1.0]], [[-1.0], [1.0]], [[-9.0], [9.0]]]), "bias": tensor(np.zeros((3, 2)))}
    state = state | {"models": models, "cluster": torch.tensor([0, 0, 1, 0])}
    made = make("vector", method, [FEDERATION], "cpu")
    ledger: list = []
    clients = Clients(made, torch.tensor([2, 5, 4, 3]), -1, scratch=1, ledger=ledger)
    sent = method.personalise(state, clients)
    assert sent.each["params"]["weight"][:, 1, 0].tolist() == [1.0, -1.0, 1.0, -1.0]
    assert [(exchange.step, int(exchange.asked.sum())) for exchange in ledger] == [("judge", 2)]
