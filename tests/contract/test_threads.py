"""The loop engine with a client on each of two threads does what it does with one."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

import toys
from latecomer.clients import Clients
from latecomer.engines import loop
from latecomer.engines.loop import Loop
from latecomer.errors import StepError
from latecomer.tree import Tree


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loop, "SMALL", 0)  # else networks as small as these take turns
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


@pytest.mark.usefixtures("two_threads")
def test_small_networks_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    method = toys.method("fedavg")
    for limit, threads in ((method.task.model.size, 2), (method.task.model.size + 1, 1)):
        monkeypatch.setattr(loop, "SMALL", limit)
        assert Loop(method, [toys.federation()]).threads == threads


@pytest.mark.usefixtures("two_threads")
def test_threads_end_with_their_engine() -> None:
    method = toys.method("fedavg")
    engine = Loop(method, [toys.federation()])
    toys.rounds(method, engine, 1)
    assert engine.pool is not None
    threads = [*engine.pool._threads]
    assert threads
    del engine
    gc.collect()
    for thread in threads:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.usefixtures("two_threads")
def test_an_error_on_a_thread_names_its_client() -> None:
    method = toys.method("fedavg")
    clients = Clients(Loop(method, [toys.federation()]), torch.tensor([4, 2, 3]), 17)
    with pytest.raises(StepError, match=r"^Client 4 failed in round 17 at step 'fit', sent "):
        clients.run(
            method.fit, shared={"params": {name: leaf.long() for name, leaf in toys.start(method)["params"].items()}}
        )
