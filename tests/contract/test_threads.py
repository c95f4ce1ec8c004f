"""The loop engine with a client on each of two threads does what it does with one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import toys
from latecomer.engines.loop import Loop
from latecomer.tree import Tree


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def trained(name: str, threads: int) -> Tree:
    method = toys.method(name, torch.float64)
    engine = Loop(method, [toys.federation()])
    assert (engine.threads, engine.pool is not None) == (threads, threads > 1)
    state, _ = toys.rounds(method, engine, 2)
    return toys.everything(state, engine)


def test_as_many_clients_at_a_time_as_there_are_threads(name: str, request: pytest.FixtureRequest) -> None:
    expected = trained(name, 1)
    request.getfixturevalue("two_threads")
    assert toys.gap(expected, trained(name, 2)) < 1e-9
