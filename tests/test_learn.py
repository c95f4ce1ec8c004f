"""Local training against torch.optim, and that padding moves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

import toys
from latecomer import learn, tree
from latecomer.ops import lengths, sgd
from latecomer.ops.cross_entropy import cross_entropy
from latecomer.task import Batch
from latecomer.tree import Tree

TASK = toys.task(torch.float64)
START = toys.double(TASK.model.fresh(torch.Generator().manual_seed(3)))


def batches(count: int, size: int = 6) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        Batch(
            torch.randn(size, 1, 8, 8, generator=generator, dtype=torch.float64),
            torch.randint(10, (size,), generator=generator),
            torch.ones(size, dtype=torch.bool),
        )
        for _ in range(count)
    ]


def padding(size: int = 6) -> Batch:
    return Batch(torch.full((size, 1, 8, 8), 5.0, dtype=torch.float64), torch.zeros(size).long(), torch.zeros(size) > 0)


def unlabelled(size: int = 6) -> Batch:
    return Batch(torch.ones(size, 1, 8, 8, dtype=torch.float64), torch.full((size,), -1), torch.ones(size) > 0)


def by_torch(batches: list[Batch], clip: float = 0.0, **settings: float) -> dict[str, Tensor]:
    model = toys.small_model().double()
    model.load_state_dict(START)
    optimiser = torch.optim.SGD(model.parameters(), **settings)
    for batch in batches:
        optimiser.zero_grad()
        with torch.enable_grad():
            nn.functional.cross_entropy(model(batch.x), batch.y).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
    return dict(model.state_dict())


SETTINGS: list[dict[str, float]] = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "weight_decay": 0.3},
    {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.1, "clip": 0.2},
    {"lr": 0.1, "clip": 1e6},
]


@pytest.fixture(autouse=True, params=["torch.func", "autograd"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where gradients are off and nothing is mapped, as in the loop engine, plain autograd finds them."""
    with torch.set_grad_enabled(request.param == "torch.func"):
        yield


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_same_steps_as_torch(settings: dict[str, float]) -> None:
    some = batches(5)
    found = learn.SGD(**settings)(TASK.loss, START, some)
    assert toys.gap(found, by_torch(some, **settings)) < 1e-12


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("nothing", [padding, unlabelled])
def test_a_batch_without_a_labelled_example_changes_nothing(settings: dict[str, float], nothing: Any) -> None:
    """Momentum and weight decay would move the weights, and a step's momentum would fade, where there is nothing."""
    rule, some = learn.SGD(**settings), batches(3)
    spread = [nothing(), some[0], nothing(), some[1], nothing(), nothing(), some[2], nothing()]
    assert toys.same(rule(TASK.loss, START, spread), rule(TASK.loss, START, some))
    assert toys.same(rule(TASK.loss, START, [nothing()]), START)


@pytest.mark.parametrize("settings", SETTINGS)
def test_padding_inside_a_batch_weighs_nothing(settings: dict[str, float]) -> None:
    some = batches(3, size=4)
    padded = [
        Batch(torch.cat([b.x, padding(3).x]), torch.cat([b.y, padding(3).y]), torch.cat([b.real, padding(3).real]))
        for b in some
    ]
    assert toys.gap(learn.SGD(**settings)(TASK.loss, START, padded), by_torch(some, **settings)) < 1e-12


def test_unlabelled_examples_weigh_nothing() -> None:
    (batch,) = batches(1)
    hidden = Batch(batch.x, torch.where(torch.arange(6) < 2, batch.y, -1), batch.real)
    first = Batch(batch.x[:2], batch.y[:2], batch.real[:2])
    assert float(TASK.loss(START, hidden)) == pytest.approx(float(TASK.loss(START, first)), abs=1e-12)


def test_change_is_what_the_steps_add() -> None:
    some, rule = batches(2), learn.SGD(0.1, momentum=0.9)
    change = rule.change(TASK.loss, START, some)
    assert toys.gap(tree.add(START, change), rule(TASK.loss, START, some)) < 1e-15
    assert max(float(leaf.abs().max()) for leaf in tree.leaves(change)) > 0.01


def test_the_start_stays_as_it_was() -> None:
    kept = tree.map(torch.clone, START)
    learn.SGD(0.1, momentum=0.9, weight_decay=0.1, clip=0.1)(TASK.loss, START, batches(2))
    assert toys.same(START, kept)


def test_clients_in_one_map_learn_what_each_would_alone() -> None:
    rule, some = learn.SGD(0.1, momentum=0.9, weight_decay=0.1, clip=0.5), batches(2)
    rows = tree.map(lambda leaf: torch.stack([leaf, leaf * 0.5]), START)

    def fit(params: Any) -> Any:
        return rule(TASK.loss, params, some)

    together = vmap(fit, randomness="error")(rows)
    for k in range(2):
        assert toys.gap(tree.row(together, k), fit(tree.row(rows, k))) < 1e-12


@pytest.mark.parametrize("settings", SETTINGS)
def test_who_does_not_move_in_a_map_keeps_weights_and_velocity(settings: dict[str, float]) -> None:
    rule, generator = learn.SGD(**settings), torch.Generator().manual_seed(2)
    weights, velocity, gradient = torch.randn(3, 4, 9, generator=generator, dtype=torch.float64).unbind()
    moving = torch.tensor([True, False, True, False])
    velocity = vmap(lambda row: sgd.at_rest(row, rule.momentum))(weights) + velocity[:, : 9 if rule.momentum else 0]

    def step(*inputs: Any) -> tuple[Tensor, Tensor]:
        return sgd.step(*inputs, *rule.rates)

    found = vmap(step)(weights, gradient.split([4, 5], 1), velocity, moving)
    for k in range(4):
        alone = step(weights[k], gradient[k].split([4, 5]), velocity[k], moving[k])
        for ours, expected, before in zip(found, alone, (weights, velocity), strict=True):
            torch.testing.assert_close(ours[k], expected if moving[k] else before[k], rtol=1e-14, atol=1e-14)
            assert bool(moving[k]) or torch.equal(ours[k], before[k])


@pytest.mark.parametrize("classes", [2, 10, 40])
def test_cross_entropy_of_few_classes_is_the_same_in_a_map(classes: int) -> None:
    """Where rows are shorter than a vector of the CPU, a map takes them as columns."""
    generator = torch.Generator().manual_seed(2)
    logits = 5 * torch.randn(3, 7, classes, generator=generator)
    y = torch.randint(-1, classes, (3, 7), generator=generator)
    weight = (y >= 0).float()
    gradients, values = vmap(grad_and_value(cross_entropy))(logits, y, weight)
    for k in range(3):
        row = logits[k].clone().requires_grad_()
        with torch.enable_grad():
            value = cross_entropy(row, y[k], weight[k])
        (gradient,) = torch.autograd.grad(value, row)
        torch.testing.assert_close(values[k], value.detach(), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(gradients[k], gradient, rtol=1e-6, atol=1e-7)


def test_cross_entropy_of_a_single_example_can_be_mapped() -> None:
    logits, y = torch.randn(3, 4, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 3, 2])
    found = vmap(cross_entropy)(logits, y, torch.ones(3))
    torch.testing.assert_close(found, nn.functional.cross_entropy(logits, y, reduction="none"))


@pytest.mark.parametrize("length", [0.0, 1e-12, 0.5, 2.0, 1e6])
def test_clipping_never_lengthens_and_never_exceeds(length: float) -> None:
    vector = torch.tensor([0.6, 0.8], dtype=torch.float64) * length
    factor = float(lengths.clip_factor(lengths.length(vector), 1.0))
    assert 0 < factor <= 1
    assert factor * length <= 1.0
    assert factor == pytest.approx(1.0 if length <= 0.5 else 1 / length, rel=1e-5)


def test_proximal_term_pulls_back_to_the_anchor() -> None:
    params, anchor = {"w": torch.tensor([3.0, 1.0])}, {"w": torch.tensor([1.0, 0.0])}
    total = learn.proximal(lambda params, batch: params["w"].sum(), anchor, 0.5)
    assert total(params, None).item() == pytest.approx(4 + 0.25 * (4 + 1))
    assert torch.func.grad(total)(params, None)["w"].tolist() == pytest.approx([2.0, 1.5])


def test_a_flat_gradient_lies_end_to_end() -> None:
    (batch,) = batches(1)
    by_tree = torch.func.grad(TASK.loss)(START, batch)
    assert torch.equal(learn.flat_gradient(TASK.loss, START)(tree.ravel(START), batch), tree.ravel(by_tree, like=START))


def test_a_loss_may_learn_from_examples_without_labels_but_not_from_padding() -> None:
    def to_zero(params: Any, batch: Batch) -> Tensor:
        return torch.stack([leaf.square().sum() for leaf in tree.leaves(params)]).sum() / 2

    optimiser = learn.SGD(0.1, momentum=0.9, weight_decay=0.1)
    once = optimiser(to_zero, START, [unlabelled()], learn.inhabited)
    assert toys.gap(once, tree.scale(START, 1 - 0.1 * 1.1)) < 1e-12
    assert toys.same(optimiser(to_zero, START, [unlabelled(), padding()], learn.inhabited), once)
    assert toys.same(optimiser(to_zero, START, [unlabelled()]), START)


@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_halves_of_a_batch(size: int) -> None:
    for count in range(size + 1):
        x = torch.arange(1.0, size + 1)[:, None]
        first, second = Batch(x, x[:, 0].long(), torch.arange(size) < count).halves()
        assert len(first.real) == len(second.real) == (size + 1) // 2
        assert first.x[first.real, 0].tolist() == list(range(1, 1 + (count + 1) // 2))
        assert second.y[second.real].tolist() == list(range(1 + (count + 1) // 2, count + 1))
    everything = vmap(lambda real: Batch(x, x[:, 0].long(), real).halves()[1].real)(torch.ones(3, size) > 0)
    assert everything.sum().item() == 3 * (size // 2)


def test_a_gradient_of_training_reaches_what_only_the_loss_knows() -> None:
    """Training within a loss: what it is differentiated by need not be among the weights that are trained."""
    (batch,) = batches(1)
    start = torch.ones(3, dtype=torch.float64)

    def inner(params: Tree, _batch: Batch, pull: Tensor) -> Tensor:
        return (pull * params["w"]).sum()

    def outer(params: Tree, batch: Batch) -> Tensor:
        moved = learn.SGD(0.1)(lambda w, b: inner(w, b, params["pull"]), {"w": start}, [batch])
        return moved["w"].square().sum()

    found = learn.gradient(outer, {"pull": start}, batch)
    assert toys.gap(found, {"pull": -2 * 0.1 * (start - 0.1)}) < 1e-12


def test_weights_that_the_loss_does_not_know_stay() -> None:
    (batch,) = batches(1)
    params = {"known": torch.ones(2), "unknown": torch.ones(2)}
    moved = learn.SGD(0.5)(lambda some, _: some["known"].sum(), params, [batch])
    assert moved["known"].tolist() == [0.5, 0.5]
    assert moved["unknown"].tolist() == [1.0, 1.0]
    assert learn.gradient(lambda _some, _: torch.ones(()), params, batch)["known"].tolist() == [0.0, 0.0]
