"""Server optimisers against torch.optim, step by step, and that they change nothing in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import vmap

import toys
from latecomer import learn, optim, tree
from latecomer.tree import Tree


def some(seed: int) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    return {
        "hyper": {
            "w": torch.randn(3, 4, generator=generator).double(),
            "b": torch.randn(3, generator=generator).double(),
        },
        "scalar": torch.randn((), generator=generator).double(),
    }


def by_torch(kind: Any, gradients: list[Tree], clip: float, **settings: Any) -> list[Tree]:
    """The weights after every step."""
    weights = {path: nn.Parameter(leaf.clone()) for path, leaf in tree.flatten(some(0)).items()}
    optimiser = kind(weights.values(), **settings)
    seen = []
    for gradient in gradients:
        for path, leaf in tree.flatten(gradient).items():
            weights[path].grad = leaf.clone()
        if clip:
            nn.utils.clip_grad_norm_(weights.values(), clip)
        optimiser.step()
        seen.append(tree.unflatten({path: weight.detach().clone() for path, weight in weights.items()}))
    return seen


CASES: list[tuple[Any, dict[str, Any], Any, dict[str, Any]]] = [
    (learn.SGD, {"lr": 0.1}, torch.optim.SGD, {"lr": 0.1}),
    (
        learn.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2},
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.2},
    ),
    (optim.Adam, {"lr": 0.1}, torch.optim.Adam, {"lr": 0.1}),
    (
        optim.Adam,
        {"lr": 0.1, "betas": (0.8, 0.9), "epsilon": 0.01},
        torch.optim.Adam,
        {"lr": 0.1, "betas": (0.8, 0.9), "eps": 0.01},
    ),
]


@pytest.fixture(autouse=True, params=["by torch", "as formulas"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU takes PyTorch's fused kernels, which cannot be mapped; then, and without Triton, the formulas stand."""
    if request.param == "as formulas":
        monkeypatch.setattr("latecomer.ops.by_torch.fits", lambda leaves: False)


@pytest.mark.parametrize("clip", [0.0, 0.5, 1e6])
@pytest.mark.parametrize(("ours", "settings", "theirs", "their_settings"), CASES)
def test_the_same_steps_as_torch(ours: Any, settings: Any, theirs: Any, their_settings: Any, clip: float) -> None:
    gradients = [some(seed) for seed in range(1, 6)]
    gradients[2] = tree.map(torch.zeros_like, gradients[2])
    optimiser = ours(**settings, clip=clip)
    params = some(0)
    state = toys.double(optimiser.init(params))
    for gradient, expected in zip(gradients, by_torch(theirs, gradients, clip, **their_settings), strict=True):
        params, state = optimiser.step(params, gradient, state)
        assert toys.gap(params, expected) < 1e-12


@pytest.mark.parametrize("optimiser", [learn.SGD(0.1, 0.9, 0.1, 0.5), optim.Adam(0.1, clip=0.5)])
def test_a_step_changes_nothing_in_place(optimiser: Any) -> None:
    params, gradient = some(0), some(1)
    _, state = optimiser.step(params, gradient, optimiser.init(params))
    before = [tree.map(torch.clone, values) for values in (params, gradient, state)]
    once = optimiser.step(params, gradient, state)
    again = optimiser.step(params, gradient, state)
    assert all(toys.same(a, b) for a, b in zip(before, (params, gradient, state), strict=True))
    assert all(toys.same(a, b) for a, b in zip(once, again, strict=True))
    assert not toys.same(once[0], params)


def test_the_state_is_a_tree_of_tensors() -> None:
    """So that a checkpoint can hold it."""
    assert learn.SGD(0.1).init(some(0)) == {}
    assert learn.SGD(0.1, momentum=0.9).init(some(0))["velocity"].shape == (16,)
    adam = optim.Adam(0.1).init(some(0))
    assert {key: tuple(leaf.shape) for key, leaf in adam.items()} == {"first": (16,), "second": (16,), "count": ()}
    assert adam["first"].data_ptr() != adam["second"].data_ptr()


def test_parts_move_by_rules_of_their_own() -> None:
    rules = {"hyper": learn.SGD(0.5, momentum=0.9), "scalar": optim.Adam(0.1)}
    parts, params = optim.Parts(rules), some(0)
    state = parts.init(params)
    for seed in (1, 2):
        gradient = some(seed)
        alone = {
            name: rule.step({name: params[name]}, {name: gradient[name]}, state[name]) for name, rule in rules.items()
        }
        params, state = parts.step(params, gradient, state)
        assert toys.same(params, {name: moved[name] for name, (moved, _) in alone.items()})
        assert toys.same(state, {name: memory for name, (_, memory) in alone.items()})
    after, kept = parts.step(params, {"scalar": some(3)["scalar"]}, state)
    assert toys.same(after["hyper"], params["hyper"]), "no gradient, no step: not even by momentum"
    assert toys.same(kept["hyper"], state["hyper"])
    assert after["scalar"] != params["scalar"]


def test_parts_of_one_kind() -> None:
    rates = {"hyper": 0.5, "scalar": 0.1}
    assert optim.parts("adam", rates, 0.9, 0.01, 5.0).rules == {
        "hyper": optim.Adam(0.5, clip=5.0),
        "scalar": optim.Adam(0.1, clip=5.0),
    }
    assert optim.parts("sgd", rates, 0.9, 0.01, 5.0).rules["scalar"] == learn.SGD(0.1, 0.9, 0.01, 5.0)


def test_a_step_can_be_mapped() -> None:
    rows = [some(seed) for seed in (1, 2)]
    adam, params = optim.Adam(0.1, clip=0.5), some(0)
    state = toys.double(adam.init(params))
    mapped = vmap(lambda gradient: adam.step(params, gradient, state)[0])(tree.stack(rows))
    for k, row in enumerate(rows):
        assert toys.gap(tree.row(mapped, k), adam.step(params, row, state)[0]) < 1e-12


def test_weights_may_shrink_before_a_step() -> None:
    adam, params, gradient = optim.Adam(0.1, clip=0.5), some(0), some(1)
    state = toys.double(adam.init(params))
    smaller = {"hyper": tree.scale(params["hyper"], 0.5), "scalar": params["scalar"] * 0.25}
    expected, _ = adam.step(smaller, gradient, state)
    found, _ = adam.step(params, gradient, state, {"hyper": 0.5, "scalar": 0.25})
    assert toys.gap(found, expected) < 1e-12


@pytest.mark.parametrize("optimiser", [learn.SGD(0.1, 0.9), optim.Adam(0.1), optim.Adam(0.1, clip=1e6)])
def test_gradients_may_lie_anywhere(optimiser: Any) -> None:
    """A sum's gradient is one number, expanded; others are columns, or every second number."""
    params = {"a": torch.zeros(5), "b": torch.zeros(2, 3), "c": torch.zeros(4)}
    strided = {"a": torch.ones(()).expand(5), "b": torch.arange(6.0).view(3, 2).t(), "c": torch.arange(8.0)[::2]}
    plain = {name: leaf.clone().contiguous() for name, leaf in strided.items()}
    found, expected = (optimiser.step(params, gradient, optimiser.init(params)) for gradient in (strided, plain))
    assert all(toys.gap(a, b) < 1e-7 for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("optimiser", [learn.SGD(0.1, 0.9, clip=1.0), optim.Adam(0.1, clip=1.0)])
def test_nothing_to_learn(optimiser: Any) -> None:
    assert optimiser.step({}, {}, optimiser.init({}))[0] == {}
