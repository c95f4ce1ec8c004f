"""How `vmap` and gradients reach the kernels of arithmetic, with plain PyTorch in their place (test_cuda.py has the
real ones)."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from latecomer.learn import SGD
from latecomer.ops import adam, by_torch, cross_entropy, examples, mapping, sgd, shuffle, sums

GENERATOR = torch.Generator().manual_seed(0)


def each(function: Callable[..., Any], *arrays: Tensor) -> Any:
    """Row by row: what is not mapped takes the plain operations."""
    rows = [function(*row) for row in zip(*arrays, strict=True)]
    return tuple(map(torch.stack, zip(*rows, strict=True))) if isinstance(rows[0], tuple) else torch.stack(rows)


def step_of_rows(weights: Tensor, velocity: Tensor, moving: Tensor, *rest: Any) -> Any:
    rates, gradient = rest[:4], rest[4:]
    joined = torch.cat(gradient, 1)
    return each(lambda w, v, m, g: sgd.step(w, [g], v, m, *rates), weights, velocity, moving, joined)


def gradients(logits: Tensor, y: Tensor, weight: Tensor, above: Tensor) -> Tensor:
    found: Tensor = each(grad(cross_entropy.cross_entropy), logits, y, weight)
    return found * above[:, None, None]


PLAIN: dict[tuple[ModuleType, str], Callable[..., Any]] = {
    (cross_entropy, "losses"): lambda *inputs: each(cross_entropy.cross_entropy, *inputs),
    (cross_entropy, "gradients"): gradients,
    (sgd, "step_of_rows"): step_of_rows,
    (examples, "take_rows"): lambda *inputs: examples.take(*inputs),
    (shuffle, "draw_rows"): lambda *inputs: each(lambda *who: shuffle.draw(*who, *inputs[4:]), *inputs[:4]),
}


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels everywhere: the names of those that were called."""
    names: list[str] = []

    def noted(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *inputs: (names.append(name), plain(*inputs))[1]

    for (module, name), plain in PLAIN.items():
        monkeypatch.setattr(module, name, noted(name, plain))
    for module in (cross_entropy, sgd):
        monkeypatch.setattr(module, "for_kernels", mapping.mapped)
    for module in (examples, shuffle):
        monkeypatch.setattr(module, "on_gpu", lambda tensor: True)
    return names


def compare(function: Callable[..., Any], *inputs: Any, used: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The same by kernels and in plain operations; the names of the kernels."""
    used.clear()
    found, names = function(*inputs), list(used)
    with monkeypatch.context() as context:
        for module in (cross_entropy, sgd):
            context.setattr(module, "for_kernels", lambda tensor: False)
        for module in (examples, shuffle):
            context.setattr(module, "on_gpu", lambda tensor: False)
        used.clear()
        expected = function(*inputs)
        assert not used
    torch.testing.assert_close(found, expected)
    return names


@pytest.fixture
def compared(used: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    return lambda function, *inputs: compare(function, *inputs, used=used, monkeypatch=monkeypatch)


Compared = Callable[..., list[str]]
LOGITS = torch.randn(3, 4, 5, generator=GENERATOR, dtype=torch.float64)
Y = torch.tensor([[0, 3, -1, 2], [1, 1, 1, 0], [-1, -1, -1, -1]])


def classify(logits: Tensor, y: Tensor) -> Tensor:
    return cross_entropy.cross_entropy(logits.sin(), y, (y >= 0).to(logits.dtype))


def test_losses_and_their_gradients(compared: Compared) -> None:
    assert compared(vmap(classify), LOGITS, Y) == ["losses"]
    assert compared(vmap(grad(classify)), LOGITS, Y) == ["losses", "gradients"]

    def steepness(logits: Tensor, y: Tensor) -> Tensor:
        return grad(classify)(logits, y).sin().sum()

    assert compared(vmap(grad(steepness)), LOGITS, Y)[:2] == ["losses", "gradients"]


def test_losses_that_are_too_large_for_a_kernel(compared: Compared) -> None:
    logits, y = torch.randn(2, 65, 129, generator=GENERATOR), torch.randint(0, 129, (2, 65), generator=GENERATOR)
    assert compared(vmap(classify), logits, y) == []
    assert compared(vmap(classify), logits[:, :64, :128], y[:, :64].clamp(max=127)) == ["losses"]


@pytest.mark.parametrize("optimiser", [SGD(0.1), SGD(0.1, 0.9, 0.01, 0.5)], ids=["plain", "all"])
def test_steps(optimiser: SGD, compared: Compared) -> None:
    weights, direction, velocity = torch.randn(3, 3, 7, generator=GENERATOR).unbind()
    step = vmap(lambda *inputs: sgd.step(*inputs, *optimiser.rates))
    inputs = weights, direction.split([4, 1, 2], 1), velocity, torch.tensor([True, False, True])
    assert compared(step, *inputs) == ["step_of_rows"]


def test_a_first_step_from_weights_that_all_share(compared: Compared) -> None:
    weights, direction = torch.randn(7, generator=GENERATOR), torch.randn(3, 7, generator=GENERATOR)
    velocity, rates = torch.zeros(7), SGD(0.1, 0.9, 0.01, 0.5).rates
    step = vmap(lambda direction: sgd.step(weights, [direction], velocity, direction[0] > 0, *rates))
    assert compared(step, direction) == ["step_of_rows"]


def test_a_step_that_is_differentiated_is_plain(compared: Compared) -> None:
    weights, direction, velocity = torch.randn(3, 3, 7, generator=GENERATOR).unbind()

    def far(weights: Tensor, direction: Tensor, velocity: Tensor, moving: Tensor) -> Tensor:
        return sgd.step(weights, [direction], velocity, moving, *SGD(0.1, 0.9, 0.01, 0.5).rates)[0].square().sum()

    inputs = (weights, direction, velocity, torch.ones(3, dtype=torch.bool))
    assert compared(vmap(grad(far, argnums=1)), *inputs) == []


def test_a_step_with_rates_of_its_own_a_row_is_plain(compared: Compared) -> None:
    weights, direction, velocity = torch.randn(3, 3, 7, generator=GENERATOR).unbind()

    def step(weights: Tensor, direction: Tensor, velocity: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        return sgd.step(weights, [direction], velocity, rate > 0, rate, 0.9, 0.01, 0.5)

    assert compared(vmap(step), weights, direction, velocity, torch.tensor([0.1, 0.0, 0.2])) == []


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("shrink", [None, {"a": 0.5, "b": 0.9}])
def test_a_servers_step_of_adam(clip: float, shrink: dict[str, float] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By PyTorch's fused kernel as in plain operations."""
    leaves, gradient = ({"a/c": torch.randn(2, 3), "a/d": torch.randn(1), "b": torch.randn(4)} for _ in range(2))
    moments = torch.randn(11), torch.rand(11), torch.tensor(3.0)

    def step() -> Any:
        return adam.step(leaves, gradient, moments, 0.1, (0.9, 0.999), 1e-8, clip, shrink)

    found = step()
    monkeypatch.setattr(by_torch, "fits", lambda leaves: False)
    torch.testing.assert_close(found, step())


def test_sums_of_replies() -> None:
    rows, weight = torch.randn(3, 5, generator=GENERATOR), torch.tensor([0.5, 0.0, 2.0])
    rows[1, 2] = torch.nan
    torch.testing.assert_close(sums.weighted_sum(weight, rows), 0.5 * rows[0] + 2 * rows[2])
    assert sums.weighted_sum(weight, torch.arange(6).view(3, 2)).tolist() == [8, 10.5]


def test_examples_are_taken_without_a_copy_for_every_client(compared: Compared) -> None:
    x = torch.randint(0, 256, (20, 3, 4, 5), generator=GENERATOR, dtype=torch.uint8)
    which = torch.randint(0, 20, (2, 3, 6), generator=GENERATOR)
    scale, shift = torch.rand(2, 3, 1, 1, generator=GENERATOR).unbind()
    assert compared(vmap(vmap(lambda which: examples.take(x, which, scale, shift))), which) == ["take_rows"]


def test_batches_are_drawn_for_all_clients_at_once(compared: Compared) -> None:
    counts, clients = torch.tensor([[0, 7], [40, 41]]), torch.arange(4).view(2, 2)

    def drawn(count: Tensor, client: Tensor) -> tuple[Tensor, Tensor]:
        return shuffle.draw(count, client // 2, count * 0 + 5, client, 3, 4, 8, 2)

    assert compared(vmap(vmap(drawn)), counts, clients) == ["draw_rows"]
