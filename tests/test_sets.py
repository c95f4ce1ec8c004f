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
from latecomer.nets.sets import SetEncoder, bounded, features, layers
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


WEIGHTS = [0.0, 1e-45, 1e-38, 1e-20, 1e20, 1e38, 3.4e38, float("inf"), float("nan")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounded_rows_are_finite_positive_and_short(dtype: torch.dtype) -> None:
    """Whatever they were: of both precisions, with squares that overflow or underflow, or no numbers at all."""
    largest, tiny = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    odd = [0.0, tiny / 4, tiny, 0.3, 1e20, largest, float("inf"), float("nan"), -1.0, -float("inf")]
    rows = torch.tensor([[a, b, c] for a in odd for b in odd for c in odd], dtype=dtype)
    found = bounded(rows, 0.8)
    assert found.dtype == torch.float64
    assert found.isfinite().all()
    assert (found >= 0).all()
    assert torch.linalg.vector_norm(found, dim=-1).max().item() <= 0.8 * (1 + 1e-15)
    short = ((rows >= 0) & (rows <= 0.3)).all(-1)
    assert torch.equal(found[short], rows[short].double()), "what is short stays as it is"
    plain = torch.tensor([[3.0, 0.0, 4.0]], dtype=dtype)
    assert bounded(plain, 0.8).tolist()[0] == pytest.approx([0.48, 0.0, 0.64])


def test_the_bound_has_a_gradient_everywhere() -> None:
    rows = torch.tensor([[0.0, 0.0], [0.1, 0.2], [3.0, 4.0], [1e30, 0.0], [torch.inf, 1.0]])
    slope = torch.vmap(torch.func.grad(lambda row: bounded(row[None], 1.0).sum()))(rows)
    assert slope.isfinite().all()
    assert slope[1].tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("seed", range(20))
def test_replacing_one_example_moves_what_is_pooled_by_no_more_than_the_sensitivity(seed: int) -> None:
    made = encoder(pool="mean", bound=0.8, after=seed % 2)
    random = torch.Generator().manual_seed(seed)
    params = tree.map(lambda leaf: leaf * 10 ** (2 * torch.rand((), generator=random)), made.fresh(random))
    count = 2 + seed
    x = torch.randn(count, 1, 8, 8, generator=random)
    other = x.clone()
    other[seed % count] = torch.randn(1, 8, 8, generator=random) * 10.0 ** (seed % 7)
    moved = made.pooled(params, batch(x, [True] * count)) - made.pooled(params, batch(other, [True] * count))
    assert made.sensitivity == pytest.approx(2**0.5 * 0.8, rel=2e-6)
    assert 0 < torch.linalg.vector_norm(moved).item() <= made.sensitivity / count


def test_features_at_right_angles_need_all_of_the_sensitivity() -> None:
    """One pixel lights one unit, another pixel another: the bound cannot be better than sqrt(2) B."""
    made = encoder(pool="mean", bound=0.8)
    params = made.fresh(torch.Generator().manual_seed(0))
    params["phi"] = {"1.weight": 1e30 * torch.eye(6, 64), "1.bias": torch.zeros(6)}
    x = torch.zeros(4, 1, 8, 8)
    x[:, 0, 0, 0] = 1
    other = x.clone()
    other[1, 0, 0] = torch.eye(8)[3]
    moved = made.pooled(params, batch(x, [True] * 4)) - made.pooled(params, batch(other, [True] * 4))
    assert torch.linalg.vector_norm(moved).item() == pytest.approx(2**0.5 * 0.8 / 4, rel=1e-12)
    assert torch.linalg.vector_norm(moved).item() < made.sensitivity / 4


@pytest.mark.parametrize("size", WEIGHTS)
@pytest.mark.parametrize("where", ["phi", "psi"])
def test_no_weights_that_a_server_may_send_break_the_bound(size: float, where: str) -> None:
    """Features that overflow for one example and not for another would tell them apart, were they not put right."""
    made = encoder(pool="mean", bound=0.8)
    params = made.fresh(torch.Generator().manual_seed(0))
    params[where] = tree.map(lambda leaf: leaf.sign() * size, params[where])
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    other = x.clone()
    other[2] = 0
    pooled = [made.pooled(params, batch(some, [True, True, True, False])) for some in (x, other)]
    assert all(value.isfinite().all() and value.dtype == torch.float64 for value in pooled)
    assert torch.linalg.vector_norm(pooled[0] - pooled[1]).item() <= made.sensitivity / 3


def test_a_bound_is_for_means() -> None:
    with pytest.raises(SettingError, match=r"--bound goes with --pool mean: it limits what one example does to a mean"):
        encoder(bound=1.0, pool="mean-max")
    with pytest.raises(SettingError, match="--epsilon needs a --bound on the features, 1 say, with --pool mean"):
        _ = encoder(pool="mean").sensitivity
