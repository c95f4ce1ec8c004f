"""Mapped convolutions as products give what PyTorch's own give; on a CPU too, though only the GPU engine uses them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from latecomer.engines import reroute
from latecomer.engines.reroute import mapped, rerouted

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 2, 9, 8, generator=GENERATOR, dtype=torch.float64)
WEIGHT = torch.randn(3, 5, 2, 3, 3, generator=GENERATOR, dtype=torch.float64)
BIAS = torch.randn(3, 5, generator=GENERATOR, dtype=torch.float64)


@pytest.mark.parametrize("stride", [1, (2, 1), 3])
@pytest.mark.parametrize("padding", [0, (2, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_value_and_gradients(stride: int | tuple[int, int], padding: int | tuple[int, int], bias: bool) -> None:
    def energy(x: Tensor, weight: Tensor, bias_: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias_ if bias else None, stride, padding).sin().sum()

    both = vmap(grad(energy, argnums=(0, 1) + (2,) * bias))
    for plain, ours in zip(both(X, WEIGHT, BIAS), rerouted(both)(X, WEIGHT, BIAS), strict=True):
        torch.testing.assert_close(plain, ours)
    values = vmap(energy)
    torch.testing.assert_close(values(X, WEIGHT, BIAS), rerouted(values)(X, WEIGHT, BIAS))


@pytest.mark.parametrize("stride", [1, (2, 3)])
@pytest.mark.parametrize("padding", [0, (2, 1)])
def test_gradients_of_gradients(stride: int | tuple[int, int], padding: int | tuple[int, int]) -> None:
    """As learning to adapt needs them: the gradient, at every input, of a loss after a gradient step."""

    def energy(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, stride, padding).sin().sum()

    def after_a_step(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        by_x, by_weight, by_bias = grad(energy, argnums=(0, 1, 2))(x, weight, bias)
        return energy(x - 0.1 * by_x, weight - 0.1 * by_weight, bias - 0.1 * by_bias)

    both = vmap(grad(after_a_step, argnums=(0, 1, 2)))
    for plain, ours in zip(both(X, WEIGHT, BIAS), rerouted(both)(X, WEIGHT, BIAS), strict=True):
        torch.testing.assert_close(plain, ours)


def test_gradients_of_gradients_of_two_layers() -> None:
    """The second layer's input depends on the first one's weights, so that its windows' slope counts too."""
    second = WEIGHT.transpose(1, 2)  # [clients, 2, 5, 3, 3]

    def energy(weights: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
        return F.conv2d(F.max_pool2d(F.conv2d(x, weights[0]).tanh(), 2), weights[1], padding=1).sin().sum()

    def after_a_step(weights: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
        one, two = grad(energy)(weights, x)
        return energy((weights[0] - 0.1 * one, weights[1] - 0.1 * two), x)

    both = vmap(grad(after_a_step))
    for plain, ours in zip(both((WEIGHT, second), X), rerouted(both)((WEIGHT, second), X), strict=True):
        torch.testing.assert_close(plain, ours)


def test_nested_maps() -> None:
    """As for seeds in lockstep that share weights within a seed."""
    x = X.reshape(3, 2, 2, 2, 9, 8)
    nested = vmap(vmap(lambda x, weight: F.conv2d(x, weight), in_dims=(0, None)))
    torch.testing.assert_close(nested(x, WEIGHT), rerouted(nested)(x, WEIGHT))


def calls(function: object, *inputs: Tensor, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a function's convolutions go through products."""
    seen: list[int] = []
    plain = reroute.convolve

    def counting(*args: object) -> Tensor:
        seen.append(1)
        return plain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(reroute, "convolve", counting)
    rerouted(function)(*inputs)  # type: ignore[arg-type]
    return len(seen)


def test_only_mapped_weights_small_batches_and_plain_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    own = vmap(lambda x, weight: F.conv2d(x, weight))
    assert calls(own, X, WEIGHT, monkeypatch=monkeypatch) == 1
    assert calls(vmap(lambda x: F.conv2d(x, WEIGHT[0])), X, monkeypatch=monkeypatch) == 0, "shared weights"
    assert calls(own, X.repeat(1, 40, 1, 1, 1), WEIGHT, monkeypatch=monkeypatch) == 0, "a large batch"
    dilated = vmap(lambda x, weight: F.conv2d(x, weight, dilation=2))
    assert calls(dilated, X, WEIGHT, monkeypatch=monkeypatch) == 0
    assert not mapped(X)
