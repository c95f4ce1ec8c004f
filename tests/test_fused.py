"""How `vmap` and gradients reach the kernels, with plain PyTorch in the kernels' place (test_cuda.py has the real)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from latecomer import blocks, tree
from latecomer.data import shuffle
from latecomer.engines import fused, reroute
from latecomer.engines.fused import rows
from latecomer.engines.reroute import mapped, rerouted
from latecomer.learn import SGD

GENERATOR = torch.Generator().manual_seed(0)


def each(function: Any, *arrays: Tensor | None) -> Tensor:
    """Row by row."""
    return torch.stack([function(*(None if a is None else a[k] for a in arrays)) for k in range(len(arrays[0]))])  # type: ignore[arg-type]


def cross_entropy_slope(logits: Tensor, y: Tensor, weight: Tensor, above: Tensor) -> Tensor:
    slopes: Tensor = vmap(grad(blocks.cross_entropy.__wrapped__))(logits, y, weight)
    return slopes * above[:, None, None]


PLAIN = SimpleNamespace(
    cross_entropy=lambda logits, y, weight: each(blocks.cross_entropy.__wrapped__, logits, y, weight),
    cross_entropy_slope=cross_entropy_slope,
    move=lambda *inputs: vmap(lambda *rows: blocks.move.__wrapped__(*rows[:3], *inputs[3:7], *rows[3:]))(
        *inputs[:3], *inputs[7:]
    ),
    draw=lambda *inputs: vmap(lambda *rows: shuffle.draw.__wrapped__(*rows, *inputs[4:]))(*inputs[:4]),
    take=lambda *inputs: blocks.take.__wrapped__(*inputs),
    join=lambda *parts: torch.cat(parts, 1),
)


@pytest.fixture(autouse=True)
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "kernels", lambda: PLAIN)
    monkeypatch.setattr(reroute, "has_kernels", mapped)
    monkeypatch.setattr(reroute, "_on_gpu", mapped)
    monkeypatch.setattr(reroute, "_has_triton", lambda x: True)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the blocks whose place a kernel takes."""
    names: list[str] = []

    def noted(name: str) -> Any:
        original = getattr(fused, name)
        return lambda *inputs, **more: (names.append(name), original(*inputs, **more))[1]

    for name in ("cross_entropy", "move", "split", "take", "draw"):
        monkeypatch.setattr(reroute.fused, name, noted(name))
    return names


def test_the_loss(used: list[str]) -> None:
    y = torch.tensor([[0, 3, -1, 2], [1, 1, 1, 0], [-1, -1, -1, -1]])
    inputs = torch.randn(3, 4, 5, generator=GENERATOR, dtype=torch.float64), y, (y >= 0).double()

    def steepness(logits: Tensor, *rest: Tensor) -> Tensor:
        return grad(blocks.cross_entropy)(logits, *rest).sin().sum()

    for function in (blocks.cross_entropy, grad(blocks.cross_entropy), grad(steepness)):
        used.clear()
        torch.testing.assert_close(rerouted(vmap(function))(*inputs), vmap(function)(*inputs))
        assert used == ["cross_entropy"]


@pytest.mark.parametrize("optimiser", [SGD(0.1), SGD(0.1, 0.9, 0.01, 0.5)], ids=["plain", "all"])
def test_steps(optimiser: SGD, used: list[str]) -> None:
    weights, direction, velocity = torch.randn(3, 3, 7, generator=GENERATOR).unbind()
    step = vmap(optimiser.move)
    inputs = weights, direction.split([4, 1, 2], 1), velocity, torch.tensor([True, False, True])
    for expected, found in zip(step(*inputs), rerouted(step)(*inputs), strict=True):
        torch.testing.assert_close(found, expected)
    assert used == ["move"]


def test_a_first_step_from_weights_that_all_share(used: list[str]) -> None:
    weights, direction = torch.randn(7, generator=GENERATOR), torch.randn(3, 7, generator=GENERATOR)
    optimiser = SGD(0.1, 0.9, 0.01, 0.5)
    step = vmap(lambda direction: optimiser.move(weights, [direction], optimiser.at_rest(weights), direction[0] > 0))
    for expected, found in zip(step(direction), rerouted(step)(direction), strict=True):
        torch.testing.assert_close(found, expected)
    assert used == ["move"]


def test_a_step_that_is_differentiated_is_plain(used: list[str]) -> None:
    weights, direction, velocity = torch.randn(3, 3, 7, generator=GENERATOR).unbind()

    def far(weights: Tensor, direction: Tensor, velocity: Tensor, moving: Tensor) -> Tensor:
        return SGD(0.1, 0.9, 0.01, 0.5).move(weights, [direction], velocity, moving)[0].square().sum()

    inputs = (weights, direction, velocity, torch.ones(3, dtype=torch.bool))
    slope = vmap(grad(far, argnums=1))
    torch.testing.assert_close(rerouted(slope)(*inputs), slope(*inputs))
    assert not used


def test_examples_are_taken_without_a_copy_for_every_client(used: list[str]) -> None:
    x = torch.randint(0, 256, (20, 3, 4, 5), generator=GENERATOR, dtype=torch.uint8)
    which = torch.randint(0, 20, (2, 3, 6), generator=GENERATOR)
    scale, shift = torch.rand(2, 3, 1, 1, generator=GENERATOR).unbind()
    both = vmap(vmap(lambda which: blocks.take(x, which, scale, shift)))
    torch.testing.assert_close(rerouted(both)(which), both(which))
    assert used == ["take"]


def test_batches_are_drawn_for_all_clients_at_once(used: list[str]) -> None:
    counts, clients = torch.tensor([[0, 7], [40, 41]]), torch.arange(4).view(2, 2)

    def drawn(count: Tensor, client: Tensor) -> tuple[Tensor, Tensor]:
        place, real = shuffle.draw(count, client // 2, count * 0 + 5, client, 3, 4, 8, 2)
        return place, real

    both = vmap(vmap(drawn))
    for found, expected in zip(rerouted(both)(counts, clients), both(counts, clients), strict=True):
        assert torch.equal(found, expected)
    assert used == ["draw"]


@pytest.mark.parametrize("shared", [False, True])
def test_gradients_laid_end_to_end(shared: bool, used: list[str]) -> None:
    like = {"a": torch.zeros(3, 2), "b": {"c": torch.zeros(1), "d": torch.zeros(4)}}
    vector, x = torch.randn(3, 11, generator=GENERATOR), torch.randn(3, 2, generator=GENERATOR)

    def energy(vector: Tensor, x: Tensor) -> Tensor:
        parts = tree.unravel(vector, like)
        return (parts["a"] @ x).sin().sum() * parts["b"]["c"].sum() + parts["b"]["d"].square().sum()

    def steepness(vector: Tensor, x: Tensor) -> Tensor:
        return grad(energy)(vector, x).cos().sum()

    for function in (energy, steepness):
        slopes = vmap(grad(function), in_dims=(None if shared else 0, 0))
        inputs = (vector[0] if shared else vector, x)
        torch.testing.assert_close(rerouted(slopes)(*inputs), slopes(*inputs))
    assert "split" in used
