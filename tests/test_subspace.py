"""Random subspaces: what the expansion is, that it is cheap, and that both sides make the same one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import grad, vmap

import toys
from latecomer import tree
from latecomer.errors import SettingError
from latecomer.nets.net import Net
from latecomer.nets.subspace import Dense, Kronecker, Subspace

RESNET18 = 11_173_962  # weights, for ten classes


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def matrix(p: Dense | Kronecker, size: int) -> torch.Tensor:
    """P as it acts on the unit vectors, [weights, size]."""
    return vmap(p)(torch.eye(size, dtype=torch.float64)).t()


def in_double(p: Dense | Kronecker) -> Dense | Kronecker:
    return p.to(torch.device("cpu"), torch.float64)


sizes = st.integers(1, 60).flatmap(lambda weights: st.tuples(st.just(weights), st.integers(1, weights)))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(sizes=sizes, seed=st.integers(0, 10**6))
def test_a_kronecker_product_cut_to_size_with_columns_of_norm_one(sizes: tuple[int, int], seed: int) -> None:
    weights, size = sizes
    p = in_double(Kronecker.draw(weights, size, generator(seed)))
    assert isinstance(p, Kronecker)
    rows, heads = p.left.shape
    columns, tails = p.right.shape
    cut = np.kron(p.left.numpy(), p.right.numpy()).reshape(rows * columns, heads * tails)[:weights, :size]
    found = matrix(p, size).numpy()
    assert found == pytest.approx(cut / np.sqrt((cut**2).sum(0)), abs=1e-6)  # the norms were rounded to floats
    assert (found**2).sum(0) == pytest.approx(np.ones(size), abs=1e-6)
    assert rows * columns - weights < columns, "no row is drawn in vain"
    assert heads * tails - size < tails


@pytest.mark.parametrize("weights", range(1, 41))
def test_every_coordinate_is_a_direction_of_its_own(weights: int) -> None:
    for size in range(1, weights + 1):
        p = in_double(Kronecker.draw(weights, size, generator()))
        assert int(torch.linalg.matrix_rank(matrix(p, size), rtol=1e-9)) == size


def test_a_dense_expansion_has_columns_of_norm_one() -> None:
    p = Dense.draw(50, 7, generator())
    assert p.matrix.shape == (50, 7)
    assert p.matrix.square().sum(0).tolist() == pytest.approx([1.0] * 7)
    assert matrix(in_double(p), 7).float().equal(p.matrix)


@pytest.mark.parametrize("kind", ["kronecker", "dense"])
def test_a_model_is_theta_0_plus_its_place(kind: str) -> None:
    net = toys.task().model
    space = Subspace.draw(net, kind, 20, seed=5)  # type: ignore[arg-type]
    start = space(torch.zeros(20))
    assert start.keys() == net.shapes.keys()
    assert toys.same(start, net.fresh(generator(5))), "theta_0 is what the net itself draws"
    v = torch.randn(20, generator=generator(1))
    moved = tree.ravel(space(v)) - tree.ravel(start)
    assert moved.tolist() == pytest.approx(space.expansion(v).tolist(), abs=1e-6)
    rows = torch.stack([v, 2 * v])
    assert toys.gap(tree.row(vmap(space)(rows), 0), space(v)) < 1e-6
    slope = grad(lambda place: tree.ravel(space(place)).square().sum() / 2)(v)
    expected = vmap(space.expansion)(torch.eye(20)) @ tree.ravel(space(v))
    assert slope.tolist() == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("kind", ["kronecker", "dense"])
def test_the_seed_is_all_that_both_sides_need(kind: str) -> None:
    def place(seed: int) -> dict[str, torch.Tensor]:
        return Subspace.draw(toys.task().model, kind, 20, seed)(torch.ones(20))  # type: ignore[arg-type]

    assert toys.same(place(3), place(3))
    assert toys.gap(place(3), place(4)) > 0.01


def test_in_double_precision_and_on_another_device() -> None:
    space = Subspace.draw(toys.task().model, "kronecker", 20, 0, torch.float64)
    assert space(torch.zeros(20, dtype=torch.float64))["1.weight"].dtype == torch.float64
    assert space.on(torch.device("cpu")) is space
    other = space.on(torch.device("meta"))
    assert other is space.on(torch.device("meta")), "copied once"
    assert other(torch.zeros(20, dtype=torch.float64, device="meta"))["1.weight"].device.type == "meta"


class Large(nn.Module):
    """As many weights as ResNet18."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(RESNET18))


def test_what_a_phone_holds_for_resnet18() -> None:
    space = Subspace.draw(Net(Large), "kronecker", 10_000, 0)
    assert space.size == 10_000
    assert space.bytes == 4 * (3343 * 100 + 3343 * 100 + 10_000)
    assert space.bytes < 50e6
    assert space(torch.ones(10_000))["weight"].shape == (RESNET18,)


@pytest.mark.parametrize("kind", ["kronecker", "dense"])
def test_a_subspace_larger_than_the_model_is_refused(kind: str) -> None:
    sentence = r"--dimension must be at most the number of the model's weights, 610; got 611\."
    for name in ("flowdup", "ldfedavg"):
        with pytest.raises(SettingError, match=sentence):
            toys.method(name, dimension=611, subspace=kind)
        assert toys.method(name, dimension=610, subspace=kind).space.size == 610  # type: ignore[attr-defined]


def test_a_dense_expansion_that_no_machine_holds_is_refused() -> None:
    with pytest.raises(SettingError, match=r"would hold 416 GiB for 11,173,962 weights .* use --subspace kronecker"):
        Dense.draw(RESNET18, 10_000, generator())


@pytest.mark.parametrize(("weights", "size"), [(156_810, 10_000), (7_510, 751), (610, 61), (5, 1)])
def test_the_default_size(weights: int, size: int) -> None:
    from latecomer.methods.ldfedavg import LDFedAvg
    from latecomer.task import Task

    class Some(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(weights))

    method = LDFedAvg(task=Task(Net(Some), (1,), 2), clients=2, members=2)
    assert method.space.size == size
