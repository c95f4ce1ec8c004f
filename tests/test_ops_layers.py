"""How `vmap` and gradients reach the kernels of layers, with PyTorch in their place (test_cuda.py has the real)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from latecomer.ops import convolution, linear, norm, wide_convolution
from latecomer.ops.cross_entropy import cross_entropy
from latecomer.ops.intercept import intercepted
from latecomer.ops.mapping import mapped

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 2, 9, 8, generator=GENERATOR, dtype=torch.float64)
WEIGHT = torch.randn(3, 5, 2, 3, 3, generator=GENERATOR, dtype=torch.float64)
BIAS = torch.randn(3, 5, generator=GENERATOR, dtype=torch.float64)


# plain PyTorch in the kernels' place


def each(function: Any, *arrays: Tensor | None) -> Tensor:
    """Row by row."""
    return torch.stack([function(*(None if a is None else a[k] for a in arrays)) for k in range(len(arrays[0]))])  # type: ignore[arg-type]


def conv_rows(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
    return each(lambda x, w, b: F.conv2d(x, w, b, stride, padding), x, weight, bias)


def conv_relu_pool_rows(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any
) -> tuple[Tensor, Tensor]:
    full = conv_rows(x, weight, bias, stride, padding)
    high, wide = (side // 2 for side in full.shape[-2:])
    four = full[..., : 2 * high, : 2 * wide].unflatten(-2, (high, 2)).unflatten(-1, (wide, 2)).transpose(-3, -2)
    best, code = four.flatten(-2).max(-1)
    return best.relu(), torch.where(best > 0, code, 4).to(torch.int8)


def spread(gradient: Tensor, code: Tensor | None, shape: Any) -> Tensor:
    """Gradients of what was kept, at the places they belong to."""
    if code is None:
        return gradient
    four = gradient[..., None] * (code[..., None] == torch.arange(4))
    squares = four.unflatten(-1, (2, 2)).transpose(-3, -2).flatten(-4, -3).flatten(-2)
    return F.pad(squares, (0, shape[1] - squares.shape[-1], 0, shape[0] - squares.shape[-2]))


def conv_gradient_rows(
    gradient: Tensor, code: Tensor | None, x: Tensor, weight: Tensor, stride: Any, padding: Any, needs_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    images, filters = x.shape[1:], weight.shape[1:]
    sides = conv_rows(x[:1], weight[:1], None, stride, padding).shape[-2:]
    gradient = spread(gradient, code, sides)
    by_x = each(lambda g, w: torch.nn.grad.conv2d_input(images, w, g, stride, padding), gradient, weight)
    by_weight = each(lambda x, g: torch.nn.grad.conv2d_weight(x, filters, g, stride, padding), x, gradient)
    return by_x if needs_x else x.new_empty(len(x), 0), by_weight, gradient.sum((1, 3, 4))


def wide_gradient_rows(gradient: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    *rest, needs_bias = inputs
    by_x, by_weight, by_bias = conv_gradient_rows(gradient, None, *rest)
    return by_x, by_weight, by_bias if needs_bias else by_bias[:, :0]


def gated(gradient: Tensor, gate: Tensor | None) -> Tensor:
    return gradient if gate is None else gradient * (gate > 0)


def linear_rows(x: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    out = x @ weight.mT + bias[:, None]
    return out.relu() if relu else out


def linear_gradient_rows(
    gradient: Tensor, gate: Tensor | None, x: Tensor, weight: Tensor, needs_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    passed = gated(gradient, gate)
    return passed @ weight if needs_x else x.new_empty(len(x), 0), passed.mT @ x, passed.sum(1)


def norm_rows(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, *how: Any) -> Tensor:
    return each(lambda x, w, b, r: norm.norm(x, w, b, r, *how), x, weight, bias, residual)


def norm_gradient_rows(
    gradient: Tensor, gate: Tensor | None, x: Tensor, weight: Tensor, groups: int, epsilon: float, needs_passed: bool
) -> tuple[Tensor, ...]:
    def one(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return F.group_norm(x, groups, weight, bias, epsilon)

        by_x, by_weight, by_bias = torch.func.vjp(layer, x, weight, torch.zeros_like(weight))[1](gradient)
        return by_x, gradient if needs_passed else gradient.flatten()[:0], by_weight, by_bias

    parts = zip(*(one(*row) for row in zip(gated(gradient, gate), x, weight, strict=True)), strict=True)
    return tuple(torch.stack(part) for part in parts)


LAUNCHES: list[tuple[Any, str, Any]] = [
    (convolution, "conv_rows", conv_rows),
    (convolution, "conv_relu_pool_rows", conv_relu_pool_rows),
    (convolution, "conv_gradient_rows", conv_gradient_rows),
    (wide_convolution, "wide_conv_rows", conv_rows),
    (wide_convolution, "wide_conv_gradient_rows", wide_gradient_rows),
    (linear, "linear_rows", linear_rows),
    (linear, "linear_gradient_rows", linear_gradient_rows),
    (norm, "norm_rows", norm_rows),
    (norm, "norm_gradient_rows", norm_gradient_rows),
]


class Launches(list[str]):
    """The kernels that were launched, by name; `on`: whether an operation may take them."""

    on = False


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> Launches:
    names = Launches()

    def noted(name: str, function: Any) -> Any:
        return lambda *inputs: (names.append(name), function(*inputs))[1]

    for module, name, function in LAUNCHES:
        monkeypatch.setattr(module, name, noted(name.removesuffix("_rows"), function))
    for module in (convolution, linear, norm):
        monkeypatch.setattr(module, "for_kernels", lambda tensor: names.on and mapped(tensor))
    return names


def agree(used: Launches, function: Any, *inputs: Any) -> None:
    """A function's results by kernels are those without."""
    used.on = False
    expected = function(*inputs)
    assert not used
    used.on = True
    found = intercepted(function)(*inputs)
    used.on = False
    pairs: Iterable[Any] = zip(expected, found, strict=True) if isinstance(expected, tuple) else [(expected, found)]
    for one, other in pairs:
        torch.testing.assert_close(other, one)


# convolution and pooling


def energy(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
    hidden = F.conv2d(x, weight, bias, stride, padding)
    return F.max_pool2d(hidden.sin(), 2).square().sum()


@pytest.mark.parametrize("stride", [1, (2, 1), 3])
@pytest.mark.parametrize("padding", [0, (2, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_value_and_gradients(stride: Any, padding: Any, bias: bool, used: Launches) -> None:
    def loss(x: Tensor, weight: Tensor, own: Tensor) -> Tensor:
        return energy(x, weight, own if bias else None, stride, padding)

    agree(used, vmap(grad(loss, argnums=(0, 1) + (2,) * bias)), X, WEIGHT, BIAS)
    assert used == ["conv", "conv_gradient"]
    used.clear()
    agree(used, vmap(loss), X, WEIGHT, BIAS)
    assert used == ["conv"]


@pytest.mark.parametrize("stride", [1, (2, 3)])
@pytest.mark.parametrize("padding", [0, 1, (2, 1)])
def test_gradients_of_gradients(stride: Any, padding: Any, used: Launches) -> None:
    """For methods that learn how to adapt: at every input, of gradients and of a loss after a gradient step."""

    def wave(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, stride, padding).sin().sum()

    def steepness(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        gradients = grad(energy, argnums=(0, 1, 2))(x, weight, bias, stride, padding)
        return torch.stack([gradient.square().sum() for gradient in gradients]).sum()

    def after_a_step(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        by_x, by_weight, by_bias = grad(wave, argnums=(0, 1, 2))(x, weight, bias)
        return wave(x - 0.1 * by_x, weight - 0.1 * by_weight, bias - 0.1 * by_bias)

    for function in (steepness, after_a_step):
        used.clear()
        agree(used, vmap(grad(function, argnums=(0, 1, 2))), X, WEIGHT, BIAS)
        assert "conv" in used


def test_gradients_of_gradients_of_two_layers(used: Launches) -> None:
    """The second layer's input depends on the first one's weights, so that its gradient counts too."""
    second = WEIGHT.transpose(1, 2)  # [clients, 2, 5, 3, 3]

    def wave(weights: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
        return F.conv2d(F.max_pool2d(F.conv2d(x, weights[0]).tanh(), 2), weights[1], None, 1, 1).sin().sum()

    def after_a_step(weights: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
        one, two = grad(wave)(weights, x)
        return wave((weights[0] - 0.1 * one, weights[1] - 0.1 * two), x)

    agree(used, vmap(grad(after_a_step)), (WEIGHT, second), X)
    assert "conv" in used


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [1, 3])
def test_many_channels(side: int, stride: int, used: Launches) -> None:
    x = torch.randn(2, 2, 16, 5, 6, generator=GENERATOR, dtype=torch.float64)
    weight = torch.randn(2, 96, 16, side, side, generator=GENERATOR, dtype=torch.float64)
    bias = torch.randn(2, 96, generator=GENERATOR, dtype=torch.float64)

    def wave(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, stride, side // 2).sin().sum()

    def steepness(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        gradients = *grad(wave, argnums=(0, 1, 2))(x, weight, bias), grad(wave, argnums=1)(x, weight, None)
        return torch.stack([gradient.square().sum() for gradient in gradients]).sum()

    for function in (wave, steepness):
        used.clear()
        agree(used, vmap(grad(function, argnums=(0, 1, 2))), x, weight, bias)
        assert set(used) == {"wide_conv", "wide_conv_gradient"}, "the others are for few channels"


def test_nested_maps(used: Launches) -> None:
    """As for seeds in lockstep that share weights within a seed."""
    x = X.reshape(3, 2, 2, 2, 9, 8)
    agree(used, vmap(vmap(grad(lambda w, x: energy(x, w, None, 1, 0)), in_dims=(None, 0))), WEIGHT, x)
    assert "conv" in used


def test_only_mapped_weights_and_plain_convolutions(used: Launches) -> None:
    def kernels(function: Any, *inputs: Tensor) -> list[str]:
        used.clear()
        agree(used, vmap(function), *inputs)
        return list(used)

    assert kernels(lambda x, weight: F.conv2d(x, weight), X, WEIGHT) == ["conv"]
    assert kernels(lambda x, weight: F.conv2d(x, weight, padding=1), X, WEIGHT) == ["conv"]
    assert not kernels(lambda x: F.conv2d(x, WEIGHT[0]), X), "shared weights"
    assert not kernels(lambda x, weight: F.conv2d(x, weight, dilation=2), X, WEIGHT)
    assert not kernels(lambda x, weight: F.conv2d(x, weight, padding="same"), X, WEIGHT)
    assert not kernels(lambda x, weight: F.conv2d(x, weight, padding=3), X, WEIGHT), "windows that see nothing"
    few = torch.randn(3, 70, 2, 3, 3, generator=GENERATOR, dtype=torch.float64)
    assert kernels(lambda x, weight: F.conv2d(x, weight), X, few) == ["conv"], "many filters, but few channels"
    assert not mapped(X)


HIDDEN = torch.randn(3, 6, 5 * 3 * 3, generator=GENERATOR, dtype=torch.float64)
LAST = torch.randn(3, 4, 6, generator=GENERATOR, dtype=torch.float64)
Y = torch.tensor([[0, 3, -1, 2], [1, 1, 1, 0], [-1, -1, -1, -1]])
FORWARD = ["conv_relu_pool", "linear", "linear"]


def classify(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, last: Tensor) -> Tensor:
    """A small network of layers that have kernels, the last one PyTorch's own, and its loss."""
    kept = convolution.conv_relu_pool(x, weight, bias, (1, 1), (0, 0))
    seen = linear.linear_relu(kept.flatten(1), hidden, hidden[:, 0])
    loss: Tensor = cross_entropy(F.linear(seen, last, last[:, 0]), y, (y >= 0).to(x.dtype))
    return loss


def test_layers_of_a_network(used: Launches) -> None:
    x = torch.cat([X, X[..., :1]], -1)[..., :8, :]  # [3, 4, 2, 8, 9]: an odd side, whose last column is not pooled
    inputs = (x, Y, WEIGHT, BIAS, HIDDEN[..., : 5 * 9], LAST)
    agree(used, vmap(grad(classify, argnums=(0, 2, 3, 4, 5))), *inputs)
    assert used == [*FORWARD, "linear_gradient", "linear_gradient", "conv_gradient"]
    used.clear()
    agree(used, vmap(classify), *inputs)
    assert used == FORWARD


def test_weights_that_all_share_and_whose_gradients_differ(used: Launches) -> None:
    """As in the first local step from a common model."""
    inputs = (X[..., :8, :8], Y, WEIGHT[0], BIAS[0], HIDDEN[0], LAST[0])
    shared = (0, 0, None, None, None, None)
    agree(used, vmap(grad(classify, argnums=(2, 3, 4, 5)), in_dims=shared), *inputs)
    assert used[:3] == FORWARD
    used.clear()
    agree(used, vmap(classify, in_dims=shared), *inputs)
    assert used == [], "without a gradient, PyTorch's own layers do it for all clients at once"


def test_gradients_of_gradients_of_layers(used: Launches) -> None:
    def steepness(x: Tensor, *rest: Tensor) -> Tensor:
        gradients = grad(classify, argnums=(0, 2, 3, 4, 5))(x, *rest)
        return torch.stack([gradient.sin().sum() for gradient in gradients]).sum()

    inputs = (X[..., :8, :8], Y, WEIGHT, BIAS, HIDDEN, LAST)
    agree(used, vmap(grad(steepness, argnums=(0, 2, 3, 4, 5))), *inputs)
    assert used[:3] == FORWARD


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_normalised_groups(with_residual: bool, relu: bool, used: Launches) -> None:
    x, residual = torch.randn(2, 3, 4, 8, 3, 3, generator=GENERATOR, dtype=torch.float64).unbind()
    weight, bias = torch.randn(2, 3, 8, generator=GENERATOR, dtype=torch.float64).unbind()

    def wave(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        out = norm.norm(x, weight, bias, residual.sin() if with_residual else None, 2, 1e-5, relu)
        return out.sin().sum()

    which = (0, 1, 2) + (3,) * with_residual

    def steepness(*inputs: Tensor) -> Tensor:
        return torch.stack([gradient.square().sum() for gradient in grad(wave, argnums=which)(*inputs)]).sum()

    for function in (wave, steepness):
        used.clear()
        agree(used, vmap(grad(function, argnums=which)), x, weight, bias, residual)
        assert set(used) == {"norm", "norm_gradient"}
