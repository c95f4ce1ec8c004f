"""pFedHN with a hypernetwork of two small linear layers: the chain rule by hand.

A model is theta = B (A v + a) + c. With error g at theta, B gets g (A v + a)^T, c gets g, A gets B^T g v^T,
a gets B^T g, and the embedding v gets A^T B^T g.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from byhand import descend, flat, linear_task, owners, shortening, tensor

from latecomer import tree
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.pfedhn import PFedHN
from latecomer.nets.net import Net
from latecomer.task import Task

X, Y = [[1.0], [2.0], [-1.5], [0.5], [3.0]], [0, 1, 0, 1, 1]
ROWS = [[0], [1, 2], [3], [4]]
FEDERATION = owners(X, Y, ROWS, members=3)  # client 3 is a latecomer
A, a = np.array([[0.5], [-0.3]]), np.array([0.1, 0.2])
B = np.array([[0.4, -0.1], [0.2, 0.6], [-0.5, 0.3], [0.1, 0.7]])
c = np.array([0.05, -0.15, 0.25, -0.35])
V = np.array([[1.2], [-0.7], [0.4]])
LOCAL = {"lr": 2.0, "momentum": 0.5}
ORDER = ("0.weight", "0.bias", "1.weight", "1.bias")


def build(**settings: Any) -> tuple[PFedHN, dict[str, Any]]:
    fixed = {"steps": 2, "batch": 4, "embedding": 1, "hidden": 2, "depth": 0, "weight_decay": 0.1, **LOCAL}
    method = PFedHN(task=linear_task(1), clients=4, members=3, **fixed | settings)
    hyper = {name: tensor(value) for name, value in zip(ORDER, (A, a, B, c), strict=True)}
    learned = {"hyper": hyper, "embedding": tensor(V)}
    return method, {"ids": torch.arange(3), "learned": learned, "optimiser": method.optimiser.init(learned)}


def change(client: int, theta: np.ndarray, clip: float = 0.0) -> np.ndarray:
    x, y = np.array(X)[ROWS[client]], np.array(Y)[ROWS[client]]
    return descend(theta, x, y, 2, decay=0.1, clip=clip, **LOCAL) - theta


def gradients(cohort: list[int], clip: float) -> dict[str, np.ndarray]:
    """Of hypernetwork and embeddings, averaged over the cohort."""
    total = {
        "A": np.zeros_like(A),
        "a": np.zeros_like(a),
        "B": np.zeros_like(B),
        "c": np.zeros_like(c),
        "V": np.zeros_like(V),
    }
    for client in cohort:
        between = A @ V[client] + a
        g = -change(client, B @ between + c, clip) / len(cohort)
        back = B.T @ g
        for name, part in {"A": np.outer(back, V[client]), "a": back, "B": np.outer(g, between), "c": g}.items():
            total[name] += part
        total["V"][client] += A.T @ back
    return total


def expected(cohort: list[int], lr: float, decay: float, clip: float, velocity: float = 0.0) -> dict[str, np.ndarray]:
    g = gradients(cohort, clip)
    factor = shortening(np.concatenate([part.ravel() for part in g.values()]), clip)
    now = {"A": A, "a": a, "B": B, "c": c, "V": V}
    return {name: now[name] - lr * (velocity + factor * g[name] + decay * now[name]) for name in g}


def check(state: dict[str, Any], wanted: dict[str, np.ndarray]) -> None:
    for name, key in zip(("A", "a", "B", "c"), ORDER, strict=True):
        assert state["learned"]["hyper"][key].numpy() == pytest.approx(wanted[name], abs=1e-12), name
    assert state["learned"]["embedding"].numpy() == pytest.approx(wanted["V"], abs=1e-12)


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_a_round_with_two_of_three_members(engine: str) -> None:
    """Weight decay also moves the embedding of the client that is not asked."""
    method, state = build(clip=0.0, server_lr=0.2, server_momentum=0.9, server_decay=0.01)
    made = make(engine, method, [FEDERATION], "cpu")
    after = method.round(state, Clients(made, torch.tensor([0, 1]), 0))
    check(after, expected([0, 1], lr=0.2, decay=0.01, clip=0.0))
    assert after["learned"]["embedding"][2].item() == pytest.approx(0.4 * (1 - 0.2 * 0.01), abs=1e-12)


def test_momentum_carries_on() -> None:
    """A velocity of one at the outset, kept by 0.9, adds 0.9 to every direction."""
    method, state = build(clip=0.0, server_lr=0.2, server_momentum=0.9, server_decay=0.01)
    state["optimiser"] = {"velocity": torch.ones_like(state["optimiser"]["velocity"])}
    after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([2]), 0))
    check(after, expected([2], lr=0.2, decay=0.01, clip=0.0, velocity=0.9))


def test_gradients_are_clipped_on_both_sides_before_decay() -> None:
    """0.2 is less than the norm of every gradient here: the clients' own, and the server's joint one."""
    method, state = build(clip=0.2, server_lr=0.2, server_momentum=0.9, server_decay=0.01)
    joint = np.concatenate([part.ravel() for part in gradients([0, 1], 0.2).values()])
    assert shortening(joint, 0.2) < 0.99
    after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([0, 1]), 0))
    check(after, expected([0, 1], lr=0.2, decay=0.01, clip=0.2))


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_a_latecomer_fits_its_embedding(engine: str) -> None:
    """Two exchanges with the hypernetwork frozen, from the mean of the members' embeddings, with momentum."""
    method, state = build(clip=0.0, novel_rounds=2, novel_lr=0.5, server_momentum=0.9)
    v, velocity = V.mean(0), np.zeros(1)
    for _ in range(2):
        g = -change(3, B @ (A @ v + a) + c)
        velocity = 0.9 * velocity + A.T @ B.T @ g
        v = v - 0.5 * velocity
    ledger: list = []
    clients = Clients(make(engine, method, [FEDERATION], "cpu"), torch.tensor([1, 3]), -1, scratch=1, ledger=ledger)
    (sent,) = method.personalise(state, clients)
    wanted = np.stack([B @ (A @ V[1] + a) + c, B @ (A @ v + a) + c])
    assert flat(sent.each["params"]) == pytest.approx(wanted, abs=1e-12)
    assert [int(exchange.asked) for exchange in ledger] == [1, 1], "only the latecomer is asked"


def test_a_personal_head_is_trained_along_and_stays_at_the_client() -> None:
    """A body of one weight and a head of two, both by hand: logits = head * (body * x), no biases."""

    class TwoWeights(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(1, 1, bias=False)
            self.top = torch.nn.Linear(1, 2, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.top(self.body(x))

    task = Task(Net(TwoWeights), (1,), 2, torch.float64)
    fixed = {"steps": 1, "batch": 4, "embedding": 1, "hidden": 1, "depth": 0, "clip": 0.0, "weight_decay": 0.0}

    class Double(PFedHN):
        def memory(self, generator: torch.Generator) -> Any:
            return tree.map(torch.Tensor.double, super().memory(generator))

    method = Double(task=task, clients=4, members=3, personal_head=True, **fixed, **LOCAL)
    made = make("vector", method, [FEDERATION], "cpu")
    head, velocity = np.array([0.5, -1.0]), np.array([0.3, -0.2])
    row = {"head": {"top.weight": tensor(head)[None, :, None]}, "velocity": tensor(velocity)[None]}
    made.remember(0, {"ids": torch.tensor([0]), "rows": row})
    sent = {"params": {"body.weight": tensor([[[2.0]]])}}
    replies = Clients(made, torch.tensor([0]), 0).run(method.fit, each=sent)
    x, y, body = 1.0, 0, 2.0  # client 0 has one example
    scores = head * body * x
    wrong = np.exp(scores) / np.exp(scores).sum() - np.eye(2)[y]
    new_velocity = LOCAL["momentum"] * velocity + wrong * body * x
    assert replies.each["body.weight"].item() == pytest.approx(-LOCAL["lr"] * (wrong * head * x).sum(), abs=1e-12)
    kept = made.memories(0)["rows"]
    assert kept["head"]["top.weight"][0, :, 0].numpy() == pytest.approx(head - LOCAL["lr"] * new_velocity, abs=1e-12)
    assert kept["velocity"][0].numpy() == pytest.approx(new_velocity, abs=1e-12)
    assert list(method.hyper.target) == ["body.weight"]
