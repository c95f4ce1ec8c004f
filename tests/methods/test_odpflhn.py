"""ODPFL-HN with two pooled units, a descriptor of two numbers and a hypernetwork of two small linear layers: by hand.

An example x has the features relu(p x + q), two numbers. The first is averaged over a client's examples, of the second
the largest counts. Pooled to u, the descriptor is v = P u + r, and the model is theta = B (A v + a) + c.

With error g at theta, B gets g (A v + a)^T, c gets g, A gets B^T g v^T, a gets B^T g and v gets d = A^T B^T g. Of that,
P gets d u^T, r gets d and u gets P^T d, whose first number is shared by all examples and whose second belongs to the
one with the largest feature.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from byhand import descend, flat, linear_task, owners, shortening, tensor
from torch.func import vmap

import toys
from latecomer import tree
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.engines.flower.app import client_app
from latecomer.engines.flower.engine import Flower
from latecomer.engines.flower.grid import LocalGrid
from latecomer.engines.home import Homes, PackedHome
from latecomer.errors import LatecomerError, SettingError
from latecomer.methods.odpflhn import ODPFLHN

X, Y = [[1.0], [2.0], [-1.5], [0.5], [3.0], [-0.25]], [0, 1, 0, 1, 1, 0]
ROWS = [[0], [1, 2, 3], [4], [5, 4]]
FEDERATION = owners(X, Y, ROWS, members=3)  # client 3 is a latecomer
PARTLY = dataclasses.replace(FEDERATION, labelled=torch.tensor([True, True, False, False]))
START = {
    "p": np.array([0.6, -0.8]),
    "q": np.array([0.9, 0.3]),
    "P": np.array([[0.7, -0.4], [0.1, 0.9]]),
    "r": np.array([0.3, -0.2]),
    "A": np.array([[0.5, 0.2], [-0.3, 0.8]]),
    "a": np.array([0.1, 0.2]),
    "B": np.array([[0.4, -0.1], [0.2, 0.6], [-0.5, 0.3], [0.1, 0.7]]),
    "c": np.array([0.05, -0.15, 0.25, -0.35]),
    "E": np.array([[1.2, -0.3], [-0.7, 0.6], [0.4, 0.5]]),
}
LOCAL = {"lr": 0.3, "momentum": 0.5}
RATES = {"server": "sgd", "server_lr": 0.2, "encoder_lr": 0.1, "imitate_lr": 0.1, "embedding_lr": 0.4}
DECAY = 0.01
HYPER, ENCODER = ("A", "a", "B", "c"), ("p", "q", "P", "r")


def build(**settings: Any) -> tuple[ODPFLHN, dict[str, Any]]:
    fixed = {"epochs": 2, "batch": 4, "width": 2, "descriptor": 2, "hidden": 2, "depth": 0, "clip": 0.0}
    rules = {"weight_decay": 0.1, "server_momentum": 0.9, "server_decay": DECAY, **LOCAL, **RATES}
    method = ODPFLHN(task=linear_task(1), clients=4, members=3, **fixed | rules | settings)
    values = {name: tensor(value) for name, value in START.items()}
    learned = {
        "hyper": {"0.weight": values["A"], "0.bias": values["a"], "1.weight": values["B"], "1.bias": values["c"]},
        "encoder": {
            "phi": {"1.weight": values["p"][:, None], "1.bias": values["q"]},
            "psi": {"0.weight": values["P"], "0.bias": values["r"]},
        },
    }
    if method.training == "two-phases":
        learned["embedding"] = values["E"]
    state = method.init(torch.Generator().manual_seed(0))
    assert tree.flatten(state["learned"]).keys() == tree.flatten(learned).keys()
    return method, state | {"learned": learned, "optimiser": method.optimiser.init(learned)}


def letters(state: dict[str, Any]) -> dict[str, np.ndarray]:
    """What a state has learned, under the names used here."""
    learned = state["learned"]
    hyper, phi, psi = learned["hyper"], learned["encoder"]["phi"], learned["encoder"]["psi"]
    found = dict(zip(HYPER, (hyper[name] for name in ("0.weight", "0.bias", "1.weight", "1.bias")), strict=True))
    found |= {"p": phi["1.weight"][:, 0], "q": phi["1.bias"], "P": psi["0.weight"], "r": psi["0.bias"]}
    return {name: value.numpy() for name, value in found.items()} | (
        {"E": learned["embedding"].numpy()} if "embedding" in learned else {}
    )


def described(now: dict[str, np.ndarray], rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The descriptor of some examples, and what it was made of."""
    features = np.maximum(np.array(X)[rows] * now["p"] + now["q"], 0)
    pooled = np.array([features[:, 0].mean(), features[:, 1].max()])
    return now["P"] @ pooled + now["r"], pooled


def encoder_gradient(now: dict[str, np.ndarray], rows: list[int], d: np.ndarray) -> dict[str, np.ndarray]:
    """Of an encoder whose descriptor has the error d."""
    x = np.array(X)[rows]
    before = x * now["p"] + now["q"]
    _, pooled = described(now, rows)
    back = now["P"].T @ d
    share = np.stack([np.full(len(rows), 1 / len(rows)), np.arange(len(rows)) == before[:, 1].argmax()], 1)
    wrong = back * share * (before > 0)
    return {"p": (wrong * x).sum(0), "q": wrong.sum(0), "P": np.outer(d, pooled), "r": d}


def generated(now: dict[str, np.ndarray], v: np.ndarray) -> np.ndarray:
    return now["B"] @ (now["A"] @ v + now["a"]) + now["c"]


def error(client: int, theta: np.ndarray) -> np.ndarray:
    """The negative of what local training adds to a model."""
    x, y = np.array(X)[ROWS[client]], np.array(Y)[ROWS[client]]
    return theta - descend(theta, x, y, 2, decay=0.1, **LOCAL)


def hyper_gradient(now: dict[str, np.ndarray], v: np.ndarray, g: np.ndarray) -> dict[str, np.ndarray]:
    back = now["B"].T @ g
    return {"A": np.outer(back, v), "a": back, "B": np.outer(g, now["A"] @ v + now["a"]), "c": g}


def mean(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}


def check(state: dict[str, Any], wanted: dict[str, np.ndarray]) -> None:
    found = letters(state)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name


def stepped(now: dict[str, np.ndarray], gradient: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The server's first step: no velocity yet, weight decay, and a rate of their own for the three parts."""
    rate = {**dict.fromkeys(HYPER, 0.2), **dict.fromkeys(ENCODER, 0.1), "E": 0.4}
    return {
        name: value - rate[name] * (gradient[name] + DECAY * value) if name in gradient else value
        for name, value in now.items()
    }


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_a_round_end_to_end(engine: str) -> None:
    method, state = build()
    spy = toys.Spy(make(engine, method, [FEDERATION], "cpu"))
    after = method.round(state, Clients(spy, torch.tensor([0, 1]), 0))
    assert [step for step, _ in spy.asks] == ["describe", "fit", "backprop"]
    (_, describe), (_, fit), (_, backprop) = spy.asks
    now = {name: value for name, value in START.items() if name != "E"}

    v = np.stack([described(now, ROWS[k])[0] for k in (0, 1)])
    assert describe.collector.replies().each["v"].numpy() == pytest.approx(v, abs=1e-12)
    theta = np.stack([generated(now, row) for row in v])
    assert flat(fit.each["params"]) == pytest.approx(theta, abs=1e-12)
    g = np.stack([error(k, theta[k]) for k in (0, 1)])
    d = g @ now["B"] @ now["A"]
    assert backprop.each["dv"].numpy() == pytest.approx(d, abs=1e-12)
    assert backprop.shared == {}, "the encoder does not travel again"

    gradient = mean([hyper_gradient(now, v[k], g[k]) | encoder_gradient(now, ROWS[k], d[k]) for k in (0, 1)])
    check(after, stepped(now, gradient))


@pytest.mark.parametrize("training", ["end-to-end", "two-phases"])
def test_a_member_without_labels_takes_part_and_counts_for_nothing(training: str) -> None:
    method, state = build(training=training)
    engine = make("vector", method, [PARTLY], "cpu")
    ledger: list[Any] = []
    with_it = method.round(state, Clients(engine, torch.tensor([0, 1, 2]), 0, ledger=ledger))
    without = method.round(state, Clients(engine, torch.tensor([0, 1]), 0))
    assert all(int(exchange.answered.sum()) == 3 for exchange in ledger)
    assert toys.gap(with_it, without) < 1e-12
    nobody = method.round(state, Clients(engine, torch.tensor([2]), 0))
    check(nobody, stepped(letters(state), {name: 0 * value for name, value in START.items() if moves(name, training)}))


def moves(name: str, training: str) -> bool:
    """What the server's weight decay shrinks when there is nothing to learn from."""
    return name in HYPER or name in (ENCODER if training == "end-to-end" else "E")


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_the_first_of_two_phases(engine: str) -> None:
    """pFedHN's round, and beside it two steps of every client's encoder along |v - e|^2; the server averages them."""
    method, state = build(training="two-phases", encoder_steps=2)
    spy = toys.Spy(make(engine, method, [FEDERATION], "cpu"))
    after = method.round(state, Clients(spy, torch.tensor([0, 1]), 0))
    ((step, ask),) = spy.asks
    assert step == "fit_and_imitate"
    assert ask.each["embedding"].numpy() == pytest.approx(START["E"][:2])

    now, trained = dict(START), []
    for k in (0, 1):
        mine = dict(START)
        for _ in range(2):
            slope = encoder_gradient(mine, ROWS[k], 2 * (described(mine, ROWS[k])[0] - now["E"][k]))
            mine |= {name: mine[name] - 0.1 * slope[name] for name in ENCODER}
        trained.append({name: mine[name] for name in ENCODER})
    g = [error(k, generated(now, now["E"][k])) for k in (0, 1)]
    gradient = mean([hyper_gradient(now, now["E"][k], g[k]) for k in (0, 1)])
    table = np.zeros((3, 2))
    table[:2] = np.stack(g) @ now["B"] @ now["A"] / 2
    check(after, stepped(now, gradient | {"E": table}) | mean(trained))


def test_fine_tuning_moves_the_hypernetwork_and_nothing_else() -> None:
    method, state = build(training="two-phases", first_phase=5)
    spy = toys.Spy(make("vector", method, [FEDERATION], "cpu"))
    after = method.round(state, Clients(spy, torch.tensor([0, 1]), 5))
    assert [step for step, _ in spy.asks] == ["describe", "fit"]
    v = [described(START, ROWS[k])[0] for k in (0, 1)]
    gradient = mean([hyper_gradient(START, v[k], error(k, generated(START, v[k]))) for k in (0, 1)])
    check(after, stepped(START, gradient))


def test_the_phase_follows_from_the_round() -> None:
    """So a run that is resumed goes on in its phase, and the server need not wait for a GPU to know it."""
    method, state = build(training="two-phases", first_phase=2)
    engine, steps = make("vector", method, [FEDERATION], "cpu"), []
    for number in range(4):
        ledger: list[Any] = []
        state = method.round(state, Clients(engine, torch.tensor([0, 1]), number, ledger=ledger))
        steps.append(ledger[0].step)
    assert steps == ["fit_and_imitate", "fit_and_imitate", "describe", "describe"]


def test_each_part_is_clipped_on_its_own() -> None:
    method, state = build(clip=0.2)
    after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([1]), 0))
    now = {name: value for name, value in START.items() if name != "E"}
    v, _ = described(now, ROWS[1])
    x, y, theta = np.array(X)[ROWS[1]], np.array(Y)[ROWS[1]], generated(now, v)
    g = theta - descend(theta, x, y, 2, decay=0.1, clip=0.2, **LOCAL)
    parts = [hyper_gradient(now, v, g), encoder_gradient(now, ROWS[1], now["A"].T @ now["B"].T @ g)]
    factors = [shortening(np.concatenate([part.ravel() for part in each.values()]), 0.2) for each in parts]
    assert factors[0] < 0.95, "the hypernetwork's gradient is longer than the limit"
    assert factors[0] != pytest.approx(factors[1])
    clipped = [
        {name: part * factor for name, part in each.items()} for each, factor in zip(parts, factors, strict=True)
    ]
    check(after, stepped(now, clipped[0] | clipped[1]))


def test_a_latecomer_needs_one_exchange_and_no_labels() -> None:
    method, state = build()
    spy = toys.Spy(make("vector", method, [PARTLY], "cpu"))
    sent = method.personalise(state, Clients(spy, torch.tensor([3]), -1, scratch=1))
    assert [step for step, _ in spy.asks] == ["request"]
    assert flat(sent.each["params"]) == pytest.approx(generated(START, described(START, ROWS[3])[0])[None], abs=1e-12)


def test_a_descriptor_by_parts_is_their_mean() -> None:
    """Three examples in parts of two: a pair and a single one, which pair the hash decides."""
    method, state = build(describe_by=2)
    engine = make("vector", method, [FEDERATION], "cpu")
    found = Clients(engine, torch.tensor([1]), 0).run(method.describe, shared={"encoder": state["learned"]["encoder"]})
    rows = ROWS[1]
    ways = [(2 * described(START, [k for k in rows if k != one])[0] + described(START, [one])[0]) / 3 for one in rows]
    assert min(np.abs(found.each["v"][0].numpy() - way).max() for way in ways) < 1e-12
    assert np.ptp(np.stack(ways), 0).min() > 1e-3, "the parts matter"


# privacy


def private(**settings: Any) -> tuple[ODPFLHN, dict[str, Any]]:
    return build(**{"epsilon": 1.5, "delta": 1e-4, "pool": "mean", "bound": 0.7} | settings)


def home(client: int, turn: int | torch.Tensor) -> PackedHome:
    homes = Homes([FEDERATION], torch.device("cpu"), torch.float64)
    return PackedHome(homes, homes.client_rows(0, torch.tensor([client]))[0], torch.as_tensor(turn), {})


def test_a_bounded_descriptor() -> None:
    """Features no longer than B, averaged, in units of B / sqrt(width); then psi. Parts make no difference."""
    method, state = private()
    found = method.describe(home(1, 0), encoder=state["learned"]["encoder"])["v"].numpy()
    features = np.maximum(np.array(X)[ROWS[1]] * START["p"] + START["q"], 0)
    features *= np.minimum(1, 0.7 / np.linalg.norm(features, axis=1, keepdims=True))
    assert found == pytest.approx(START["P"] @ features.mean(0) * np.sqrt(2) / 0.7 + START["r"], abs=1e-12)
    by_parts, _ = private(describe_by=2)
    assert by_parts.describe(home(1, 0), encoder=state["learned"]["encoder"])["v"].numpy() == pytest.approx(found)


@pytest.mark.parametrize("client", [0, 1])
def test_noise_is_as_large_as_the_promise_takes(client: int) -> None:
    """Before psi it is the analytic mechanism's for the sensitivity sqrt(2) B / |D|, over 3000 rounds."""
    method, state = private()
    encoder = state["learned"]["encoder"]
    clean = method.describe(home(client, 0), encoder=encoder)["v"]
    turns = torch.arange(3000)
    moved = vmap(lambda turn: method.request(home(client, turn), encoder=encoder)["v"])(turns) - clean
    noise = moved @ torch.linalg.inv(tensor(START["P"])).T * 0.7 / np.sqrt(2)

    def too_likely(s: float) -> float:
        phi = scipy.stats.norm.cdf
        return phi(1 / (2 * s) - 1.5 * s) - np.exp(1.5) * phi(-1 / (2 * s) - 1.5 * s) - 1e-4

    sigma = scipy.optimize.brentq(too_likely, 0.1, 100)
    wanted = sigma * np.sqrt(2) * 0.7 / len(ROWS[client])
    assert noise.std().item() == pytest.approx(wanted, rel=0.03)
    assert noise.mean(0).abs().max().item() < 4 * wanted / np.sqrt(3000)


def test_members_describe_themselves_without_noise_in_training() -> None:
    noisy, state = private()
    clear, _ = private(epsilon=0.0)
    rounds = [
        method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([0, 1]), 0))
        for method in (noisy, clear)
    ]
    assert toys.same(*rounds)


def requests(engine: Any, method: Any, state: Any) -> torch.Tensor:
    clients = Clients(engine, torch.arange(len(toys.TRAIN)), -1, scratch=1)
    return clients.run(method.request, shared={"encoder": state["learned"]["encoder"]}).each["v"]


def test_simulated_noise_is_the_same_on_every_engine_and_real_noise_is_nobodys() -> None:
    method = toys.method("odpflhn-private", torch.float64)
    state, federation = toys.start(method), toys.federation()
    simulated = [requests(toys.engine(name, method, [federation]), method, state) for name in toys.ENGINES]
    for other in simulated[1:]:
        assert toys.gap({"v": simulated[0]}, {"v": other}) < 1e-9
    clear = toys.method("odpflhn-private", torch.float64, epsilon=0.0)
    bare = requests(toys.engine("vector", clear, [federation]), clear, state)
    app = client_app(method, [federation])  # as a client that is real would make it
    real = [requests(Flower(method, LocalGrid(app)), method, state) for _ in range(2)]
    noises = [found - bare for found in (simulated[0], *real)]
    assert all(noise.abs().min() > 0 for noise in noises)
    correlations = torch.corrcoef(torch.stack([noise.flatten() for noise in noises]))
    assert correlations.fill_diagonal_(0).abs().max() < 0.9
    assert not torch.equal(real[0], real[1])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"bound": 0.0}, "--epsilon needs a --bound on the features, 1 say, with --pool mean."),
        ({"pool": "mean-max"}, "--bound goes with --pool mean: it limits what one example does to a mean."),
        ({"epsilon_budget": 1.0}, "--epsilon-budget must be 0, or at least the 1.5 of --epsilon that one answer"),
        ({"epsilon": -1.0}, "--epsilon must be at least 0; got -1.0."),
        ({"epsilon": float("inf")}, "--epsilon must be at least 0; got inf."),
        ({"epsilon": 1e308}, "--epsilon and --epsilon-budget must be at most 1e+06, where nothing is private any more"),
        ({"epsilon": float("nan")}, "--epsilon must be at least 0; got nan."),
        ({"delta": 0.0}, "--delta must be greater than 0 and at most 0.999; got 0.0."),
        ({"delta": 1.0}, "--delta must be greater than 0 and at most 0.999; got 1.0."),
    ],
)
def test_promises_that_cannot_be_kept(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        private(**settings)
    assert str(caught.value).startswith(sentence)


def test_codes_cannot_be_encoded() -> None:
    task = dataclasses.replace(linear_task(1), dtype=torch.int64)
    with pytest.raises(LatecomerError, match=r"takes images or numbers; an example here is made of torch.int64 codes"):
        ODPFLHN(task=task, clients=4, members=3)
