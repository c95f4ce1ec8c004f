"""Randomness as a pure function of numbers: the same on every engine, device and chunk size.

`mix` is a counter-based hash in 64-bit integer arithmetic (the finaliser of SplitMix64, Steele et al., OOPSLA 2014).
`shuffled` is the swap-or-not shuffle (Hoang, Morris, Rogaway, CRYPTO 2012): it computes single places of a random
permutation of any length without building the permutation. Both work under `vmap` and inside a CUDA graph. `draw` makes
batches of them; on a GPU, where clients are mapped, a kernel does all of it for a client a row.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import Tensor

from .mapping import HAS_TRITON, Final, mapped, on_gpu

ROUNDS = 16
"""Swap-or-not rounds: enough that tests/test_shuffle.py cannot tell the result from a uniform permutation."""

CONSTANTS = -7046029254386353131, -4658895280553007687, -7723592293110705685
"""SplitMix64's, as signed numbers (the first is 0x9E3779B97F4A7C15): torch has no unsigned 64-bit arithmetic."""

_GOLDEN, _FIRST, _SECOND = CONSTANTS


def _shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts arithmetically; the mask makes it logical


def _finalise(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def mix(*numbers: Tensor | int) -> Tensor:
    """One well-mixed 64-bit number from several (broadcast against each other; at least one is a tensor)."""
    device = next(number.device for number in numbers if isinstance(number, Tensor))
    state = torch.zeros((), dtype=torch.int64, device=device)
    for number in numbers:
        state = _finalise(state + _GOLDEN ^ number)
    return state


def purpose(name: str) -> int:
    """A number for the use to which randomness is put, so that two uses never share it."""
    return zlib.crc32(name.encode())


def uniform(key: Tensor) -> Tensor:
    """A number in [0, 1) from a hash."""
    return _shift(key, 11).to(torch.float64) * 2.0**-53


def normal(keys: Tensor) -> Tensor:
    """Standard normal numbers from hashes, one from every two neighbours (Box and Muller, 1958)."""
    first, second = uniform(keys).unflatten(0, (-1, 2)).unbind(1)
    return (-2 * torch.log1p(-first)).sqrt() * torch.cos(2 * math.pi * second)


def lot(seed: Tensor | int, client: Tensor, name: str) -> Tensor:
    """The number in [0, 1) that a client draws once for a purpose; server and client can both know it."""
    return uniform(mix(seed, client, purpose(name)))


def shuffled(place: Tensor, size: Tensor, key: Tensor) -> Tensor:
    """Where the random permutation of `size` things named by `key` sends `place` (all broadcast, 0 <= place < size)."""
    counter = torch.arange(2 * ROUNDS, device=key.device)
    words = _finalise(key[..., None] + counter * _GOLDEN)
    pivots = (words[..., :ROUNDS] >> 1).remainder(size[..., None])
    for pivot, multiplier in zip(pivots.unbind(-1), words[..., ROUNDS:].unbind(-1), strict=True):
        partner = (pivot - place).remainder(size)
        swap = torch.maximum(place, partner) * multiplier + pivot < 0  # the sign is a random bit
        place = torch.where(swap, partner, place)
    return place


def draw(
    count: Tensor, seed: Tensor, number: Tensor, client: Tensor, use: int, steps: int, size: int, passes: int | None
) -> tuple[Tensor, Tensor]:
    """Batches of `count` examples (numbers without dimensions): what is where, [steps, size], and what is real.

    With `passes`, that many shuffled passes, in which every example comes once: the last batch of each may be short.
    With None, every batch is drawn afresh, without repetition within it. What is not real names any example: it fills
    up a batch that is larger than what is left, and all batches after the last pass.
    """
    if mapped(count) and on_gpu(count):
        who = (tensor[None] for tensor in (count, seed, number, client))
        drawn = _Draw.apply(*who, use, steps, size, passes)  # type: ignore[no-untyped-call]
        return drawn[0].squeeze(0), drawn[1].squeeze(0)
    step = torch.arange(steps, device=count.device)
    per_pass = ((count + size - 1) // size).clamp(min=1) if passes is not None else torch.ones_like(count)
    turn = step // per_pass  # which shuffle of the data
    place = (step % per_pass)[:, None] * size + torch.arange(size, device=count.device)
    real = place < count if passes is None else (place < count) & (turn < passes)[:, None]
    key = mix(seed, number, client, use, turn)[:, None]
    some = count.clamp(min=1)
    return shuffled(torch.minimum(place, some - 1), some, key), real


def sample(count: int, population: int, *key: Tensor | int) -> Tensor:
    """`count` distinct numbers below `population`, whose size costs nothing; a row for every key."""
    name = mix(torch.as_tensor(key[0]), *key[1:])[..., None]
    return shuffled(torch.arange(count), torch.tensor(population), name)


class _Draw(Final):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        return draw_rows(*inputs)


if HAS_TRITON:
    import triton
    import triton.language as tl

    GOLDEN, FIRST, SECOND = (tl.constexpr(number) for number in CONSTANTS)

    @triton.jit
    def _finalise_kernel(x):
        x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * FIRST
        x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * SECOND
        return x ^ ((x >> 31) & ((1 << 33) - 1))

    @triton.jit
    def _mix_kernel(state, number):
        return _finalise_kernel((state + GOLDEN) ^ number)

    @triton.jit
    def _remainder_kernel(x, size):
        """Not negative, as Python's."""
        rest = x % size
        return tl.where(rest < 0, rest + size, rest)

    @triton.jit(do_not_specialize=["use", "steps", "size", "passes"])
    def _draw_kernel(
        counts, seeds, numbers, clients, place, real, use, steps, size, passes,
        ROUNDS: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(0).to(tl.int64)
        step = tl.program_id(1).to(tl.int64)
        count = tl.load(counts + row)
        per_pass = tl.where(passes < 0, 1, tl.maximum((count + size - 1) // size, 1))
        turn = step // per_pass
        column = tl.arange(0, BLOCK)
        at = step % per_pass * size + column
        mine = (at < count) & ((passes < 0) | (turn < passes))
        key = _mix_kernel(_mix_kernel(tl.zeros((1,), tl.int64), tl.load(seeds + row)), tl.load(numbers + row))
        key = _mix_kernel(_mix_kernel(_mix_kernel(key, tl.load(clients + row)), use), turn)
        count = tl.maximum(count, 1)
        at = tl.minimum(at, count - 1)
        behind = key + tl.full((1,), ROUNDS, tl.int64) * GOLDEN
        for _ in range(ROUNDS):
            pivot = _remainder_kernel(_finalise_kernel(key) >> 1, count)
            partner = _remainder_kernel(pivot - at, count)
            swap = tl.maximum(at, partner) * _finalise_kernel(behind) + pivot < 0
            at = tl.where(swap, partner, at)
            key, behind = key + GOLDEN, behind + GOLDEN
        to = (row * steps + step) * size + column
        tl.store(place + to, at, mask=column < size)
        tl.store(real + to, mine, mask=column < size)


def draw_rows(
    count: Tensor, seed: Tensor, number: Tensor, client: Tensor, use: int, steps: int, size: int, passes: int | None
) -> tuple[Tensor, Tensor]:
    """As `draw`, of numbers [rows]: places and what is real, [rows, steps, size]."""
    place = count.new_empty(len(count), steps, size)
    real = torch.empty_like(place, dtype=torch.bool)
    who = (each.contiguous() for each in (count, seed, number, client))
    most = -1 if passes is None else passes
    _draw_kernel[(len(count), steps)](
        *who, place, real, use, steps, size, most, ROUNDS, triton.next_power_of_2(size), num_warps=1
    )
    return place, real
