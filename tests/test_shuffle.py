"""Randomness as a pure function: the shuffle is a permutation, and looks uniform."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from latecomer.ops.shuffle import mix, normal, purpose, sample, shuffled, uniform

KEYS = mix(torch.arange(20_000), purpose("test"))


def excess(counts: Tensor, expected: float, freedom: int) -> float:
    """How many standard deviations chi-square lies above what uniform counts give."""
    return (float(((counts - expected) ** 2 / expected).sum()) - freedom) / math.sqrt(2 * freedom)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(size=st.integers(1, 3000), key=st.integers(-(2**63), 2**63 - 1))
def test_any_key_shuffles_any_size_into_a_permutation(size: int, key: int) -> None:
    places = shuffled(torch.arange(size), torch.tensor(size), torch.tensor(key))
    assert places.sort().values.equal(torch.arange(size))


@pytest.mark.parametrize("size", [2, 3, 7, 10, 16, 33, 64, 100])
def test_every_place_is_equally_likely_for_everything(size: int) -> None:
    """With these fixed keys chi-square stays within 4 standard deviations of a uniform shuffle's."""
    places = shuffled(torch.arange(size), torch.tensor(size), KEYS[:, None])  # [keys, size]
    counts = torch.stack([places[:, k].bincount(minlength=size) for k in range(size)])
    assert excess(counts, len(KEYS) / size, (size - 1) ** 2) < 4


@pytest.mark.parametrize("size", [3, 4, 5])
def test_every_order_is_equally_likely(size: int) -> None:
    places = shuffled(torch.arange(size), torch.tensor(size), KEYS[:, None])
    codes = (places * size ** torch.arange(size)).sum(1)
    counts, orders = codes.unique(return_counts=True)[1], math.factorial(size)
    assert len(counts) == orders
    assert excess(counts, len(KEYS) / orders, orders - 1) < 4


@pytest.mark.parametrize("size", [8, 50])
def test_neighbours_do_not_stay_together(size: int) -> None:
    places = shuffled(torch.arange(2), torch.tensor(size), KEYS[:, None])
    joint = (places[:, 0] * size + places[:, 1]).bincount(minlength=size**2).reshape(size, size)
    apart = joint[~torch.eye(size, dtype=torch.bool)]
    assert int(joint.diagonal().sum()) == 0
    assert excess(apart, len(KEYS) / len(apart), len(apart) - 1) < 4


def test_a_single_place_needs_no_other() -> None:
    key, size = KEYS[0], torch.tensor(57)
    whole = shuffled(torch.arange(57), size, key)
    assert all(int(shuffled(torch.tensor(k), size, key)) == int(whole[k]) for k in range(57))


def test_it_is_the_same_under_vmap() -> None:
    sizes = torch.arange(5, 13)
    mapped = torch.vmap(lambda size, key: shuffled(torch.arange(5), size, key))(sizes, KEYS[:8])
    assert mapped.equal(torch.stack([shuffled(torch.arange(5), sizes[k], KEYS[k]) for k in range(8)]))


@settings(deadline=None, derandomize=True, max_examples=50)
@given(population=st.integers(1, 10**12), count=st.integers(0, 200), seed=st.integers(0, 2**31), turn=st.integers(0, 9))
def test_a_sample_is_distinct_and_repeatable(population: int, count: int, seed: int, turn: int) -> None:
    count = min(count, population)
    chosen = sample(count, population, seed, turn)
    assert len(chosen.unique()) == count
    assert bool(((chosen >= 0) & (chosen < population)).all())
    assert chosen.equal(sample(count, population, seed, turn))


def test_other_rounds_and_purposes_draw_otherwise() -> None:
    draws = [sample(20, 1000, 0, k, purpose(name)).tolist() for k in range(3) for name in ("cohort", "batch")]
    assert len({tuple(draw) for draw in draws}) == 6


def test_normal_numbers_are_normal() -> None:
    """By the test of Kolmogorov and Smirnov, and at the ends of what the hash can give."""
    numbers = normal(mix(torch.arange(40_000), purpose("normal")))
    assert scipy.stats.kstest(numbers.numpy(), "norm").pvalue > 0.01
    ends = normal(torch.tensor([0, 0, -1, 0]))  # uniform numbers 0 and just below 1; the angle is 0
    assert ends[0] == 0
    assert 8 < ends[1] < 9


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    numbers = uniform(KEYS)
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    assert excess((numbers * 100).long().bincount(minlength=100), len(KEYS) / 100, 99) < 4


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_first_of_many_normal_numbers_are_those_of_few(size: int) -> None:
    """Whoever asks for one number an example gets the same ones, whatever the padding."""
    assert normal(KEYS[: 2 * size]).equal(normal(KEYS[:202])[:size])
