"""PeFLL with a descriptor of two numbers made from labels, and a hypernetwork of two small linear layers: by hand.

A client's descriptor is v = E p + e, where p are the shares of its labels. It is standardised to z = (v - m) / s, and
the client's model is theta = B (A z + a) + c. With error g at theta, B gets g (A z + a)^T, c gets g, A gets
B^T g z^T, a gets B^T g, v gets A^T B^T g / s; and of that, E gets (dv) p^T and e gets dv.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from byhand import descend, flat, linear_task, owners, tensor

from latecomer import tree
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.engines.home import Homes, PackedHome
from latecomer.errors import SettingError
from latecomer.methods.pefll import PeFLL
from toys import Spy

X, Y = [[1.0], [2.0], [-1.5], [0.5], [3.0]], [0, 1, 0, 1, 1]
ROWS = [[0], [1, 2, 3], [4]]
FEDERATION = owners(X, Y, ROWS, members=2)  # client 2 is a latecomer
SHARES = np.array([[1.0, 0.0], [1 / 3, 2 / 3]])
E, e = np.array([[0.7, -0.4], [0.1, 0.9]]), np.array([0.3, -0.2])
A, a = np.array([[0.5, 0.2], [-0.3, 0.8]]), np.array([0.1, 0.2])
B = np.array([[0.4, -0.1], [0.2, 0.6], [-0.5, 0.3], [0.1, 0.7]])
c = np.array([0.05, -0.15, 0.25, -0.35])
LR, LAMBDA_H, LAMBDA_V, LAMBDA_THETA = 0.01, 0.3, 0.2, 0.05

V = SHARES @ E.T + e
M, S = V.mean(), V.std(1, ddof=1).mean()
Z = (V - M) / S
BETWEEN = Z @ A.T + a
THETA = BETWEEN @ B.T + c


def build(**settings: Any) -> tuple[PeFLL, dict[str, Any]]:
    fixed = {
        "embed": "label",
        "descriptor": 2,
        "hidden": 2,
        "depth": 0,
        "steps": 2,
        "batch": 4,
        "lr": 0.3,
        "momentum": 0.5,
    }
    rates = {"server_lr": LR, "lambda_h": LAMBDA_H, "lambda_v": LAMBDA_V, "lambda_theta": LAMBDA_THETA}
    method = PeFLL(task=linear_task(1, torch.float32), clients=3, members=2, **fixed | rates | settings)
    embed = {"weight": tensor(E, torch.float32), "bias": tensor(e, torch.float32)}
    names = ("0.weight", "0.bias", "1.weight", "1.bias")
    hyper = {name: tensor(value, torch.float32) for name, value in zip(names, (A, a, B, c), strict=True)}
    state = method.init(torch.Generator().manual_seed(0))
    assert state["learned"]["hyper"].keys() == hyper.keys()
    return method, state | {"learned": {"embed": embed, "hyper": hyper}}


def test_a_descriptor_of_one_number_cannot_be_standardised() -> None:
    with pytest.raises(SettingError, match=r"--descriptor must be at least 2, or 0 .*; got 1\."):
        build(descriptor=1)


def changes() -> np.ndarray:
    """What local training adds to each model; the gradient of lambda |theta|^2 is 2 lambda theta."""
    rule = {"lr": 0.3, "momentum": 0.5, "decay": 2 * LAMBDA_THETA}
    data = [(np.array(X)[rows], np.array(Y)[rows]) for rows in ROWS[:2]]
    return np.stack([descend(theta, x, y, 2, **rule) - theta for theta, (x, y) in zip(THETA, data, strict=True)])


def close(found: torch.Tensor | np.ndarray, wanted: Any) -> None:
    assert np.asarray(found) == pytest.approx(np.asarray(wanted), rel=2e-5, abs=2e-6)


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_a_round(engine: str) -> None:
    method, state = build(clip=0.0)
    spy = Spy(make(engine, method, [FEDERATION], "cpu"))
    after = method.round(state, Clients(spy, torch.tensor([0, 1]), 0))
    (_, describe), (_, fit), (_, backprop) = spy.asks
    assert [step for step, _ in spy.asks] == ["describe", "fit", "backprop"]

    close(describe.collector.replies().each["v"], V)  # lines 3 to 7
    close(after["standard"]["mean"], M)
    close(after["standard"]["std"], S)
    close(flat(fit.each["params"]), THETA)  # 8
    g = -changes()
    close(flat(fit.collector.replies().each), -g)  # 9 to 11

    back = g @ B  # 12; the hypernetwork's gradient is a mean over the two clients
    dh = {
        "0.weight": back.T @ Z / 2,
        "0.bias": back.sum(0) / 2,
        "1.weight": g.T @ BETWEEN / 2,
        "1.bias": g.sum(0) / 2,
    }
    dv = back @ A / S
    close(backprop.each["dv"], dv)  # 13
    assert backprop.shared == {}, "the embedding network does not travel again"
    assert backprop.recalled.keys() == {"embed"}
    de = {"weight": dv.T @ SHARES / 2, "bias": dv.sum(0) / 2}  # 14 and 15
    folded = backprop.collector.mean()["embed"]
    for name, part in de.items():
        close(folded[name], part)

    # 17 and 18: shrink, then Adam, whose first step is lr g / (|g| + epsilon)
    for name, old, gradient in zip(dh, (A, a, B, c), dh.values(), strict=True):
        step = LR * gradient / (np.abs(gradient) + 1e-8)
        close(after["learned"]["hyper"][name], old * (1 - 2 * LR * LAMBDA_H) - step)
    for name, old, gradient in zip(de, (E, e), de.values(), strict=True):
        step = LR * gradient / (np.abs(gradient) + 1e-8)
        close(after["learned"]["embed"][name], old * (1 - 2 * LR * LAMBDA_V) - step)


def test_standardisation_is_frozen_after_the_first_round() -> None:
    method, state = build()
    engine = make("vector", method, [FEDERATION], "cpu")
    once = method.round(state, Clients(engine, torch.tensor([1]), 0))
    twice = method.round(once, Clients(engine, torch.tensor([0]), 1))
    close(once["standard"]["mean"], V[1].mean())
    close(once["standard"]["std"], V[1].std(ddof=1))
    assert tree.map(torch.Tensor.item, once["standard"]) == tree.map(torch.Tensor.item, twice["standard"])


def test_a_latecomer_needs_one_exchange_and_no_training() -> None:
    method, state = build()
    state["standard"] = {"mean": torch.tensor(0.1), "std": torch.tensor(0.5), "known": torch.tensor(1.0)}
    spy = Spy(make("vector", method, [FEDERATION], "cpu"))
    sent = method.personalise(state, Clients(spy, torch.tensor([2]), -1, scratch=1))
    z = ((E[:, 1] + e) - 0.1) / 0.5  # its only example is of class 1
    close(flat(sent.each["params"]), [B @ (A @ z + a) + c])
    assert [step for step, _ in spy.asks] == ["describe_fully"]


def test_no_class_is_left_out() -> None:
    """Client 2 has class 1 only; its logits for an input of 0.5 are (-2.5 * 0.5 - 1, 4 * 0.5 + 1)."""
    method, _ = build()
    homes = Homes([FEDERATION], torch.device("cpu"), torch.float32)
    home = PackedHome(homes, homes.client_rows(0, torch.tensor([2]))[0], torch.tensor(0), {})
    params = {"weight": torch.tensor([[-2.5], [4.0]]), "bias": torch.tensor([-1.0, 1.0])}
    assert method.predict(home, torch.tensor([[0.5]]), params=params)[0].tolist() == [-2.25, 3.0]


def test_the_regulariser_may_enter_the_gradient() -> None:
    """Adam's first moment after one round is a tenth of its gradient, so the two ways differ by 2 lambda eta / 10."""
    moments = {}
    for way in ("step", "gradient"):
        method, state = build(regularise=way, lambda_h=0.3, lambda_v=0.2, clip=0.0)
        after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([0, 1]), 0))
        moments[way] = after["optimiser"]["first"].double().numpy()
    learned = state["learned"]
    wanted = [0.2 * tree.ravel(learned["embed"]), 0.3 * tree.ravel(learned["hyper"])]
    assert moments["gradient"] - moments["step"] == pytest.approx(0.2 * torch.cat(wanted).numpy(), abs=1e-6)


def test_the_paper_has_a_relu_before_the_weights_and_one_hidden_layer_less() -> None:
    """Table 4: descriptor, 100, ReLU, 100, ReLU, weights. The authors' code: four layers of 100, then the weights."""
    task = linear_task(1, torch.float32)
    shapes = {}
    for name in ("code", "paper"):
        hyper = PeFLL(task=task, clients=8, members=6, hypernetwork=name).hyper
        shapes[name] = [tuple(shape) for key, shape in hyper.shapes.items() if key.endswith("weight")]
    assert shapes == {
        "code": [(100, 3), *[(100, 100)] * 3, (4, 100)],
        "paper": [(100, 3), (100, 100), (4, 100)],
    }
    assert PeFLL(task=task, clients=8, members=6).hypernetwork == "code"
    assert len(PeFLL(task=task, clients=8, members=6, hypernetwork="paper", depth=0).hyper.shapes) == 4


def test_the_hypernetwork_of_table_4() -> None:
    """A z + a is negative in places, and so is what the second layer makes of it: by hand, both are cut at zero."""
    sizes = {"embed": "label", "descriptor": 2, "hidden": 2, "hypernetwork": "paper"}
    method = PeFLL(task=linear_task(1, torch.float32), clients=3, members=2, **sizes)
    middle, m = np.array([[-0.6, 0.9], [1.1, 0.4]]), np.array([0.2, -0.7])
    layers = {"0": (A, a), "2": (middle, m), "4": (B, c)}
    params = {
        f"{number}.{name}": tensor(value, torch.float32)
        for number, pair in layers.items()
        for name, value in zip(("weight", "bias"), pair, strict=True)
    }
    assert method.hyper.shapes.keys() == params.keys()
    first = np.maximum(Z @ A.T + a, 0)
    between = first @ middle.T + m
    assert (between < 0).any()
    assert (between > 0).any()
    found = method.hyper.generate(params, tensor(Z, torch.float32))
    close(flat(found), np.maximum(between, 0) @ B.T + c)


@pytest.mark.parametrize("size", [0, 1])
def test_the_batch_that_describes_a_client_has_a_size_of_its_own(size: int) -> None:
    """Client 1 has examples of both classes; one alone describes it as its class, and only that class learns."""
    method, state = build(describe_batch=size)
    spy = Spy(make("vector", method, [FEDERATION], "cpu"))
    method.round(state, Clients(spy, torch.tensor([1]), 0))
    (_, describe), _, (_, backprop) = spy.asks
    v = describe.collector.replies().each["v"][0].numpy()
    learned = (backprop.collector.mean()["embed"]["weight"] != 0).any(0).tolist()
    if size:
        gaps = [float(np.abs(v - (E[:, label] + e)).max()) for label in (0, 1)]
        assert sorted(gap < 1e-6 for gap in gaps) == [False, True]
        assert learned == [gap < 1e-6 for gap in gaps]
    else:
        close(v, V[1])
        assert learned == [True, True]
