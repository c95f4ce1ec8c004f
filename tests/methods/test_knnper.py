"""kNN-Per on two clients, by hand. The model is one linear layer, so its features are the inputs themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from byhand import descend, flat, linear_task, tensor

from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.engines import make
from latecomer.engines.home import Homes, PackedHome
from latecomer.methods.knnper import KnnPer
from latecomer.nets.neighbours import Datastore

# Client 0 trains on the first three and validates on the next two; client 1 has one example and is a latecomer.
X = [[0.0], [1.0], [4.0], [0.2], [3.8], [2.0], [9.0]]
Y = [0, 0, 1, 0, 1, 1, 0]
FEDERATION = Federation.from_arrays(
    np.array(X), np.array(Y), train=[[0, 1, 2], [5]], val=[[3, 4], []], test=[[3, 4], [6]], members=1, classes=2
)
WRONG = {"weight": tensor([[1.0], [-1.0]]), "bias": tensor([-2.0, 2.0])}  # thinks that large inputs are of class 0


def build(**settings: object) -> KnnPer:
    return KnnPer(task=linear_task(1), clients=2, members=1, **settings)


def home(client: int, federation: Federation = FEDERATION) -> PackedHome:
    homes = Homes([federation], torch.device("cpu"), torch.float64)
    return PackedHome(homes, homes.cards(0, torch.tensor([client]))[0], torch.tensor(0), {})


def test_a_round_is_fedavgs() -> None:
    method = build(lr=0.1, epochs=2, batch=3)
    start = np.array([0.3, -0.2, 0.1, 0.5])
    state = {"params": {"weight": tensor(start[:2].reshape(2, 1)), "bias": tensor(start[2:])}}
    after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([0]), 0))
    assert flat(after["params"]) == pytest.approx(descend(start, X[:3], Y[:3], 2, 0.1), abs=1e-12)


def test_the_vote_of_two_neighbours() -> None:
    """For a query at 2 the two nearest of 0, 1 and 4 are 1 (distance 1, class 0) and one of 0 and 4 (distance 2)."""
    store = Datastore(tensor(X[:3]), torch.tensor(Y[:3]), torch.ones(3, dtype=torch.bool), 2)
    far = np.exp(-1 / 0.5)  # one further away than the nearest, on a scale of one half
    found = store.vote(tensor([[2.5]]), 2, 0.5)[0].numpy()  # 1 and 4 are equally far: a vote each
    assert found == pytest.approx([0.5, 0.5])
    found = store.vote(tensor([[0.0]]), 2, 0.5)[0].numpy()
    assert found == pytest.approx([1.0, 0.0])
    found = store.vote(tensor([[3.0]]), 2, 0.5)[0].numpy()  # 4 at distance 1, 1 at distance 2
    assert found == pytest.approx([far / (1 + far), 1 / (1 + far)])


def test_unknown_examples_do_not_vote_and_few_are_enough() -> None:
    store = Datastore(tensor(X[:3]), torch.tensor(Y[:3]), torch.tensor([False, True, False]), 2)
    assert store.vote(tensor([[100.0]]), 10, 1.0)[0].tolist() == [1.0, 0.0]
    nobody = Datastore(tensor(X[:3]), torch.tensor(Y[:3]), torch.zeros(3, dtype=torch.bool), 2)
    assert nobody.vote(tensor([[1.0]]), 2, 1.0)[0].tolist() == [0.0, 0.0]


def test_validation_data_choose_the_blend() -> None:
    """The model is wrong about both validation examples, the vote right: the smallest blend that rights both wins.

    At 0.2 the model gives class 0 the probability 1 / (1 + exp(3.6)) = 0.0266 and the vote all of it, at 3.8 likewise
    for class 1: a blend b is right where b + (1 - b) 0.0266 > 1/2, so from 0.487 on. Of 0.3 and 0.5 it must be 0.5.
    """
    method = build(neighbours=1, blends=(0.0, 0.3, 0.5, 1.0))
    store = method.datastore(home(0), WRONG)
    assert method.best_blend(home(0), store, WRONG).item() == 0.5
    logits = method.predict(home(0), tensor([[0.2]]), params=WRONG)[0].exp().numpy()
    likely = 1 / (1 + np.exp(3.6))
    assert logits == pytest.approx([0.5 + 0.5 * likely, 0.5 * (1 - likely)])


def test_without_validation_examples_or_labels_the_model_stands_alone() -> None:
    method = build()
    expected = [[1 / (1 + np.exp(3.6)), 1 - 1 / (1 + np.exp(3.6))]]
    assert method.predict(home(1), tensor([[0.2]]), params=WRONG).exp().numpy() == pytest.approx(np.array(expected))
    bare = Federation.from_arrays(
        np.array(X), np.array(Y), train=[[0, 1, 2]], val=[[3, 4]], test=[[3]], labelled=[False], classes=2
    )
    assert method.predict(home(0, bare), tensor([[0.2]]), params=WRONG).exp().numpy() == pytest.approx(
        np.array(expected)
    )


def test_capacity_keeps_a_share() -> None:
    for capacity, kept in ((1.0, 3), (0.5, 2), (0.3, 1)):
        store = build(capacity=capacity).datastore(home(0), WRONG)
        assert int(store.known.sum()) == kept
