"""pFedHN, Proposition 1: a linear hypernetwork is PCA on what clients would learn alone.

Clients have data with X_i'X_i = I and the loss |X_i theta - y_i|^2, so alone they would learn X_i'y_i. Of all
theta_i = W v_i with W of k columns, those are best that PCA (about 0, as in the proof) makes of these solutions: what
is left is the sum of the squares of their other singular values, and of what no linear model can fit.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from latecomer import tree
from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.engines import make
from latecomer.methods.pfedhn import PFedHN
from latecomer.nets.hyper import Hypernetwork
from latecomer.nets.net import Net
from latecomer.task import Batch, Task
from latecomer.tree import Tree

WEIGHTS, CLIENTS, EXAMPLES, K = 6, 9, 11, 2  # d, n, rows of X_i, and the size of an embedding
HYPER = Hypernetwork(K, {"theta": torch.Size([WEIGHTS])}, hidden=K, depth=0)  # two linear layers in a row


def clients() -> tuple[Tensor, Tensor]:
    """X [clients, examples, weights], whose columns are orthonormal, and y; no two singular values are close."""
    generator = torch.Generator().manual_seed(3)
    x = torch.linalg.qr(torch.randn(CLIENTS, EXAMPLES, WEIGHTS, generator=generator, dtype=torch.float64)).Q
    u = torch.linalg.qr(torch.randn(WEIGHTS, WEIGHTS, generator=generator, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(CLIENTS, WEIGHTS, generator=generator, dtype=torch.float64)).Q
    alone = v @ torch.diag(torch.tensor([9.0, 6.0, 3.0, 2.0, 1.0, 0.5], dtype=torch.float64)) @ u.T
    noise = torch.randn(CLIENTS, EXAMPLES, generator=generator, dtype=torch.float64)
    y = (x @ alone[..., None])[..., 0] + noise - (x @ (x.mT @ noise[..., None]))[..., 0]  # noise that nothing fits
    return x, y


X, Y = clients()
ALONE = (X.mT @ Y[..., None])[..., 0]  # [clients, weights]
LEFT = float((Y - (X @ ALONE[..., None])[..., 0]).square().sum())  # what no linear model can fit


def loss(weights: dict[str, Tensor], v: Tensor) -> Tensor:
    """The objective of the proposition, with the models that the library's hypernetwork makes."""
    theta = HYPER.generate(weights, v)["theta"]
    return (X @ theta[..., None] - Y[..., None]).square().sum()


def linear(w: Tensor, bias: Tensor | None = None) -> dict[str, Tensor]:
    """A hypernetwork that is W v, or W v + bias."""
    zero = torch.zeros(K, dtype=torch.float64)
    last = torch.zeros(WEIGHTS, dtype=torch.float64) if bias is None else bias
    return {"0.weight": torch.eye(K, dtype=torch.float64), "0.bias": zero, "1.weight": w, "1.bias": last}


def steepness(weights: dict[str, Tensor], v: Tensor, names: list[str]) -> float:
    """The largest number of the gradient by some weights and all embeddings."""
    moved = {name: leaf.clone().requires_grad_(name in names) for name, leaf in weights.items()}
    v = v.clone().requires_grad_()
    found = torch.autograd.grad(loss(moved, v), [*(moved[name] for name in names), v])
    return max(float(part.abs().max()) for part in found)


def test_the_data_are_as_the_proposition_asks() -> None:
    torch.testing.assert_close(X.mT @ X, torch.eye(WEIGHTS, dtype=torch.float64).expand(CLIENTS, -1, -1))
    assert torch.linalg.svdvals(ALONE).tolist() == pytest.approx([9, 6, 3, 2, 1, 0.5], abs=1e-12)


def test_pca_is_a_stationary_point_with_the_least_loss_there_can_be() -> None:
    u = torch.linalg.svd(ALONE.T).U[:, :K]
    weights, v = linear(u), ALONE @ u  # the top components, and the coefficients of each solution in them
    least = LEFT + 3**2 + 2**2 + 1**2 + 0.5**2  # Eckart and Young: the other singular values, squared
    assert float(loss(weights, v)) == pytest.approx(least, abs=1e-11)
    assert steepness(weights, v, ["1.weight"]) < 1e-10


def test_alternating_minimisation_from_anywhere_ends_in_pca() -> None:
    """The objective is convex in W and in V; each is minimised exactly in turn."""
    w = torch.randn(WEIGHTS, K, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for _ in range(80):  # the error falls by (3/6)^2 a turn
        v = ALONE @ w @ torch.linalg.inv(w.T @ w)
        w = ALONE.T @ v @ torch.linalg.inv(v.T @ v)
    check(linear(w), v)


def test_gradient_descent_on_the_hypernetwork_ends_in_pca() -> None:
    generator = torch.Generator().manual_seed(1)
    weights = linear(torch.randn(WEIGHTS, K, generator=generator, dtype=torch.float64))
    v = torch.randn(CLIENTS, K, generator=generator, dtype=torch.float64).requires_grad_()
    learned = [weights[name].requires_grad_() for name in ("0.weight", "1.weight")]
    options = {"max_iter": 500, "tolerance_grad": 1e-13, "tolerance_change": 0, "line_search_fn": "strong_wolfe"}
    descent = torch.optim.LBFGS([*learned, v], **options)  # type: ignore[arg-type]

    def step() -> Tensor:
        descent.zero_grad()
        now = loss(weights, v)
        now.backward()
        return now

    descent.step(step)
    near = 1e-7  # so near the optimum, steps no longer change the loss in double precision
    check({name: leaf.detach() for name, leaf in weights.items()}, v.detach(), near)


def check(weights: dict[str, Tensor], v: Tensor, near: float = 1e-9) -> None:
    """The models are those of PCA, whatever basis W and V are written in."""
    u = torch.linalg.svd(ALONE.T).U[:, :K]
    torch.testing.assert_close(HYPER.generate(weights, v)["theta"], ALONE @ u @ u.T, rtol=0, atol=near)
    assert float(loss(weights, v)) == pytest.approx(LEFT + 14.25, abs=1e-10)
    w = torch.linalg.qr(weights["1.weight"] @ weights["0.weight"]).Q
    torch.testing.assert_close(w @ w.T, u @ u.T, rtol=0, atol=near)


def test_with_the_bias_that_hypernetworks_have_it_is_pca_about_the_mean() -> None:
    mean = ALONE.mean(0)
    _, values, vt = torch.linalg.svd(ALONE - mean)
    u = vt[:K].T
    weights, v = linear(u, mean), (ALONE - mean) @ u
    assert float(loss(weights, v)) == pytest.approx(LEFT + float(values[K:].square().sum()), abs=1e-11)
    assert steepness(weights, v, ["1.weight", "1.bias"]) < 1e-10


class Regressor(nn.Linear):
    """x' theta. Labels are classes, so an example brings its y as its last number."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, :-1])


class Regression(Task):
    """The proposition's loss, |X theta - y|^2."""

    def loss(self, params: Tree, batch: Batch) -> Tensor:
        return (self.logits(params, batch.x)[:, 0] - batch.x[:, -1]).square().sum()


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_a_round_of_all_clients_is_a_step_along_the_gradient_of_the_proposition(engine: str) -> None:
    """As X_i'X_i = I, a full-batch step moves theta_i by 2 eta (alone_i - theta_i), and k of them by 1 - (1 - 2 eta)^k
    of the whole way. The server takes the mean of these through the chain rule; the gradient of the objective is the
    sum of 2 (theta_i - alone_i) through it. So a round is a step along it, times that share, divided by 2 n."""
    steps, eta, rate = 3, 0.1, 0.5
    examples = torch.cat([X, Y[..., None]], -1).flatten(0, 1).numpy()
    rows = np.arange(len(examples)).reshape(CLIENTS, EXAMPLES).tolist()
    labels = np.zeros(len(examples), np.int64)
    federation = Federation.from_arrays(examples, labels, train=rows, val=rows, test=rows, members=CLIENTS, classes=2)
    task = Regression(Net(lambda: Regressor(WEIGHTS, 1, bias=False)), (WEIGHTS + 1,), 2, torch.float64)
    local = {"steps": steps, "batch": EXAMPLES, "lr": eta, "momentum": 0.0, "weight_decay": 0.0, "clip": 0.0}
    server = {"server_lr": rate, "server_momentum": 0.0, "server_decay": 0.0, "embedding": K, "hidden": K, "depth": 0}
    method = PFedHN(task=task, clients=CLIENTS, members=CLIENTS, **local, **server)  # type: ignore[arg-type]

    generator = torch.Generator().manual_seed(2)
    weights = linear(torch.randn(WEIGHTS, K, generator=generator, dtype=torch.float64))
    v = torch.randn(CLIENTS, K, generator=generator, dtype=torch.float64)
    learned = {"hyper": weights, "embedding": v}
    state = {"ids": torch.arange(CLIENTS), "learned": learned, "optimiser": method.optimiser.init(learned)}
    after = method.round(state, Clients(make(engine, method, [federation], "cpu"), torch.arange(CLIENTS), 0))

    gradient = torch.func.grad(lambda at: loss(at["hyper"], at["embedding"]))(learned)
    share = (1 - (1 - 2 * eta) ** steps) / (2 * CLIENTS)
    for name, moved in tree.flatten(tree.sub(after["learned"], learned)).items():
        wanted = -rate * share * tree.flatten(gradient)[name]
        assert float(wanted.abs().max()) > 1e-3, name
        torch.testing.assert_close(moved, wanted, rtol=2e-8, atol=0)  # replies are divided by n in single precision
