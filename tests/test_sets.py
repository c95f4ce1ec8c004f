"""Set encoders: padding does not count, order does not matter, and one example moves a bounded descriptor little."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import toys
from latecomer import tree
from latecomer.errors import SettingError
from latecomer.nets.models import LeNet
from latecomer.nets.net import Net
from latecomer.nets.sets import SetEncoder, features, layers, stretch
from latecomer.task import Batch, Task

ROWS = torch.tensor([[-3.0, 1.0], [-1.0, -2.0], [9.0, 9.0], [-7.0, -4.0]])


def batch(x: Tensor, real: list[bool]) -> Batch:
    return Batch(x, torch.full((len(x),), -1), torch.tensor(real))


@pytest.mark.parametrize(
    ("real", "mean", "largest"),
    [
        ([True, True, False, False], [-2.0, -0.5], [-1.0, 1.0]),  # the padding is larger than all that is real
        ([True, True, True, True], [-0.5, 1.0], [9.0, 9.0]),
        ([False, False, False, True], [-7.0, -4.0], [-7.0, -4.0]),  # and here all that is real is below zero
        ([False, False, False, False], [0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_padding_is_pooled_neither_by_mean_nor_by_maximum(
    real: list[bool], mean: list[float], largest: list[float]
) -> None:
    some = batch(ROWS, real)
    assert some.mean(ROWS).tolist() == mean
    assert some.max(ROWS).tolist() == largest


def test_padding_gets_no_gradient() -> None:
    """Of a sum of both pools: a share of the mean to the real ones, and the maximum to the largest among them."""
    real = torch.tensor([[True, True, False, False], [False, False, False, False]])

    def pooled(rows: Tensor, real: Tensor) -> Tensor:
        some = Batch(rows, torch.zeros(4), real)
        return (some.mean(rows) + some.max(rows)).sum()

    found = torch.vmap(torch.func.grad(pooled), in_dims=(None, 0))(ROWS, real)
    assert found[0].tolist() == [[0.5, 1.5], [1.5, 0.5], [0.0, 0.0], [0.0, 0.0]]
    assert found[1].abs().max() == 0


def encoder(**settings: object) -> SetEncoder:
    hidden = settings.pop("after", 0)
    return SetEncoder(features("dense", toys.task(), 6), layers(6, 3, hidden), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("pool", ["mean", "mean-max"])
@pytest.mark.parametrize("after", [0, 2])
def test_a_descriptor_is_of_a_set(pool: str, after: int) -> None:
    made = encoder(pool=pool, after=after)
    params = made.fresh(torch.Generator().manual_seed(0))
    assert made.size == 3
    assert len(made.psi.shapes) == 2 * (after + 1)
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    alone = made(params, batch(x, [True] * 5))
    padded = torch.cat([torch.full((2, 1, 8, 8), 50.0), x[[3, 0, 4, 2, 1]]])
    among = made(params, batch(padded, [False] * 2 + [True] * 5))
    assert alone.shape == (3,)
    assert torch.allclose(alone, among, atol=1e-6)
    assert not torch.allclose(alone, made(params, batch(x, [True] * 4 + [False])), atol=1e-4)


def test_the_halves_are_pooled_each_in_its_way() -> None:
    made = encoder()
    params = made.fresh(torch.Generator().manual_seed(0))
    params["psi"] = {"0.weight": torch.eye(3, 6).roll(2, 1), "0.bias": torch.zeros(3)}  # units 2, 3 and 4
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    units = made.phi(params["phi"], x)
    wanted = [units[:, 2].mean(), units[:, 3].max(), units[:, 4].max()]
    assert made(params, batch(x, [True] * 5)).tolist() == pytest.approx(torch.stack(wanted).tolist(), abs=1e-6)


def test_what_sees_an_example_fits_it() -> None:
    net = toys.task().model
    assert features("auto", Task(net, (3, 32, 32), 10), 200).shapes["0.fc3.weight"] == (200, 84)
    assert features("auto", Task(net, (1, 8, 8), 10), 200).shapes["1.weight"] == (200, 64)
    assert features("auto", Task(net, (7,), 10), 20).shapes["1.weight"] == (20, 7)
    whole = features("lenet", Task(net, (1, 8, 8), 10), 12)
    plain = Net(lambda: LeNet((1, 8, 8), 12))
    params = whole.fresh(torch.Generator().manual_seed(0))
    x = torch.randn(4, 1, 8, 8)
    seen = plain({name.removeprefix("0."): weight for name, weight in params.items()}, x)
    assert torch.equal(whole(params, x), seen.relu())


# what one example can do


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (3, 3), (25, 200), (200, 25)])
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e12])
def test_the_stretch_of_a_matrix_is_bounded_closely(shape: tuple[int, int], size: float) -> None:
    weight = size * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    largest = torch.linalg.svdvals(weight.double())[0].item()
    assert largest <= stretch(weight).item() <= 1.03 * largest


def test_the_stretch_of_odd_matrices() -> None:
    assert 1 <= stretch(torch.eye(25)).item() < 1.03, "all directions alike: the bound is at its loosest"
    assert 0 < stretch(torch.zeros(2, 3)).item() < 1e-30
    slope = torch.vmap(torch.func.grad(lambda weight: stretch(weight)))(torch.randn(4, 3, 5))
    assert slope.isfinite().all()
    assert slope.abs().sum() > 0


@pytest.mark.parametrize("seed", range(20))
def test_replacing_one_example_moves_a_bounded_descriptor_by_no_more_than_its_sensitivity(seed: int) -> None:
    made = encoder(pool="mean", bound=0.8, lipschitz=2.5)
    random = torch.Generator().manual_seed(seed)
    params = tree.map(lambda leaf: leaf * 10 ** (2 * torch.rand((), generator=random)), made.fresh(random))
    count = 2 + seed
    x = torch.randn(count, 1, 8, 8, generator=random)
    other = x.clone()
    other[seed % count] = torch.randn(1, 8, 8, generator=random) * 10.0 ** (seed % 7)
    moved = made(params, batch(x, [True] * count)) - made(params, batch(other, [True] * count))
    assert made.sensitivity == pytest.approx(2 * 2.5 * 0.8)
    assert 0 < torch.linalg.vector_norm(moved).item() <= made.sensitivity / count * (1 + 1e-5)


@pytest.mark.parametrize("size", [1e-30, 1e20, 1e38, float("inf"), float("nan")])
def test_no_weights_that_a_server_may_send_break_the_bound(size: float) -> None:
    """Features that overflow for one example and not for another would tell them apart, were they not put right."""
    made = encoder(pool="mean", bound=0.8, lipschitz=2.5)
    params = made.fresh(torch.Generator().manual_seed(0))
    params["phi"]["1.weight"] = params["phi"]["1.weight"].sign() * size
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    other = x.clone()
    other[2] = 0
    moved = made(params, batch(x, [True] * 4)) - made(params, batch(other, [True] * 4))
    assert moved.isfinite().all()
    assert torch.linalg.vector_norm(moved).item() <= made.sensitivity / 4


def test_a_bound_is_for_means_and_one_layer() -> None:
    for settings in ({"pool": "mean-max"}, {"pool": "mean", "after": 1}):
        with pytest.raises(SettingError, match="--bound goes with --pool mean and --after 0"):
            encoder(bound=1.0, **settings)
    with pytest.raises(SettingError, match="--epsilon needs a --bound"):
        _ = encoder(pool="mean").sensitivity
