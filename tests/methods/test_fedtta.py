"""FedTTA on two members and a latecomer, by hand.

All is written in NumPy as functions of one vector; gradients, and gradients through a gradient step, are taken by
central differences of these functions, so that nothing here knows how the library differentiates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from byhand import Array, flat, layer, linear_task, tensor

from latecomer import tree
from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.engines import make
from latecomer.methods.fedtta import FedTTA
from toys import doubled

X = np.array([[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0], [1.0, -1.0], [0.5, 0.5]])
Y = np.array([0, 1, 0, 1, 1, 0])
ROWS = [[0], [1, 2], [3, 4, 5]]
START = np.array([0.3, -0.2, 0.1, 0.5, -0.4, 0.2])
PHI = np.array([0.5, -0.4, 0.3, 0.8, -0.6, 0.2, 0.1, 0.4, 0.9, 1.1, -0.5, 0.7, 0.15])  # a layer 2 to 3, one 3 to 1
LR, JUDGE_LR, INNER = 0.3, 0.2, 0.6
Double = doubled(FedTTA)  # so that it can be compared with NumPy to many digits


def federation(labelled: tuple[bool, ...] = (True, True, False)) -> Federation:
    return Federation.from_arrays(X, Y, train=ROWS, val=ROWS, test=ROWS, members=2, classes=2, labelled=labelled)


def build(**settings: Any) -> tuple[FedTTA, dict[str, Any]]:
    rates = {"lr": LR, "judge_lr": JUDGE_LR, "inner_lr": INNER, "momentum": 0.0, "weight_decay": 0.0, "clip": 0.0}
    sizes = {"steps": 1, "batch": 2, "width": 3, "depth": 1}
    method = Double(task=linear_task(2), clients=3, members=2, **rates | sizes | settings)
    params = layer(START)
    judge = {"0.weight": PHI[:6].reshape(3, 2), "0.bias": PHI[6:9], "2.weight": PHI[None, 9:12], "2.bias": PHI[12:]}
    return method, {"params": params, "judge": {name: tensor(value) for name, value in judge.items()}}


def scores(theta: Array, rows: list[int]) -> Array:
    return X[rows] @ theta[:4].reshape(2, 2).T + theta[4:]


def likely(theta: Array, rows: list[int]) -> Array:
    raised = np.exp(scores(theta, rows))
    return raised / raised.sum(1, keepdims=True)


def judgement(theta: Array, phi: Array, rows: list[int]) -> float:
    hidden = np.maximum(scores(theta, rows) @ phi[:6].reshape(3, 2).T + phi[6:9], 0)
    return float(np.sqrt(((hidden @ phi[9:12] + phi[12]) ** 2).sum()))


def cross_entropy(theta: Array, rows: list[int]) -> float:
    return float(-np.log(likely(theta, rows)[range(len(rows)), Y[rows]]).mean())


def entropy(theta: Array, rows: list[int]) -> float:
    return float(-(likely(theta, rows) * np.log(likely(theta, rows))).sum(1).mean())


def slope(function: Callable[[Array], float], at: Array, gap: float = 1e-5) -> Array:
    return np.array([(function(at + gap * one) - function(at - gap * one)) / (2 * gap) for one in np.eye(len(at))])


def stepped(theta: Array, phi: Array, rows: list[int], decay: float = 0.0) -> Array:
    return theta - INNER * (slope(lambda t: judgement(t, phi, rows), theta) + decay * theta)


def outer(theta: Array, phi: Array, rows: list[int], decay: float = 0.0) -> Array:
    """The gradient, at model and judge end to end, of the loss after the step."""
    both = np.concatenate([theta, phi])
    return slope(lambda b: cross_entropy(stepped(b[:6], b[6:], rows, decay), rows), both, 1e-4)


def judged(state: dict[str, Any]) -> Array:
    return tree.ravel(state["judge"]).numpy()


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_a_round_trains_model_and_judge_through_the_step(engine: str) -> None:
    """Client 1 has two examples and so counts twice."""
    method, state = build(weight_decay=0.05)
    after = method.round(state, Clients(make(engine, method, [federation()], "cpu"), torch.tensor([0, 1]), 0))
    ends = []
    for rows in ROWS[:2]:
        both = np.concatenate([START, PHI])
        ends.append(both - np.array([LR] * 6 + [JUDGE_LR] * 13) * (outer(START, PHI, rows, 0.05) + 0.05 * both))
    expected = (ends[0] + 2 * ends[1]) / 3
    assert flat(after["params"]) == pytest.approx(expected[:6], abs=1e-6)
    assert judged(after) == pytest.approx(expected[6:], abs=1e-6)
    assert np.abs(expected[6:] - PHI).max() > 0.01, "the judge learns"


def test_the_judge_has_momentum_and_the_model_has_none() -> None:
    method, state = build(steps=2, momentum=0.5)
    after = method.round(state, Clients(make("vector", method, [federation()], "cpu"), torch.tensor([0]), 0))
    first = outer(START, PHI, ROWS[0])
    theta, phi = START - LR * first[:6], PHI - JUDGE_LR * first[6:]
    second = outer(theta, phi, ROWS[0])
    assert flat(after["params"]) == pytest.approx(theta - LR * second[:6], abs=1e-6)
    assert judged(after) == pytest.approx(phi - JUDGE_LR * (0.5 * first[6:] + second[6:]), abs=1e-6)


def test_proxy_regularisation_pulls_from_the_second_step_on() -> None:
    """At first the local model is the common one, and the divergence, at its least, has no slope."""
    method, state = build(steps=2, proxy=0.8)
    after = method.round(state, Clients(make("vector", method, [federation()], "cpu"), torch.tensor([1]), 0))
    first = outer(START, PHI, ROWS[1])
    theta, phi = START - LR * first[:6], PHI - JUDGE_LR * first[6:]
    sent = likely(START, ROWS[1])
    pull = slope(lambda t: float((sent * (np.log(sent) - np.log(likely(t, ROWS[1])))).sum(1).mean()), theta)
    second = outer(theta, phi, ROWS[1])
    assert flat(after["params"]) == pytest.approx(theta - LR * (second[:6] + 0.8 * pull), abs=1e-6)
    assert np.abs(0.8 * LR * pull).max() > 1e-3


def test_who_has_no_labels_moves_nothing_and_weighs_nothing() -> None:
    method, state = build(momentum=0.9, weight_decay=0.1, proxy=0.5, steps=2)
    made = make("vector", method, [federation((False, True, False))], "cpu")
    both = method.round(state, Clients(made, torch.tensor([0, 1]), 0))
    alone = method.round(state, Clients(made, torch.tensor([1]), 0))
    nobody = method.round(state, Clients(made, torch.tensor([0]), 0))
    assert tree.ravel(both).numpy() == pytest.approx(tree.ravel(alone).numpy(), abs=1e-15)
    assert torch.equal(tree.ravel(nobody), tree.ravel(state))


def adapted(steps: int, pair: list[int], single: list[int], clip: float = 0.0) -> list[Array]:
    """The latecomer's models, step by step: the mean of its two batches' judgements is descended."""
    models = [START]
    for _ in range(steps):
        theta = models[-1]
        down = slope(lambda t: (judgement(t, PHI, pair) + judgement(t, PHI, single)) / 2, theta)
        length = np.sqrt((down**2).sum())
        models.append(theta - INNER * down * (min(1.0, clip / (length + 1e-6)) if clip else 1.0))
    return models


def kept(method: FedTTA, state: dict[str, Any], engine: str = "vector") -> Array:
    made = make(engine, method, [federation()], "cpu")
    sent = method.personalise(state, Clients(made, torch.tensor([2]), -1))
    assert (sent.shared, sent.each) == ({}, {}), "the client holds its model already"
    return flat(made.memories(0)["rows"]["params"])[0]


def splits() -> list[tuple[list[int], list[int]]]:
    return [([row for row in ROWS[2] if row != single], [single]) for single in ROWS[2]]


@pytest.mark.parametrize("engine", ["vector", "loop"])
@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_a_latecomer_without_labels_adapts(engine: str, clip: float) -> None:
    """It has three examples, a batch of two and one of one, whose judgements count alike."""
    method, state = build(adapt_steps=2, clip=clip)
    ends = [adapted(2, pair, single, clip)[-1] for pair, single in splits()]
    own = kept(method, state, engine)
    assert min(np.abs(own - end).max() for end in ends) < 1e-6
    assert np.abs(own - START).max() > 0.1


@pytest.mark.parametrize("patience", [1, 2])
def test_early_stopping_goes_back_to_the_least_entropy(patience: int) -> None:
    """The batches are drawn once for all steps, so one split of the three examples explains every step."""
    method, state = build(adapt_steps=6, patience=patience, inner_lr=INNER)
    ends = []
    for pair, single in splits():
        best, waited, models = START, 0, adapted(6, pair, single)
        for model in models[1:]:
            if waited < patience and entropy(model, ROWS[2]) < entropy(best, ROWS[2]):
                best, waited = model, 0
            else:
                waited += 1
        ends.append(best)
        assert not np.array_equal(best, models[-1]), "else nothing was stopped"
        assert patience == 1 or not np.array_equal(best, START), "who waits longer gets past the first rise"
    assert min(np.abs(kept(method, state) - end).max() for end in ends) < 1e-6


def test_a_judgement_of_nothing_has_no_slope() -> None:
    method, state = build()
    judge, nobody = state["judge"], torch.zeros(2)
    logits = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    value = method.judge.value(judge, logits, nobody)
    (found,) = torch.autograd.grad(value, logits)
    assert value == 0
    assert torch.equal(found, torch.zeros_like(found))
