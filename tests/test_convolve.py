"""Mapped convolutions as products give what PyTorch's own give; on a CPU too, though only the GPU engine uses them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from latecomer.engines import convolve
from latecomer.engines.convolve import mapped, rerouted

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


def test_nested_maps() -> None:
    """As for seeds in lockstep that share weights within a seed."""
    x = X.reshape(3, 2, 2, 2, 9, 8)
    nested = vmap(vmap(lambda x, weight: F.conv2d(x, weight), in_dims=(0, None)))
    torch.testing.assert_close(nested(x, WEIGHT), rerouted(nested)(x, WEIGHT))


def calls(function: object, *inputs: Tensor, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a function's convolutions go through products."""
    seen: list[int] = []
    plain = convolve.convolve

    def counting(*args: object) -> Tensor:
        seen.append(1)
        return plain(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(convolve, "convolve", counting)
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
