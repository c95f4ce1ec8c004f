"""Means that a few clients cannot carry away: values worked out by hand, and what holds for all of them."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from latecomer.plan import Average
from latecomer.robust import average

KINDS: tuple[Average, ...] = get_args(Average)
ROBUST = KINDS[1:]


def mean_of(
    rows: Tensor | list[list[float]], kind: Average, trim: float = 0.2, counted: Tensor | None = None
) -> Tensor:
    rows = torch.as_tensor(rows)
    return average(rows, torch.ones(len(rows), dtype=torch.bool) if counted is None else counted, kind, trim)


def random(clients: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(clients, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# by hand


FIVE = [[1.0, 50.0], [2.0, 40.0], [4.0, 30.0], [8.0, 20.0], [16.0, -1000.0]]


@pytest.mark.parametrize(
    ("kind", "trim", "expected"),
    [
        ("mean", 0.2, [6.2, -172.0]),
        ("median", 0.2, [4.0, 30.0]),
        ("trimmed", 0.2, [14 / 3, 30.0]),  # one of five at each end
        ("trimmed", 0.21, [4.0, 30.0]),  # two
        ("trimmed", 0.49, [4.0, 30.0]),  # three would leave nothing
        ("trimmed", 0.0, [6.2, -172.0]),
        ("krum", 0.2, [2.0, 40.0]),  # to the two nearest, squared: 510, 205, 220, 552
    ],
)
def test_five_clients(kind: Average, trim: float, expected: list[float]) -> None:
    torch.testing.assert_close(mean_of(FIVE, kind, trim), torch.tensor(expected))


def test_an_even_number_has_two_in_the_middle() -> None:
    assert mean_of([[1.0], [2.0], [10.0], [-5.0]], "median").tolist() == [1.5]
    assert mean_of([[1.0], [2.0], [10.0], [-5.0]], "trimmed").tolist() == [1.5]


def test_krum_asks_each_for_its_nearest_and_does_not_believe_the_rest() -> None:
    """Six on a line, one of them taken for hostile, so three nearest each: 0 has 1 + 4 + 16, 1 has 1 + 1 + 9, 2 has
    1 + 4 + 4, 4 has 4 + 9 + 16."""
    line = torch.tensor([[0.0], [1.0], [2.0], [4.0], [1000.0], [-1000.0]])
    assert mean_of(line, "krum", 1 / 6).tolist() == [2.0]
    far = mean_of(line + 4096, "krum", 1 / 6)  # squares of so large numbers have no digits left for the differences
    assert far.tolist() == [4098.0]


def test_the_geometric_median_of_a_quadrilateral_is_where_its_diagonals_meet() -> None:
    corners = torch.tensor([[0.0, 0.0], [4.0, 4.0], [3.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(mean_of(corners, "geometric"), torch.full((2,), 1.5).double(), rtol=0, atol=1e-4)


def test_the_geometric_median_of_a_triangle_sees_its_sides_at_120_degrees() -> None:
    """The first corner is the coordinate median, where the iteration begins; it must not stay there."""
    triangle = torch.tensor([[0.0, 0.0], [-1.0, 3.0], [3.0, -0.2]], dtype=torch.float64)
    away = torch.nn.functional.normalize(triangle - mean_of(triangle, "geometric"), dim=1)
    torch.testing.assert_close(away @ away.T, torch.eye(3).double() * 1.5 - 0.5, rtol=0, atol=3e-2)


def test_where_one_corner_is_blunt_the_geometric_median_is_that_corner() -> None:
    triangle = torch.tensor([[0.0, 0.0], [-10.0, 1.0], [10.0, 1.0]])
    torch.testing.assert_close(mean_of(triangle, "geometric"), torch.zeros(2), rtol=0, atol=1e-3)


# few clients, and none


@pytest.mark.parametrize("kind", KINDS)
def test_one_client_is_believed_two_meet_in_the_middle_and_nobody_is_zero(kind: Average) -> None:
    rows = random(5, 3)
    torch.testing.assert_close(mean_of(rows[:1], kind), rows[0])
    torch.testing.assert_close(mean_of(rows[:2], kind), rows[:2].mean(0))
    assert mean_of(rows, kind, counted=torch.zeros(5, dtype=torch.bool)).tolist() == [0.0] * 3
    assert mean_of(rows[:0], kind).tolist() == [0.0] * 3


@pytest.mark.parametrize("kind", ROBUST)
def test_of_three_clients_two_outvote_one(kind: Average) -> None:
    rows = torch.tensor([[1.0, 2.0], [1.5, 2.5], [1e6, -1e6]])
    assert (mean_of(rows, kind) - torch.tensor([1.25, 2.25])).norm() < 1


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_numbers_stay_and_counts_become_fractions(kind: Average) -> None:
    for dtype in (torch.float32, torch.float64):
        assert mean_of(random(4, 2).to(dtype), kind).dtype == dtype
    found = mean_of(torch.tensor([[1], [2]]), kind)
    torch.testing.assert_close(found, torch.tensor([1.5]))


# what holds for all


sizes = st.integers(1, 9)
columns = st.integers(0, 4)
shares = st.floats(0, 0.49)


@given(st.sampled_from(KINDS), sizes, columns, shares, st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_the_order_of_clients_and_whoever_does_not_count_have_no_effect(
    kind: Average, clients: int, columns: int, trim: float, seed: int
) -> None:
    rows = random(clients, columns, seed)
    expected = mean_of(rows, kind, trim)
    others = torch.cat([rows, torch.full((2, columns), 1e30, dtype=rows.dtype)])
    order = torch.randperm(clients + 2, generator=torch.Generator().manual_seed(seed))
    found = mean_of(others[order], kind, trim, counted=order < clients)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@given(st.sampled_from(KINDS), sizes, columns, shares)
@settings(max_examples=50, deadline=None)
def test_where_all_say_the_same_it_is_what_they_say(kind: Average, clients: int, columns: int, trim: float) -> None:
    row = random(1, columns)
    torch.testing.assert_close(mean_of(row.expand(clients, -1), kind, trim), row[0])


@given(
    st.sampled_from(ROBUST),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from([1e3, 1e10, 1e30, 3e38]),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 10**6),
)
@settings(max_examples=200, deadline=None)
def test_as_many_hostile_clients_as_were_foreseen_move_it_by_a_bounded_amount(
    kind: Average, hostile: int, columns: int, size: float, dtype: torch.dtype, seed: int
) -> None:
    """Whatever they send, together or each for itself, the result is no farther out than twice the honest rows."""
    honest = random(hostile + 3, columns, seed).to(dtype)
    clients = len(honest) + hostile
    sign = random(hostile, columns, seed + 1).sign().to(dtype)
    for attack in (sign * size, sign[:1].expand_as(sign) * size):
        found = mean_of(torch.cat([honest, attack]), kind, hostile / clients)
        assert found.norm() <= 2 * math.sqrt(columns) * honest.norm(dim=1).max()


def test_the_mean_is_carried_away() -> None:
    rows = torch.cat([torch.zeros(9, 1), torch.full((1, 1), 1e6)])
    assert mean_of(rows, "mean").tolist() == [1e5]
    assert all(mean_of(rows, kind).abs() < 1e-2 for kind in ROBUST)


@pytest.mark.parametrize("kind", ROBUST)
def test_numbers_too_large_to_square_are_not_lost(kind: Average) -> None:
    """All rows are so large that their distances overflow: nothing of what comes out is nonsense."""
    assert mean_of(torch.tensor([[1e30, 2e30], [-1e30, 1e30], [3e30, 0.0]]), kind).isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_the_same_and_does_not_wait(kind: Average) -> None:
    rows, counted = random(12, 1000), torch.arange(12) % 5 > 0
    there = rows.cuda(), counted.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = average(*there, kind, 0.2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found.cpu(), average(rows, counted, kind, 0.2))
