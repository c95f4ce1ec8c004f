"""ATP on two members and a latecomer, by hand.

The entropy of p = softmax(s) is -sum p log p; its slope at the scores s is -p (log p + entropy).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from byhand import Array, descend, flat, layer, linear_task, slope, tensor

from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.engines import make
from latecomer.methods.atp import ATP
from toys import doubled

X = np.array([[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0], [1.0, -1.0], [0.5, 0.5]])
Y = np.array([0, 1, 0, 1, 1, 0])
TRAIN, VAL = [[0], [1, 2], [3, 4, 5]], [[1], [0, 3], [0]]
START = np.array([0.3, -0.2, 0.1, 0.5, -0.4, 0.2])
RATES = np.array([0.4, -0.3])  # of weight and bias
LR = 0.7
Double = doubled(ATP)  # so that it can be compared with NumPy to many digits


def federation(labelled: tuple[bool, ...] = (True, True, False)) -> Federation:
    return Federation.from_arrays(X, Y, train=TRAIN, val=VAL, test=TRAIN, members=2, classes=2, labelled=labelled)


def build(**settings: Any) -> tuple[ATP, dict[str, Any]]:
    fixed = {"lr": 0.3, "rate_lr": LR, "batch": 2, "epochs": 2, "warmup": 1}
    method = Double(task=linear_task(2), clients=3, members=2, **fixed | settings)
    params = layer(START)
    return method, {"params": params, "rates": {"weight": tensor(RATES[0]), "bias": tensor(RATES[1])}}


def entropy_slope(theta: Array, rows: list[int]) -> tuple[Array, Array]:
    scores = X[rows] @ theta[:4].reshape(2, 2).T + theta[4:]
    likely = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    entropy = -(likely * np.log(likely)).sum(1, keepdims=True)
    by_scores = -likely * (np.log(likely) + entropy) / len(rows)
    return by_scores.T @ X[rows], by_scores.sum(0)


def moved(theta: Array, rates: Array, slope: tuple[Array, Array]) -> Array:
    return theta - np.concatenate([rates[0] * slope[0].ravel(), rates[1] * slope[1]])


def learned(rates: Array, rows: list[int]) -> Array:
    """Rates after one lesson: the slopes of entropy and loss, multiplied, by the root of a tensor's size (4 and 2)."""
    down = entropy_slope(START, rows)
    theta = moved(START, rates, down)
    up = slope(theta, X[rows], Y[rows])
    return rates + LR * np.array([up[:4] @ down[0].ravel() / 2, up[4:] @ down[1] / np.sqrt(2)])


def found(state: dict[str, Any]) -> Array:
    return np.array([float(state["rates"]["weight"]), float(state["rates"]["bias"])])


def test_the_entropy_slope_is_one() -> None:
    """The formula above against differences."""

    def entropy(theta: Array) -> float:
        scores = X[TRAIN[1]] @ theta[:4].reshape(2, 2).T + theta[4:]
        likely = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        return float(-(likely * np.log(likely)).sum(1).mean())

    slope = np.concatenate([part.ravel() for part in entropy_slope(START, TRAIN[1])])
    differences = [(entropy(START + 1e-6 * step) - entropy(START - 1e-6 * step)) / 2e-6 for step in np.eye(6)]
    assert slope == pytest.approx(differences, abs=1e-8)


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_first_the_model_then_the_rates(engine: str) -> None:
    method, state = build()
    made = make(engine, method, [federation()], "cpu")
    warm = method.round(state, Clients(made, torch.tensor([0, 1]), 0))
    first, second = (descend(START, X[rows], Y[rows], 2, lr=0.3) for rows in TRAIN[:2])
    assert flat(warm["params"]) == pytest.approx((first + 2 * second) / 3, abs=1e-12)
    assert found(warm) == pytest.approx(RATES)
    ledger: list = []
    after = method.round(state, Clients(made, torch.tensor([0, 1]), 1, ledger=ledger))
    assert flat(after["params"]) == pytest.approx(START)
    expected = (learned(RATES, TRAIN[0]) + learned(RATES, TRAIN[1])) / 2  # clients count alike
    assert found(after) == pytest.approx(expected, abs=1e-12)
    assert np.abs(expected - RATES).min() > 1e-3
    (exchange,) = ledger
    assert (exchange.step, exchange.down_each, exchange.up_each) == ("refine", 8 * 8, 2 * 8), "two numbers go up"


def test_lessons_of_a_pass_follow_each_other_from_the_common_model() -> None:
    """Batches of one: the second lesson has the rates of the first, but the weights as they were sent."""
    method, state = build(batch=1)
    after = method.round(state, Clients(make("vector", method, [federation()], "cpu"), torch.tensor([1]), 1))
    either = [learned(learned(RATES, [a]), [b]) for a, b in ((1, 2), (2, 1))]
    assert min(np.abs(found(after) - one).max() for one in either) < 1e-12


def test_rates_can_be_learned_on_validation_data() -> None:
    method, state = build(learn_on="val")
    after = method.round(state, Clients(make("vector", method, [federation()], "cpu"), torch.tensor([0, 1]), 1))
    assert found(after) == pytest.approx((learned(RATES, VAL[0]) + learned(RATES, VAL[1])) / 2, abs=1e-12)


@pytest.mark.parametrize("learn_on", ["train", "val"])
def test_who_has_no_labels_moves_nothing_and_weighs_nothing(learn_on: str) -> None:
    method, state = build(learn_on=learn_on)
    made = make("vector", method, [federation((False, True, False))], "cpu")
    both = method.round(state, Clients(made, torch.tensor([0, 1]), 1))
    alone = method.round(state, Clients(made, torch.tensor([1]), 1))
    assert found(both) == pytest.approx(found(alone), abs=1e-15)
    nobody = method.round(state, Clients(made, torch.tensor([0]), 1))
    assert found(nobody) == pytest.approx(RATES)


@pytest.mark.parametrize("engine", ["vector", "loop"])
@pytest.mark.parametrize("adapt_to", ["online", "batch"])
def test_a_latecomer_without_labels_adapts(engine: str, adapt_to: str) -> None:
    """It has three examples: a batch of two and one of one, which count alike in the mean of models."""
    method, state = build(adapt_to=adapt_to)
    made = make(engine, method, [federation()], "cpu")
    sent = method.personalise(state, Clients(made, torch.tensor([2]), -1))
    assert (sent.shared, sent.each) == ({}, {}), "the client holds its model already"
    own = flat(made.memories(0)["rows"]["params"])[0]
    candidates = []
    for single in TRAIN[2]:
        pair = [row for row in TRAIN[2] if row != single]
        models = [moved(START, RATES, entropy_slope(START, rows)) for rows in (pair, [single])]
        candidates.append(models[0] if adapt_to == "batch" else (models[0] + models[1]) / 2)
    assert min(np.abs(own - one).max() for one in candidates) < 1e-12
