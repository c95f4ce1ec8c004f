"""How `vmap` and gradients reach the kernels, with plain PyTorch in the kernels' place (test_cuda.py has the real)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap
from torch.overrides import _get_current_function_mode

from latecomer import blocks
from latecomer.engines import fused, reroute
from latecomer.engines.fused import rows
from latecomer.engines.reroute import mapped, rerouted
from latecomer.ops import cross_entropy as loss_of
from latecomer.ops.cross_entropy import cross_entropy

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(3, 4, 2, 9, 8, generator=GENERATOR, dtype=torch.float64)
WEIGHT = torch.randn(3, 5, 2, 3, 3, generator=GENERATOR, dtype=torch.float64)
BIAS = torch.randn(3, 5, generator=GENERATOR, dtype=torch.float64)


def each(function: Any, *arrays: Tensor | None) -> Tensor:
    """Row by row."""
    return torch.stack([function(*(None if a is None else a[k] for a in arrays)) for k in range(len(arrays[0]))])  # type: ignore[arg-type]


def stage(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> tuple[Tensor, Tensor]:
    full = each(lambda x, w, b: F.conv2d(x, w, b, stride, padding), x, weight, bias)
    high, wide = (side // 2 for side in full.shape[-2:])
    four = full[..., : 2 * high, : 2 * wide].unflatten(-2, (high, 2)).unflatten(-1, (wide, 2)).transpose(-3, -2)
    best, code = four.flatten(-2).max(-1)
    return best.relu(), torch.where(best > 0, code, 4).to(torch.int8)


def spread(slope: Tensor, code: Tensor | None, shape: Any) -> Tensor:
    """Slopes of what was kept, at the places they belong to."""
    if code is None:
        return slope
    four = slope[..., None] * (code[..., None] == torch.arange(4))
    squares = four.unflatten(-1, (2, 2)).transpose(-3, -2).flatten(-4, -3).flatten(-2)
    return F.pad(squares, (0, shape[1] - squares.shape[-1], 0, shape[0] - squares.shape[-2]))


def back(
    slope: Tensor, code: Tensor | None, x: Tensor, weight: Tensor, stride: Any, padding: Any, needs_x: bool
) -> tuple[Tensor, Tensor, Tensor]:
    images, filters = x.shape[1:], weight.shape[1:]
    sides = each(lambda x, w: F.conv2d(x, w, None, stride, padding), x[:1], weight[:1]).shape[-2:]
    slope = spread(slope, code, sides)
    by_x = each(lambda s, w: torch.nn.grad.conv2d_input(images, w, s, stride, padding), slope, weight)
    by_weight = each(lambda x, s: torch.nn.grad.conv2d_weight(x, filters, s, stride, padding), x, slope)
    return by_x if needs_x else x.new_empty(len(x), 0), by_weight, slope.sum((1, 3, 4))


def wide_back(slope: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    *rest, needs_bias = inputs
    by_x, by_weight, by_bias = back(slope, None, *rest)
    return by_x, by_weight, by_bias if needs_bias else by_bias[:, :0]


def unpool(x: Tensor, slope: Tensor, side: int) -> Tensor:
    _, which = F.max_pool2d(x.flatten(0, -4), side, return_indices=True)
    return F.max_unpool2d(slope.flatten(0, -4), which, side, output_size=x.shape[-2:]).view_as(x)


def gated(slope: Tensor, gate: Tensor | None) -> Tensor:
    return slope if gate is None else slope * (gate > 0)


def gradients(logits: Tensor, y: Tensor, weight: Tensor, above: Tensor) -> Tensor:
    return each(grad(cross_entropy), logits, y, weight) * above[:, None, None]


def norm_back(
    slope: Tensor, gate: Tensor | None, x: Tensor, weight: Tensor, groups: int, epsilon: float, needs_passed: bool
) -> tuple[Tensor, ...]:
    def one(slope: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return F.group_norm(x, groups, weight, bias, epsilon)

        by_x, by_weight, by_bias = torch.func.vjp(layer, x, weight, torch.zeros_like(weight))[1](slope)
        return by_x, slope if needs_passed else slope.flatten()[:0], by_weight, by_bias

    parts = zip(*(one(*row) for row in zip(gated(slope, gate), x, weight, strict=True)), strict=True)
    return tuple(torch.stack(part) for part in parts)


PLAIN = SimpleNamespace(
    forward=lambda x, weight, bias, *how: each(lambda x, w, b: F.conv2d(x, w, b, *how), x, weight, bias),
    stage=stage,
    back=back,
    wide_forward=lambda x, weight, bias, *how: each(lambda x, w, b: F.conv2d(x, w, b, *how), x, weight, bias),
    wide_back=wide_back,
    pool=lambda x, side: F.max_pool2d(x.flatten(0, -4), side).unflatten(0, x.shape[:-3]),
    unpool=unpool,
    dense=lambda x, weight, bias, relu: (
        (x @ weight.mT + bias[:, None]).relu() if relu else x @ weight.mT + bias[:, None]
    ),
    dense_back=lambda slope, gate, x, weight, needs_x: (
        gated(slope, gate) @ weight if needs_x else x.new_empty(len(x), 0),
        gated(slope, gate).mT @ x,
        gated(slope, gate).sum(1),
    ),
    norm=lambda x, weight, bias, other, *how: each(
        lambda x, w, b, o: blocks.norm.__wrapped__(x, w, b, o, *how), x, weight, bias, other
    ),
    norm_back=norm_back,
)


@pytest.fixture(autouse=True)
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "kernels", lambda: PLAIN)
    monkeypatch.setattr(reroute, "has_kernels", mapped)
    monkeypatch.setattr(reroute, "_on_gpu", mapped)
    monkeypatch.setattr(reroute, "_has_triton", lambda x: True)
    monkeypatch.setattr(loss_of, "for_kernels", lambda x: mapped(x) and _get_current_function_mode() is not None)
    monkeypatch.setattr(loss_of, "losses", lambda *inputs: each(cross_entropy, *inputs))
    monkeypatch.setattr(loss_of, "gradients", gradients)
    monkeypatch.setattr(reroute, "convolve", lambda *_: pytest.fail("the kernels were passed by"))


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


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [1, 3])
def test_many_channels(side: int, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PLAIN, "forward", lambda *_: pytest.fail("these kernels are for few channels"))
    monkeypatch.setattr(PLAIN, "back", lambda *_: pytest.fail("these kernels are for few channels"))
    x = torch.randn(2, 2, 16, 5, 6, generator=GENERATOR, dtype=torch.float64)
    weight = torch.randn(2, 96, 16, side, side, generator=GENERATOR, dtype=torch.float64)
    bias = torch.randn(2, 96, generator=GENERATOR, dtype=torch.float64)

    def wave(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, stride, side // 2).sin().sum()

    def steepness(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        slopes = *grad(wave, argnums=(0, 1, 2))(x, weight, bias), grad(wave, argnums=1)(x, weight, None)
        return torch.stack([slope.square().sum() for slope in slopes]).sum()

    for function in (wave, steepness):
        slopes = vmap(grad(function, argnums=(0, 1, 2)))
        for expected, found in zip(slopes(x, weight, bias), rerouted(slopes)(x, weight, bias), strict=True):
            torch.testing.assert_close(found, expected)


def test_nested_maps() -> None:
    """As for seeds in lockstep that share weights within a seed."""
    x = X.reshape(3, 2, 2, 2, 9, 8)
    slope = vmap(vmap(grad(lambda w, x: energy(x, w, None, 1, 0)), in_dims=(None, 0)))
    torch.testing.assert_close(rerouted(slope)(WEIGHT, x), slope(WEIGHT, x))


def test_weights_that_all_share_and_whose_gradients_differ(used: list[str]) -> None:
    """As in the first local step from a common model."""
    x = X[..., :8, :8]
    inputs = (x, Y, WEIGHT[0], BIAS[0], HIDDEN[0], LAST[0])
    slopes = vmap(grad(classify, argnums=(2, 3, 4, 5)), in_dims=(0, 0, None, None, None, None))
    for expected, found in zip(slopes(*inputs), rerouted(slopes)(*inputs), strict=True):
        torch.testing.assert_close(found, expected)
    assert used == ["stage", "dense", "dense", "cross_entropy"]
    used.clear()
    rerouted(vmap(classify, in_dims=(0, 0, None, None, None, None)))(*inputs)
    assert used == ["cross_entropy"], "without a gradient, PyTorch's own layers do it for all clients at once"


@pytest.mark.parametrize("options", [{"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"dilation": 2}])
def test_other_poolings_are_left_alone(options: dict[str, Any]) -> None:
    def pooled(x: Tensor, weight: Tensor) -> Tensor:
        return F.max_pool2d(F.conv2d(x, weight), 2, **options)

    torch.testing.assert_close(rerouted(vmap(pooled))(X, WEIGHT), vmap(pooled)(X, WEIGHT))


def test_largest_pixels_that_tie() -> None:
    x = torch.tensor([[[[1.0, 1, 0], [1, 1, 0], [0, 0, 0]]]])[None].expand(2, -1, -1, -1, -1)
    slope = rerouted(vmap(grad(lambda x: F.max_pool2d(x, 2).sum())))(x)
    assert slope[0, 0, 0].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]], "the first of them, as PyTorch does"


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the blocks whose place a kernel takes."""
    names: list[str] = []

    def noted(name: str, original: Any) -> Any:
        return lambda *inputs, **more: (names.append(name), original(*inputs, **more))[1]

    for name in ("stage", "dense", "norm"):
        monkeypatch.setattr(reroute.fused, name, noted(name, getattr(fused, name)))
    monkeypatch.setattr(loss_of, "losses", noted("cross_entropy", loss_of.losses))
    return names


HIDDEN = torch.randn(3, 6, 5 * 3 * 3, generator=GENERATOR, dtype=torch.float64)
LAST = torch.randn(3, 4, 6, generator=GENERATOR, dtype=torch.float64)
Y = torch.tensor([[0, 3, -1, 2], [1, 1, 1, 0], [-1, -1, -1, -1]])


def classify(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, last: Tensor) -> Tensor:
    """A small network of all layers that have kernels, and its loss."""
    kept = blocks.stage(x, weight, bias, (1, 1), (0, 0))
    seen = blocks.dense(kept.flatten(1), hidden, hidden[:, 0])
    return cross_entropy(F.linear(seen, last, last[:, 0]), y, (y >= 0).to(x.dtype))


def test_blocks_of_a_network(used: list[str]) -> None:
    x = torch.cat([X, X[..., :1]], -1)[..., :8, :]  # [3, 4, 2, 8, 9]: an odd side, whose last column is not pooled
    inputs = (x, Y, WEIGHT, BIAS, HIDDEN[..., : 5 * 9], LAST)
    slopes = vmap(grad(classify, argnums=(0, 2, 3, 4, 5)))
    for expected, found in zip(slopes(*inputs), rerouted(slopes)(*inputs), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(rerouted(vmap(classify))(*inputs), vmap(classify)(*inputs))
    assert used[:4] == ["stage", "dense", "dense", "cross_entropy"]


def test_gradients_of_gradients_of_blocks() -> None:
    def steepness(x: Tensor, *rest: Tensor) -> Tensor:
        slopes = grad(classify, argnums=(0, 2, 3, 4, 5))(x, *rest)
        return torch.stack([slope.sin().sum() for slope in slopes]).sum()

    inputs = (X[..., :8, :8], Y, WEIGHT, BIAS, HIDDEN, LAST)
    second = vmap(grad(steepness, argnums=(0, 2, 3, 4, 5)))
    for expected, found in zip(second(*inputs), rerouted(second)(*inputs), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_normalised_groups(short: bool, relu: bool, used: list[str]) -> None:
    x, other = torch.randn(2, 3, 4, 8, 3, 3, generator=GENERATOR, dtype=torch.float64).unbind()
    weight, bias = torch.randn(2, 3, 8, generator=GENERATOR, dtype=torch.float64).unbind()

    def wave(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor) -> Tensor:
        out: Tensor = blocks.norm(x, weight, bias, other.sin() if short else None, 2, 1e-5, relu)
        return out.sin().sum()

    which = (0, 1, 2) + (3,) * short

    def steepness(*inputs: Tensor) -> Tensor:
        return torch.stack([slope.square().sum() for slope in grad(wave, argnums=which)(*inputs)]).sum()

    for function in (wave, steepness):
        slopes = vmap(grad(function, argnums=which))
        inputs = (x, weight, bias, other)
        for expected, found in zip(slopes(*inputs), rerouted(slopes)(*inputs), strict=True):
            torch.testing.assert_close(found, expected)
    assert set(used) == {"norm"}
