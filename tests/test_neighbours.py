"""Datastores: the two searches agree; prototypes against numbers worked out by hand."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from latecomer.errors import MissingExtra, SettingError
from latecomer.nets import neighbours
from latecomer.nets.neighbours import Datastore
from latecomer.nets.prototypes import ProtoNN, clusters, signs
from latecomer.ops import search

COUNTS, SIGMAS = (1, 5, 10), (0.1, 1.0, 100.0)


def random_store(examples: int, features: int, dtype: torch.dtype, how: Any = "torch") -> tuple[Datastore, Tensor]:
    generator = torch.Generator().manual_seed(examples)
    keys = torch.randn(examples, features, generator=generator, dtype=dtype)
    labels = torch.randint(4, (examples,), generator=generator)
    known = torch.rand(examples, generator=generator) < 0.7
    return Datastore(keys, labels, known, 4, how), torch.randn(50, features, generator=generator, dtype=dtype)


# FAISS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("examples", [3, 30, 3000])
@pytest.mark.parametrize("kernel", ["distance", "squared"])
def test_faiss_finds_the_same_neighbours_and_votes(examples: int, dtype: torch.dtype, kernel: Any) -> None:
    store, queries = random_store(examples, 16, dtype)
    other = Datastore(store.keys, store.labels, store.known, 4, "faiss")
    assert (
        store.votes(queries, COUNTS, SIGMAS, kernel) - other.votes(queries, COUNTS, SIGMAS, kernel)
    ).abs().max() < 1e-5
    distance, _ = search.distances(queries, store.keys, store.known, 10, store.search)
    some, _ = search.distances(queries, other.keys, other.known, 10, other.search)
    places = search.near(store.keys, store.known, queries, 10 + search.SLACK)
    assert torch.equal(distance.gather(1, places), some), "both see the same numbers, to the bit"
    chosen = torch.zeros_like(distance, dtype=torch.bool).scatter(1, places, neighbours.nearest(some, 10))
    assert torch.equal(chosen, neighbours.nearest(distance, 10) & distance.isfinite())


def test_faiss_breaks_ties_as_torch_does() -> None:
    """Whole numbers, each many times over: nearly every neighbour is one of several equals, with another label each."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(3, (400, 3), generator=generator).float()
    queries = torch.randint(3, (40, 3), generator=generator).float()
    labels, known = torch.randint(4, (400,), generator=generator), torch.ones(400, dtype=torch.bool)
    one, other = (Datastore(keys, labels, known, 4, how) for how in ("torch", "faiss"))
    assert (keys[:, None] == keys).all(-1).sum(1).max() <= search.SLACK, "there is room for all equals"
    assert torch.equal(one.votes(queries, (1, 4), (1.0,)), other.votes(queries, (1, 4), (1.0,)))


def test_faiss_with_nobody_to_find() -> None:
    store, queries = random_store(30, 4, torch.float32, "faiss")
    nobody = Datastore(store.keys, store.labels, torch.zeros(30, dtype=torch.bool), 4, "faiss")
    assert not nobody.votes(queries, (5,), (1.0,)).any()


def test_auto_takes_faiss_where_it_can_and_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    store, queries = random_store(30, 4, torch.float32, "auto")

    def by_faiss(queries: Tensor) -> bool:
        return search.by_faiss(queries, store.keys, store.known, store.search)

    assert not by_faiss(queries)
    monkeypatch.setattr(search, "LARGE", 20)
    assert by_faiss(queries)
    inside: list[bool] = []
    vmap(lambda some: inside.append(by_faiss(some)) or some)(queries[None])  # type: ignore[func-returns-value]
    assert inside == [False]
    monkeypatch.setattr(search, "installed", lambda: False)
    assert not by_faiss(queries)


def test_faiss_under_vmap_is_refused() -> None:
    store, queries = random_store(30, 4, torch.float32, "faiss")
    with pytest.raises(SettingError, match="one client at a time on a CPU; use --engine loop"):
        vmap(lambda some: store.votes(some, (5,), (1.0,)))(queries[None])


def test_without_faiss_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *rest: Any) -> Any:
        if name == "faiss":
            raise ModuleNotFoundError("No module named 'faiss'", name="faiss")
        return found(name, *rest)

    found = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", missing)
    store, queries = random_store(30, 4, torch.float32, "faiss")
    with pytest.raises(MissingExtra, match=r"pip install 'latecomer\[knn\]' brings it"):
        store.votes(queries, (5,), (1.0,))


# prototypes

KEYS = [[0.0], [1.0], [10.0], [4.0], [7.0]]  # three of class 0, one of class 1, and one that is not known
STORE = Datastore(
    torch.tensor(KEYS, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1]), torch.tensor([True] * 4 + [False]), 2
)
CENTRES, UNIT = np.array([0.5, 10.0, 4.0]), 2.5 * 3.5  # see below


def test_two_means_a_class() -> None:
    """Class 0 begins with 0 and 1: 10 goes to 1, which moves to 5.5; then 1 is nearer to 0: means 0.5 and 10."""
    centres, used = clusters(STORE.keys, STORE, 2)
    assert used.tolist() == [True, True, True, False], "class 1 has one known example, so one centre"
    assert centres[used][:, 0].numpy() == pytest.approx(CENTRES)


def shares(centres: Any, scores: Any, query: float) -> Any:
    votes = np.exp(-((query / UNIT - centres) ** 2)) @ scores
    return votes / votes.sum()


def test_prototypes_vote() -> None:
    """Distances of 0, 1, 10 and 4 to the centres: 0 0 .5 .5 3 3.5 4 6 6 9 9.5 10, so the (lower) median is 3.5."""
    compress = ProtoNN(2, 0, 0, 0.01)
    model = compress.fit(STORE)
    assert float(model["unit"]) == pytest.approx(UNIT)
    scores = np.array([[1, 0], [1, 0], [0, 1]])
    for query in (2.0, -30.0, 6.0):
        found = compress.vote(model, torch.tensor([[query]], dtype=torch.float64))[0].numpy()
        assert found == pytest.approx(shares(CENTRES / UNIT, scores, query))


def test_a_step_of_learning() -> None:
    """Adam's first step moves everything by the learning rate against its slope, here taken by small differences."""

    def loss(flat: Any) -> float:
        centres, scores = flat[:3], flat[3:].reshape(3, 2)
        x, y = np.array([0.0, 1.0, 10.0, 4.0]) / UNIT, np.array([[1, 0], [1, 0], [1, 0], [0, 1]])
        wrong = np.exp(-((x[:, None] - centres) ** 2)) @ scores - y
        return float((wrong**2).sum() / 4)

    start = np.concatenate([CENTRES / UNIT, [1, 0, 1, 0, 0, 1]])
    slope = np.array([(loss(start + step) - loss(start - step)) / 2e-6 for step in 1e-6 * np.eye(9)])
    model = ProtoNN(2, 0, 1, 0.01).fit(STORE)
    found = torch.cat([model["prototypes"][:3, 0], model["scores"][:3].flatten()]).numpy()
    assert found == pytest.approx(start - 0.01 * np.sign(slope), abs=1e-5)
    assert model["prototypes"][3, 0].item() == 1e6, "a prototype that is not there does not learn"


def test_learning_helps_and_the_projection_learns_too() -> None:
    """The sign of a product of two of twelve features is the class; four prototypes a class, in six directions."""
    generator = torch.Generator().manual_seed(1)
    keys = torch.randn(400, 12, generator=generator)
    labels = (keys[:, 0] * keys[:, 1] > 0).long()
    store = Datastore(keys[:300], labels[:300], torch.ones(300, dtype=torch.bool), 2)
    right = {}
    for steps in (0, 300):
        compress = ProtoNN(4, 6, steps, 0.02)
        model = compress.fit(store)
        right[steps] = float((compress.vote(model, keys[300:]).argmax(1) == labels[300:]).float().mean())
    assert right[300] > right[0] + 0.1
    assert (model["projection"] - signs(keys, 6)).abs().max() > 0.1
    assert model["projection"].shape == (12, 6)


def test_prototypes_of_nobody() -> None:
    nobody = Datastore(STORE.keys, STORE.labels, torch.zeros(5, dtype=torch.bool), 2)
    compress = ProtoNN(2, 3, 2, 0.01)
    found = compress.vote(compress.fit(nobody), STORE.keys)
    assert found.isfinite().all()


def test_the_projection_is_the_same_for_all_and_of_unit_length() -> None:
    directions = signs(torch.zeros(5, 200), 64)
    assert torch.equal(directions, signs(torch.ones(7, 200), 64))
    assert directions.square().sum(1) == pytest.approx(np.ones(200))
    assert abs(float(directions.sign().mean())) < 0.03
