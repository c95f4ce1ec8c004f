"""FLowDUP with a linear model, a linear h1 and an h2 of two small layers: by hand.

A client's examples X give z = W mean(X) + w, a = relu(A z + q), v = B a + c and theta = theta_0 + P v. With error g at
theta, v has the error e = P^T g + 2 lambda (v - r); r gets -2 lambda (v - r), B gets e a^T, c gets e; with
b = B^T e where a > 0, A gets b z^T, q gets b; W gets A^T b mean(X)^T and w gets A^T b.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from byhand import linear_task, shortening, slope, tensor

from latecomer import tree
from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.engines import make
from latecomer.errors import UnknownName
from latecomer.methods.flowdup import FLowDUP
from latecomer.nets.models import CNN64, MLP
from latecomer.nets.net import Net
from latecomer.nets.subspace import Dense, Subspace
from latecomer.task import Task
from toys import Spy

X, Y = np.array([[1.0], [2.0], [-1.5], [0.5], [3.0]]), np.array([0, 1, 0, 1, 1])
ROWS = [[0, 1], [2, 3], [4]]  # client 1 has no labels, client 2 is a latecomer without labels
FEDERATION = Federation.from_arrays(
    X, Y, train=ROWS, val=ROWS, test=ROWS, members=2, classes=2, labelled=[True, False, False]
)
PSI = {
    "W": np.array([[0.7], [0.9]]),
    "w": np.array([0.3, -0.2]),
    "A": np.array([[0.5, 0.2], [-0.3, 0.8]]),
    "q": np.array([0.1, 0.2]),
    "B": np.array([[0.4, -0.1], [0.2, 0.6]]),
    "c": np.array([0.05, -0.15]),
    "r": np.array([0.3, -0.4]),
}
P = np.array([[0.6, 0.0], [0.8, -0.6], [0.0, 0.8], [0.0, 0.0]])
THETA_0 = np.array([0.1, -0.2, 0.3, 0.05])
LR, LAMBDA = 0.2, 0.05


def build(**settings: Any) -> tuple[FLowDUP, dict[str, Any]]:
    fixed = {"dimension": 2, "embedding": 2, "hidden": 2, "batch": 2, "subspace": "dense", "server": "sgd"}
    rates = {"lr": LR, "clip": 0.0, "lambda_reg": LAMBDA, "server_lr": 0.5}
    method = FLowDUP(task=linear_task(1), clients=3, members=2, **fixed | rates | settings)
    method.set(space=Subspace(method.task.model, tensor(THETA_0), Dense(tensor(P))))
    psi = {
        "h1": {"weight": tensor(PSI["W"]), "bias": tensor(PSI["w"])},
        "h2": dict(zip(("0.weight", "0.bias", "2.weight", "2.bias"), map(tensor, map(PSI.get, "AqBc")), strict=True)),
    }
    if method.learned_regulariser:
        psi["r"] = tensor(PSI["r"])
    drawn = method.init(torch.Generator().manual_seed(0))["psi"]
    assert tree.map(lambda leaf: leaf.float() * 0, psi).keys() == drawn.keys()
    assert [leaf.shape for leaf in tree.leaves(psi)] == [leaf.shape for leaf in tree.leaves(drawn)]
    return method, {"psi": psi, "optimiser": method.optimiser.init(psi)}


def flat(psi: dict[str, Any]) -> np.ndarray:
    return tree.ravel(psi).numpy()


def forward(psi: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, ...]:
    middle = x.mean(0)
    z = psi["W"] @ middle + psi["w"]
    a = np.maximum(psi["A"] @ z + psi["q"], 0)
    return middle, z, a, psi["B"] @ a + psi["c"]


def step(psi: dict[str, np.ndarray], own: int, scored: int, labelled: bool, clip: float, times: float) -> dict:
    """Lines 6 to 13, for a batch whose first half is example `own` and whose second is `scored`."""
    middle, z, a, v = forward(psi, X[[own]])
    g = slope(THETA_0 + P @ v, X[[scored]], Y[[scored]]) * labelled * times
    pull = 2 * LAMBDA * (v - psi["r"])
    e = P.T @ g + pull
    b = (psi["B"].T @ e) * (a > 0)
    slopes = {
        "W": np.outer(psi["A"].T @ b, middle),
        "w": psi["A"].T @ b,
        "A": np.outer(b, z),
        "q": b,
        "B": np.outer(e, a),
        "c": e,
        "r": -pull,
    }
    factor = shortening(np.concatenate([part.ravel() for part in slopes.values()]), clip)
    return {name: psi[name] - LR * factor * slope for name, slope in slopes.items()}


def changes(client: int, epochs: int, clip: float = 0.0) -> list[np.ndarray]:
    """What a client may answer: one vector for every order in which the passes may take its two examples."""
    found = []
    for orders in product((ROWS[client], ROWS[client][::-1]), repeat=epochs):
        psi = PSI
        for own, scored in orders:
            psi = step(psi, own, scored, client == 0, clip, 1.0)
        found.append(np.concatenate([(psi[name] - PSI[name]).ravel() for name in PSI]))
    return found


@pytest.mark.parametrize("engine", ["vector", "loop"])
@pytest.mark.parametrize(("epochs", "clip"), [(1, 0.0), (2, 0.0), (1, 0.1)])
def test_a_round(engine: str, epochs: int, clip: float) -> None:
    method, state = build(epochs=epochs, clip=clip)
    spy = Spy(make(engine, method, [FEDERATION], "cpu"))
    after = method.round(state, Clients(spy, torch.tensor([0, 1]), 0))
    ((name, fit),) = spy.asks
    assert name == "fit"
    assert fit.shared.keys() == {"psi"}, "neither P nor theta_0 travels"
    assert fit.each == {}
    mean = fit.collector.mean()
    candidates = [(a + b) / 2 for a in changes(0, epochs, clip) for b in changes(1, epochs, clip)]
    gaps = [float(np.abs(flat(mean) - candidate).max()) for candidate in candidates]
    assert min(gaps) < 1e-12, "one of the orders in which a pass may take the examples"
    assert sorted(gaps)[1] > 1e-6, "and no other"
    assert flat(after["psi"]) == pytest.approx(flat(state["psi"]) + 0.5 * candidates[int(np.argmin(gaps))], abs=1e-12)


def test_a_client_without_labels_moves_by_the_regulariser_alone() -> None:
    method, state = build()
    engine = make("vector", method, [FEDERATION], "cpu")
    moved = flat(method.round(state, Clients(engine, torch.tensor([1]), 0))["psi"]) - flat(state["psi"])
    assert min(float(np.abs(moved - change / 2).max()) for change in changes(1, 1)) < 1e-12
    assert np.abs(moved).max() > 1e-3
    still, state = build(lambda_reg=0.0)
    engine = make("vector", still, [FEDERATION], "cpu")
    assert (flat(still.round(state, Clients(engine, torch.tensor([1]), 0))["psi"]) == flat(state["psi"])).all()


def test_the_server_follows_by_adam() -> None:
    """The first step of Adam is the learning rate along the sign of the mean change."""
    method, state = build(server="adam", server_lr=0.01)
    spy = Spy(make("vector", method, [FEDERATION], "cpu"))
    after = method.round(state, Clients(spy, torch.tensor([0, 1]), 0))
    change = flat(spy.asks[0][1].collector.mean())
    assert flat(after["psi"]) - flat(state["psi"]) == pytest.approx(0.01 * change / (np.abs(change) + 1e-8), rel=1e-5)
    assert method.optimiser.betas == (0.9, 0.99)  # type: ignore[union-attr]


def test_without_a_learned_regulariser_places_are_pulled_to_zero() -> None:
    method, state = build(learned_regulariser=False)
    assert state["psi"].keys() == {"h1", "h2"}
    engine = make("vector", method, [FEDERATION], "cpu")
    moved = flat(method.round(state, Clients(engine, torch.tensor([1]), 0))["psi"]) - flat(state["psi"])
    candidates = []
    for own, scored in (ROWS[1], ROWS[1][::-1]):
        psi = step(PSI | {"r": np.zeros(2)}, own, scored, False, 0.0, 1.0)
        candidates.append(np.concatenate([(psi[name] - PSI[name]).ravel() for name in PSI if name != "r"]))
    assert min(float(np.abs(moved - candidate / 2).max()) for candidate in candidates) < 1e-12


def test_a_sum_of_losses_is_as_many_times_the_mean_as_examples_are_scored() -> None:
    """Four examples, of which two are scored: twice the gradient of their mean loss, and the regulariser as it was."""
    rows = [[0, 1, 3, 4]]
    federation = Federation.from_arrays(X, Y, train=rows, test=rows, classes=2)
    moved = {}
    for name, settings in {"mean": {}, "sum": {"loss": "sum"}, "half": {"lambda_reg": LAMBDA / 2}}.items():
        method, state = build(batch=4, **settings)
        engine = make("vector", method, [federation], "cpu")
        moved[name] = flat(method.round(state, Clients(engine, torch.tensor([0]), 0))["psi"]) - flat(state["psi"])
    assert moved["sum"] == pytest.approx(2 * moved["half"], abs=1e-12)
    assert np.abs(moved["sum"] - moved["mean"]).max() > 1e-3


def test_a_latecomer_needs_psi_and_no_labels() -> None:
    method, state = build()
    engine = make("loop", method, [FEDERATION], "cpu")
    clients = Clients(engine, torch.tensor([2]), -1, scratch=1)
    sent = method.personalise(state, clients)
    assert (sent.shared.keys(), sent.each, clients.ledger) == ({"psi"}, {}, [])
    theta = THETA_0 + P @ forward(PSI, X[[4]])[-1]
    scores = theta[:2] * 3.0 + theta[2:]
    assert abs(scores[0] - scores[1]) > 0.1
    counts = clients.run(method.score, shared=sent.shared).each["test"][0].tolist()
    right = float(scores.argmax() == Y[4])
    assert counts == [right, 1.0, right], "without labels, its own classes are all"


def test_a_single_example_describes_and_nothing_is_scored() -> None:
    federation = Federation.from_arrays(X, Y, train=[[0]], test=[[0]], classes=2)
    method, state = build(batch=4)
    engine = make("vector", method, [federation], "cpu")
    moved = flat(method.round(state, Clients(engine, torch.tensor([0]), 0))["psi"]) - flat(state["psi"])
    psi = step(PSI, 0, 0, False, 0.0, 1.0)
    assert moved == pytest.approx(np.concatenate([(psi[name] - PSI[name]).ravel() / 2 for name in PSI]), abs=1e-12)


def test_an_encoder_may_differ_from_the_client_model() -> None:
    """Table 3: h1 is a CNN with another last layer, the client model an MLP, and the place of the MLP is learned."""
    x = np.arange(6 * 64, dtype=np.uint8).reshape(6, 8, 8)
    images = Federation.from_arrays(x, np.arange(6) % 2, train=[[0, 1, 2, 3]], test=[[4, 5]], classes=2)
    shape = images.examples.shape
    task = Task(Net(partial(MLP, shape, 2)), shape, 2)
    sizes = {"dimension": 5, "embedding": 7, "hidden": 3, "batch": 4}
    method = FLowDUP(task=task, clients=1, members=1, encoder="cnn64", **sizes)
    assert dict(method.h1.shapes) == dict(Net(partial(CNN64, shape, 7)).shapes)
    assert dict(method.space.net.shapes) == dict(task.model.shapes)
    same = FLowDUP(task=task, clients=1, members=1, **sizes)
    assert dict(same.h1.shapes) == dict(Net(partial(MLP, shape, 7)).shapes), "by default they are alike"
    engine = make("vector", method, [images], "cpu")
    state = method.init(torch.Generator().manual_seed(0))
    after = method.round(state, Clients(engine, torch.tensor([0]), 0))
    moved = tree.ravel(after["psi"]["h1"]) - tree.ravel(state["psi"]["h1"])
    assert moved.abs().max() > 0
    with pytest.raises(UnknownName, match="There is no value for --encoder 'cnn46'; did you mean 'cnn64'"):
        FLowDUP(task=task, clients=1, members=1, encoder="cnn46", **sizes)
