"""How `vmap` and gradients reach the kernels, with plain PyTorch in the kernels' place (test_cuda.py has the real)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from latecomer.engines import convolve, fused
from latecomer.engines.convolve import mapped, rerouted

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 2, 9, 8, generator=GENERATOR, dtype=torch.float64)
WEIGHT = torch.randn(3, 5, 2, 3, 3, generator=GENERATOR, dtype=torch.float64)
BIAS = torch.randn(3, 5, generator=GENERATOR, dtype=torch.float64)


def each(function: Any, *arrays: Tensor | None) -> Tensor:
    """Row by row."""
    return torch.stack([function(*(None if a is None else a[k] for a in arrays)) for k in range(len(arrays[0]))])  # type: ignore[arg-type]


PLAIN = SimpleNamespace(
    forward=lambda x, weight, bias, stride: each(lambda x, w, b: F.conv2d(x, w, b, stride), x, weight, bias),
    by_weight=lambda x, slope, shape, stride: each(
        lambda x, s: torch.nn.grad.conv2d_weight(x, (s.shape[1], x.shape[1], *shape), s, stride), x, slope
    ),
    by_x=lambda slope, weight, shape, stride: each(
        lambda s, w: torch.nn.grad.conv2d_input((len(s), w.shape[1], *shape), w, s, stride), slope, weight
    ),
    pool=lambda x, side: F.max_pool2d(x.flatten(0, -4), side).unflatten(0, x.shape[:-3]),
    unpool=lambda x, slope, side: unpool(x.flatten(0, -4), slope.flatten(0, -4), side).view_as(x),
)


def unpool(x: Tensor, slope: Tensor, side: int) -> Tensor:
    _, which = F.max_pool2d(x, side, return_indices=True)
    return F.max_unpool2d(slope, which, side, output_size=x.shape[-2:])


@pytest.fixture(autouse=True)
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "kernels", lambda: PLAIN)
    monkeypatch.setattr(convolve, "has_kernels", mapped)
    monkeypatch.setattr(convolve, "convolve", lambda *_: pytest.fail("the kernels were passed by"))


def energy(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
    hidden = F.conv2d(x, weight, bias, stride, padding)
    return F.max_pool2d(hidden.sin(), 2).square().sum()


@pytest.mark.parametrize("stride", [1, (2, 1)])
@pytest.mark.parametrize("padding", [0, (2, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_value_and_gradients(stride: Any, padding: Any, bias: bool) -> None:
    def loss(x: Tensor, weight: Tensor, own: Tensor) -> Tensor:
        return energy(x, weight, own if bias else None, stride, padding)

    both = vmap(grad(loss, argnums=(0, 1) + (2,) * bias))
    for expected, found in zip(both(X, WEIGHT, BIAS), rerouted(both)(X, WEIGHT, BIAS), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(rerouted(vmap(loss))(X, WEIGHT, BIAS), vmap(loss)(X, WEIGHT, BIAS))


def test_gradients_of_gradients() -> None:
    """For methods that learn how to adapt."""

    def steepness(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        slopes = grad(energy, argnums=(0, 1, 2))(x, weight, bias, 1, 1)
        return torch.stack([slope.square().sum() for slope in slopes]).sum()

    second = vmap(grad(steepness, argnums=(0, 1, 2)))
    for expected, found in zip(second(X, WEIGHT, BIAS), rerouted(second)(X, WEIGHT, BIAS), strict=True):
        torch.testing.assert_close(found, expected)


def test_nested_maps() -> None:
    """As for seeds in lockstep that share weights within a seed."""
    x = X.reshape(3, 2, 2, 2, 9, 8)
    slope = vmap(vmap(grad(lambda w, x: energy(x, w, None, 1, 0)), in_dims=(None, 0)))
    torch.testing.assert_close(rerouted(slope)(WEIGHT, x), slope(WEIGHT, x))


@pytest.mark.parametrize("options", [{"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"dilation": 2}])
def test_other_poolings_are_left_alone(options: dict[str, Any]) -> None:
    def pooled(x: Tensor, weight: Tensor) -> Tensor:
        return F.max_pool2d(F.conv2d(x, weight), 2, **options)

    torch.testing.assert_close(rerouted(vmap(pooled))(X, WEIGHT), vmap(pooled)(X, WEIGHT))


def test_largest_pixels_that_tie() -> None:
    x = torch.tensor([[[[1.0, 1, 0], [1, 1, 0], [0, 0, 0]]]])[None].expand(2, -1, -1, -1, -1)
    slope = rerouted(vmap(grad(lambda x: F.max_pool2d(x, 2).sum())))(x)
    assert slope[0, 0, 0].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]], "the first of them, as PyTorch does"
