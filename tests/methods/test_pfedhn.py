"""pFedHN with a hypernetwork of two small linear layers: the chain rule by hand.

A model is theta = B (A v + a) + c. With error g at theta, B gets g (A v + a)^T, c gets g, A gets B^T g v^T,
a gets B^T g, and the embedding v gets A^T B^T g.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from byhand import descend, flat, linear_task, owners, shortening, tensor

from latecomer import rounds, tree
from latecomer.clients import Clients, Exchange
from latecomer.data import Federation
from latecomer.engines import make
from latecomer.errors import DataError, ModelError, SettingError
from latecomer.methods.pfedhn import PFedHN
from latecomer.nets.models import MLP, LeNet, in_size
from latecomer.nets.net import Net
from latecomer.task import Task
from latecomer.train import Plan, Training

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
    method = PFedHN(task=linear_task(1), clients=4, **{"members": 3} | fixed | settings)
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


def adam(v: np.ndarray, slopes: Any, lr: float, times: int) -> np.ndarray:
    """So many steps of Adam from v, with its usual constants."""
    first, second = np.zeros_like(v), np.zeros_like(v)
    for count in range(1, times + 1):
        g = slopes(v)
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        v = v - lr * (first / (1 - 0.9**count)) / (np.sqrt(second / (1 - 0.999**count)) + 1e-8)
    return v


def embedding_slope(v: np.ndarray) -> np.ndarray:
    """Of the latecomer's embedding, from what its local training adds to the model."""
    return A.T @ B.T @ -change(3, B @ (A @ v + a) + c)


@pytest.mark.parametrize("engine", ["vector", "loop"])
@pytest.mark.parametrize("start", ["mean", "random"])
def test_a_latecomer_fits_its_embedding(engine: str, start: str) -> None:
    """Two exchanges with the hypernetwork frozen, by Adam, from the members' mean or from a draw of its own."""
    method, state = build(clip=0.0, novel_rounds=2, novel_lr=0.5, novel_start=start)
    if start == "random":
        state["novel"] = tensor([[0.9]])
    v = adam(np.array([0.9]) if start == "random" else V.mean(0), embedding_slope, 0.5, 2)
    ledger: list = []
    clients = Clients(make(engine, method, [FEDERATION], "cpu"), torch.tensor([1, 3]), -1, scratch=1, ledger=ledger)
    (sent,) = method.personalise(state, clients)
    wanted = np.stack([B @ (A @ V[1] + a) + c, B @ (A @ v + a) + c])
    assert flat(sent.each["params"]) == pytest.approx(wanted, abs=1e-7)
    assert [int(exchange.asked.sum()) for exchange in ledger] == [1, 1], "only the latecomer is asked"


def test_an_embedding_moves_by_its_own_scale_however_small_the_gradients() -> None:
    """Members' embeddings are standard normal at the outset; by default twenty exchanges go a good part of that."""
    moved = []
    for lr in (2.0, 2e-4):
        method, state = build(lr=lr)
        clients = Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([3]), -1, scratch=1)
        late = method.placed(state, rounds.by_size(clients, None, {})[0])
        moved.append(float((late - state["learned"]["embedding"].mean(0)).norm()))
    assert min(moved) > 0.5


def test_random_starts_are_drawn_once_and_travel_with_the_state() -> None:
    method, _ = build(novel_start="random", members=2)
    state = method.init(torch.Generator().manual_seed(0))
    assert state["novel"].shape == (2, 1)
    assert state["novel"].unique().numel() == 2, "a row of its own for every latecomer"
    plain = build()[0].init(torch.Generator().manual_seed(0))
    assert "novel" not in plain
    assert torch.equal(
        build(novel_start="random")[0].init(torch.Generator().manual_seed(0))["learned"]["embedding"],
        plain["learned"]["embedding"],
    )
    tuned = make("vector", method, [owners(X, Y, ROWS, members=2)], "cpu")
    doubles = tree.map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, state)
    after = method.round(doubles, Clients(tuned, torch.tensor([0]), 0))
    assert torch.equal(after["novel"], doubles["novel"])


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


# clients of two sizes


class Chain(torch.nn.Module):
    """logits = top (body x): 3 weights where the body is 1 wide, 6 where it is 2 wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.top = torch.nn.Linear(1, width, bias=False), torch.nn.Linear(width, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.body(x))


SIZED = dataclasses.replace(FEDERATION, budget=torch.tensor([2, 0, 2, 0], dtype=torch.int8))  # L, S, L; late: S
SLICE = {"S": slice(0, 3), "L": slice(3, 9)}
B2 = np.linspace(-0.8, 0.9, 18).reshape(9, 2)[[3, 0, 7, 2, 8, 5, 1, 6, 4]]
c2 = np.linspace(0.5, -0.6, 9)


def sized_task(*sizes: str) -> Task:
    shapes = {size: Net(partial(Chain, width)).shapes for size, width in (("S", 1), ("L", 2))}
    return Task(Net(partial(Chain, 2)), (1,), 2, torch.float64, {size: shapes[size] for size in sizes})


def build_sized(*sizes: str, **settings: Any) -> tuple[PFedHN, dict[str, Any]]:
    fixed = {
        "steps": 1,
        "batch": 4,
        "embedding": 1,
        "hidden": 2,
        "depth": 0,
        "weight_decay": 0.0,
        "clip": 0.0,
        "lr": 0.7,
    }
    method = PFedHN(task=sized_task(*sizes), clients=4, members=3, momentum=0.0, **fixed | settings)
    rows = np.concatenate([np.arange(9)[SLICE[size]] for size in sizes])
    hyper = {name: tensor(value) for name, value in zip(ORDER, (A, a, B2[rows], c2[rows]), strict=True)}
    learned = {"hyper": hyper, "embedding": tensor(V)}
    return method, {"ids": torch.arange(3), "learned": learned, "optimiser": method.optimiser.init(learned)}


def slope(client: int, theta: np.ndarray) -> np.ndarray:
    """Of the client's loss, at a chain's weights: first the body's, then the top's, row by row."""
    x, y = np.array(X)[ROWS[client], 0], np.array(Y)[ROWS[client]]
    width = len(theta) // 3
    body, top = theta[:width], theta[width:].reshape(2, width)
    by_body, by_top = np.zeros_like(body), np.zeros_like(top)
    for one, label in zip(x, y, strict=True):
        scores = top @ (body * one)
        wrong = (np.exp(scores) / np.exp(scores).sum() - np.eye(2)[label]) / len(x)
        by_body += top.T @ wrong * one
        by_top += np.outer(wrong, body * one)
    return np.concatenate([by_body, by_top.ravel()])


def chain(params: dict[str, torch.Tensor], row: int) -> np.ndarray:
    return np.concatenate([params[name][row].numpy().ravel() for name in ("body.weight", "top.weight")])


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_two_sizes_move_one_hypernetwork(engine: str) -> None:
    """Each client moves the rows of the head that emit its own size; what they share gets the mean of both."""
    method, state = build_sized("S", "L", server_lr=0.2, server_momentum=0.0, server_decay=0.0)
    ledger: list[Exchange] = []
    made = make(engine, method, [SIZED], "cpu")
    after = method.round(state, Clients(made, torch.tensor([0, 1]), 0, ledger=ledger))["learned"]
    total = {"A": np.zeros_like(A), "a": np.zeros_like(a), "B": np.zeros_like(B2), "c": np.zeros_like(c2)}
    moved = V.copy()
    for client, size in ((0, "L"), (1, "S")):
        rows = SLICE[size]
        between = A @ V[client] + a
        g = 0.7 * slope(client, B2[rows] @ between + c2[rows]) / 2
        back = B2[rows].T @ g
        total["A"] += np.outer(back, V[client])
        total["a"] += back
        total["B"][rows] += np.outer(g, between)
        total["c"][rows] += g
        moved[client] -= 0.2 * (A.T @ back)
    for name, start, key in zip(("A", "a", "B", "c"), (A, a, B2, c2), ORDER, strict=True):
        assert after["hyper"][key].numpy() == pytest.approx(start - 0.2 * total[name], abs=1e-12), name
    assert after["embedding"].numpy() == pytest.approx(moved, abs=1e-12)
    lines = [exchange.line() for exchange in ledger]
    assert [(line["step"], line["asked"], line["down"], line["up"]) for line in lines] == [
        ("introduce", 2, 0, 2 * 4),
        ("fit", 1, 3 * 8, 3 * 8),  # the small model's three numbers, in double precision
        ("fit", 1, 6 * 8, 6 * 8),
    ]


def test_a_client_is_sent_its_own_slice_and_a_latecomer_fits_its_own() -> None:
    method, state = build_sized("S", "L", novel_rounds=1, novel_lr=0.5)
    made = make("vector", method, [SIZED], "cpu")
    large, small = sorted(
        method.personalise(state, Clients(made, torch.tensor([3, 0, 1, 2]), -1, scratch=1)),
        key=lambda sending: -sending.each["params"]["body.weight"].shape[1],
    )
    assert large.to is not None
    assert small.to is not None
    assert large.to.tolist() == [False, True, False, True]
    assert small.to.tolist() == [True, False, True, False]
    for row, client in enumerate((0, 2)):
        wanted = (B2 @ (A @ V[client] + a) + c2)[SLICE["L"]]
        assert chain(large.each["params"], row) == pytest.approx(wanted, abs=1e-12)
    rows = SLICE["S"]
    v = adam(V.mean(0), lambda v: A.T @ B2[rows].T @ (0.7 * slope(3, B2[rows] @ (A @ v + a) + c2[rows])), 0.5, 1)
    assert chain(small.each["params"], 0) == pytest.approx(B2[rows] @ (A @ v + a) + c2[rows], abs=1e-7)
    assert chain(small.each["params"], 1) == pytest.approx((B2 @ (A @ V[1] + a) + c2)[rows], abs=1e-12)


def test_seeds_whose_cohorts_lack_a_size_go_on_together() -> None:
    """One client a round: the two seeds are at different sizes in some rounds, and at the same in others."""
    both = [SIZED, dataclasses.replace(SIZED, seed=1)]
    finals = {}
    for name, federations in {"together": both, "first": both[:1], "second": both[1:]}.items():
        method, _ = build_sized("S", "L")
        training = Training(
            doubled(method),
            federations,
            make("vector", method, federations, "cpu"),
            Plan(rounds=8, cohort=1, evaluate_every=4),
        )
        assert len(list(training.go())) == 8
        finals[name] = training
    cohorts = [[int(finals["together"].cohorts(run, k)) for k in range(8)] for run in (0, 1)]
    same = [SIZED.budget[i] == SIZED.budget[j] for i, j in zip(*cohorts, strict=True)]
    assert any(same)
    assert not all(same)
    for run, alone in enumerate(("first", "second")):
        expected, found = (
            tree.ravel(f.states[k]["learned"]) for f, k in ((finals[alone], 0), (finals["together"], run))
        )
        assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-12)
        assert tree.flatten(finals[alone].best[0].scores.counts).keys() == {"val", "test"}


def doubled(method: PFedHN) -> PFedHN:
    """The same method, whose state begins in double precision."""

    class Double(PFedHN):
        def init(self, generator: torch.Generator) -> Any:
            return tree.map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, super().init(generator))

    copy = object.__new__(Double)
    copy.__dict__.update(method.__dict__)
    return copy


def test_a_budget_without_a_model_is_refused() -> None:
    method, state = build_sized("S")
    made = make("vector", method, [SIZED], "cpu")
    with pytest.raises(DataError, match="A client has the budget L, but there is no model of that size, only S"):
        method.round(state, Clients(made, torch.tensor([0, 1]), 0))
    silent = Clients(made, torch.tensor([0, 1]), 0, faults=lambda ids, number, step: ids == 0)
    after = method.round(state, silent)["learned"]["embedding"]
    assert after[1] != state["learned"]["embedding"][1], "who is silent cannot be asked for its size"


def test_a_personal_head_has_one_shape_in_all_sizes() -> None:
    """A client's memory has one; the LeNet's last layer sees 84 units in all sizes, an MLP's all it has."""

    def sized(model: Any, shape: tuple[int, ...]) -> Task:
        nets = {size: Net(partial(in_size(model, size), shape, 10)) for size in "SL"}
        return Task(nets["L"], shape, 10, sizes={size: net.shapes for size, net in nets.items()})

    method = PFedHN(task=sized(LeNet, (3, 32, 32)), clients=4, members=3, personal_head=True)
    assert {path[0] for path in method.hyper.target} == {"S", "L"}
    assert not any("fc3" in path for path in method.hyper.target)
    assert {name: leaf.shape for name, leaf in method.memory(torch.Generator())["head"].items()} == {
        "fc3.weight": (10, 84),
        "fc3.bias": (10,),
    }
    assert "S/head.weight" in PFedHN(task=sized(MLP, (1, 8, 8)), clients=4, members=3).hyper.target
    with pytest.raises(ModelError, match=r"head\.weight, head\.bias differ in shape from size to size"):
        PFedHN(task=sized(MLP, (1, 8, 8)), clients=4, members=3, personal_head=True)


# fixed representations


def test_class_shares_stand_for_a_client() -> None:
    """Client 1 has one example of either class, the others have one class; only the hypernetwork is learned."""
    wide = np.array([[0.5, -0.2], [-0.3, 0.4]])
    shares = {0: [1, 0], 1: [0.5, 0.5], 2: [0, 1], 3: [0, 1]}
    method = PFedHN(
        task=linear_task(1), clients=4, members=3, representation="class-shares", hidden=2, depth=0,
        steps=2, batch=4, weight_decay=0.1, clip=0.0, server_lr=0.2, server_momentum=0.0, server_decay=0.0, **LOCAL,
    )  # fmt: skip
    hyper = {name: tensor(value) for name, value in zip(ORDER, (wide, a, B, c), strict=True)}
    assert method.init(torch.Generator())["learned"].keys() == {"hyper"}
    state = {"ids": torch.arange(3), "learned": {"hyper": hyper}, "optimiser": {}}
    made, ledger = make("vector", method, [FEDERATION], "cpu"), []
    after = method.round(state, Clients(made, torch.tensor([1, 2]), 0, ledger=ledger))["learned"]["hyper"]
    total = np.zeros_like(wide)
    for client in (1, 2):
        v = np.array(shares[client])
        g = -change(client, B @ (wide @ v + a) + c) / 2
        total += np.outer(B.T @ g, v)
    assert after["0.weight"].numpy() == pytest.approx(wide - 0.2 * total, abs=1e-12)
    lines = [exchange.line() for exchange in ledger]
    assert [(line["step"], line["down"], line["up"]) for line in lines] == [
        ("introduce", 0, 2 * 2 * 4),
        ("fit", 2 * 4 * 8, 2 * 4 * 8),
    ]
    ledger.clear()
    (sent,) = method.personalise(state, Clients(made, torch.tensor([0, 3]), -1, scratch=1, ledger=ledger))
    wanted = np.stack([B @ (wide @ np.array(shares[client]) + a) + c for client in (0, 3)])
    assert flat(sent.each["params"]) == pytest.approx(wanted, abs=1e-12)
    assert [exchange.step for exchange in ledger] == ["introduce"], "a latecomer is not fitted"


def test_an_embedding_has_no_size_of_its_own_where_it_is_fixed() -> None:
    with pytest.raises(SettingError, match="--embedding is 2 with class shares, one a class; leave it out"):
        PFedHN(task=linear_task(1), clients=4, members=3, representation="class-shares", embedding=3)
    assert PFedHN(task=linear_task(1), clients=4, members=3, representation="class-shares").hyper.descriptor == 2


def test_an_unlabelled_client_has_no_shares() -> None:
    method = PFedHN(task=linear_task(1), clients=4, members=3, representation="class-shares")
    unlabelled: Federation = dataclasses.replace(FEDERATION, labelled=torch.tensor([True, False, True, True]))
    clients = Clients(make("vector", method, [unlabelled], "cpu"), torch.tensor([0, 1]), 0)
    assert clients.run(method.introduce).each["v"].tolist() == [[1.0, 0.0], [0.0, 0.0]]


# spectral normalisation


def test_every_layer_is_divided_by_its_spectral_norm() -> None:
    """The head is a layer a tensor: rows 0 and 1 emit the weight, rows 2 and 3 the bias."""
    method, state = build(spectral=True, novel_rounds=1)
    clients = Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([0, 2]), -1, scratch=1)
    (sent,) = method.personalise(state, clients)
    head = np.concatenate([B[:2] / np.linalg.norm(B[:2], 2), B[2:] / np.linalg.norm(B[2:], 2)])
    wanted = np.stack([head @ (A / np.linalg.norm(A, 2) @ V[client] + a) + c for client in (0, 2)])
    assert flat(sent.each["params"]) == pytest.approx(wanted, abs=1e-12)


def test_the_gradient_passes_through_the_norm() -> None:
    """W / s, with the largest singular value s = u' W w: an error G at it becomes G / s - <G, W> / s^2 u w'."""
    method, state = build(spectral=True, clip=0.0, server_lr=0.2, server_momentum=0.0, server_decay=0.0)
    after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([1]), 0))["learned"]

    def through(error: np.ndarray, weight: np.ndarray) -> np.ndarray:
        u, s, w = np.linalg.svd(weight)
        return error / s[0] - (error * weight).sum() / s[0] ** 2 * np.outer(u[:, 0], w[0])

    first = A / np.linalg.norm(A, 2)
    head = np.concatenate([B[:2] / np.linalg.norm(B[:2], 2), B[2:] / np.linalg.norm(B[2:], 2)])
    between = first @ V[1] + a
    g = -change(1, head @ between + c)
    by_head = np.outer(g, between)
    gradients = {
        "0.weight": through(np.outer(head.T @ g, V[1]), A),
        "1.weight": np.concatenate([through(by_head[:2], B[:2]), through(by_head[2:], B[2:])]),
    }
    for name, start in (("0.weight", A), ("1.weight", B)):
        assert after["hyper"][name].numpy() == pytest.approx(start - 0.2 * gradients[name], abs=1e-12), name
    assert after["hyper"]["1.bias"].numpy() == pytest.approx(c - 0.2 * g, abs=1e-12)
