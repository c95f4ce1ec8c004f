"""Which examples the batches of many clients consist of: data/shuffle.py in one kernel, a client a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...data import shuffle

GOLDEN, FIRST, SECOND = (tl.constexpr(number) for number in shuffle.CONSTANTS)


@triton.jit
def _finalise(x):
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * FIRST
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * SECOND
    return x ^ ((x >> 31) & ((1 << 33) - 1))


@triton.jit
def _mixed(state, number):
    return _finalise((state + GOLDEN) ^ number)


@triton.jit
def _below(x, size):
    """The remainder, which is not negative."""
    rest = x % size
    return tl.where(rest < 0, rest + size, rest)


@triton.jit(do_not_specialize=["use", "steps", "size", "passes"])
def _draw(
    counts, seeds, numbers, clients, place, real, use, steps, size, passes, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):
    net = tl.program_id(0).to(tl.int64)
    step = tl.program_id(1).to(tl.int64)
    count = tl.load(counts + net)
    per_pass = tl.where(passes < 0, 1, tl.maximum((count + size - 1) // size, 1))
    turn = step // per_pass
    column = tl.arange(0, BLOCK)
    at = step % per_pass * size + column
    mine = (at < count) & ((passes < 0) | (turn < passes))
    key = _mixed(_mixed(tl.zeros((1,), tl.int64), tl.load(seeds + net)), tl.load(numbers + net))
    key = _mixed(_mixed(_mixed(key, tl.load(clients + net)), use), turn)
    count = tl.maximum(count, 1)
    at = tl.minimum(at, count - 1)
    behind = key + tl.full((1,), ROUNDS, tl.int64) * GOLDEN
    for _ in range(ROUNDS):
        pivot = _below(_finalise(key) >> 1, count)
        partner = _below(pivot - at, count)
        swap = tl.maximum(at, partner) * _finalise(behind) + pivot < 0
        at = tl.where(swap, partner, at)
        key, behind = key + GOLDEN, behind + GOLDEN
    to = (net * steps + step) * size + column
    tl.store(place + to, at, mask=column < size)
    tl.store(real + to, mine, mask=column < size)


def draw(
    count: Tensor, seed: Tensor, number: Tensor, client: Tensor, use: int, steps: int, size: int, passes: int | None
) -> tuple[Tensor, Tensor]:
    """As `shuffle.draw`, of numbers [rows]: places and what is real, [rows, steps, size]."""
    place = count.new_empty(len(count), steps, size)
    real = torch.empty_like(place, dtype=torch.bool)
    numbers = (each.contiguous() for each in (count, seed, number, client))
    most = -1 if passes is None else passes
    _draw[(len(count), steps)](
        *numbers, place, real, use, steps, size, most, shuffle.ROUNDS, triton.next_power_of_2(size), num_warps=1
    )
    return place, real
