"""Several runs, one exchange for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from latecomer.clients import Ask, Engine
from latecomer.sweep import lockstep as lockstep_module
from latecomer.sweep.lockstep import Lockstep


class Counting:
    """An engine that answers nothing and remembers who was asked together."""

    def __init__(self, fail_at: str = "") -> None:
        self.device = torch.device("cpu")
        self.calls: list[tuple[str, list[Any]]] = []
        self.threads: set[int] = set()
        self.fail_at = fail_at

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        self.calls.append((step, list(asks)))
        self.threads.add(threading.get_ident())
        if step == self.fail_at:
            raise RuntimeError("the device is gone")


def run(name: str, *steps: str, error: Exception | None = None) -> Callable[[Engine], str]:
    """Server work that exchanges step after step and then returns its name, or fails."""

    def work(engine: Engine) -> str:
        for step in steps:
            engine.exchange(step, [f"{name} {step}"])  # type: ignore[list-item]
        if error is not None:
            raise error
        return name

    return work


class Threads:
    """The threads that were started since."""

    def __init__(self) -> None:
        self.before = set(threading.enumerate())

    def started(self) -> set[threading.Thread]:
        return set(threading.enumerate()) - self.before

    def have_ended(self) -> bool:
        for thread in self.started():
            thread.join(timeout=5)
        return not self.started()


def test_one_run_needs_no_thread() -> None:
    threads, engine = Threads(), Counting()
    assert Lockstep(engine)([run("a", "fit")]) == ["a"]
    assert not threads.started()
    assert engine.calls == [("fit", ["a fit"])]


def test_runs_share_their_exchanges() -> None:
    engine = Counting()
    lockstep = Lockstep(engine)
    assert lockstep([run(name, "describe", "fit") for name in "abc"]) == ["a", "b", "c"]
    assert engine.calls == [
        ("describe", ["a describe", "b describe", "c describe"]),
        ("fit", ["a fit", "b fit", "c fit"]),
    ]
    assert engine.threads == {threading.get_ident()}, "the caller's thread does the exchanges"
    lockstep.close()


def test_runs_with_unequal_numbers_of_exchanges() -> None:
    engine = Counting()
    lockstep = Lockstep(engine)
    works = [run("a", "fit"), run("b", "fit", "fit", "fit"), run("c")]
    assert lockstep(works) == ["a", "b", "c"]
    assert engine.calls == [("fit", ["a fit", "b fit"]), ("fit", ["b fit"]), ("fit", ["b fit"])]
    lockstep.close()


def test_runs_that_want_different_steps() -> None:
    engine = Counting()
    lockstep = Lockstep(engine)
    assert lockstep([run("a", "arrive", "score"), run("b", "score")]) == ["a", "b"]
    assert engine.calls == [("arrive", ["a arrive"]), ("score", ["a score", "b score"])]
    lockstep.close()


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("steps", [(), ("fit",), ("fit", "fit")])
def test_an_error_in_one_run_reaches_the_caller(place: int, steps: tuple[str, ...]) -> None:
    threads, lockstep = Threads(), Lockstep(Counting())
    works = [run(name, "fit", "fit", "fit") for name in "abc"]
    works[place] = run("x", *steps, error=ValueError("run x is wrong"))
    with pytest.raises(ValueError, match="run x is wrong"):
        lockstep(works)
    assert lockstep([run("a", "fit"), run("b", "fit"), run("c")]) == ["a", "b", "c"], "it can be used again"
    lockstep.close()
    assert threads.have_ended()


def test_an_error_in_the_engine_reaches_the_caller() -> None:
    threads, lockstep = Threads(), Lockstep(Counting(fail_at="fit"))
    with pytest.raises(RuntimeError, match="the device is gone"):
        lockstep([run("a", "describe", "fit"), run("b", "describe", "fit")])
    lockstep.close()
    assert threads.have_ended()


def test_a_run_cannot_catch_being_abandoned_by_mistake() -> None:
    ended: list[str] = []

    def stubborn(engine: Engine) -> str:
        try:
            engine.exchange("fit", [])
        except Exception:
            return "caught"  # would hide that another run failed
        finally:
            ended.append("stubborn")
        return "done"

    lockstep = Lockstep(Counting())
    with pytest.raises(ValueError, match="wrong"):
        lockstep([stubborn, run("x", error=ValueError("wrong"))])
    assert ended == ["stubborn"], "its clean-up ran"
    lockstep.close()


def test_closing_ends_the_threads_and_a_new_call_starts_others() -> None:
    threads, lockstep = Threads(), Lockstep(Counting())
    lockstep([run("a"), run("b")])
    assert len(threads.started()) == 2
    lockstep.close()
    assert threads.have_ended()
    assert lockstep([run("a", "fit"), run("b", "fit")]) == ["a", "b"]
    lockstep.close()
    assert threads.have_ended()


@pytest.mark.parametrize(("device", "threads", "abreast"), [("cpu", 2, 2), ("cpu", 1, 1), ("cuda", 2, 1)])
def test_on_a_cpu_as_many_runs_go_on_at_a_time_as_there_are_threads(
    device: str, threads: int, abreast: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    engine, at_once, most = Counting(), 0, 0
    engine.device = torch.device(device)
    lock, together = threading.Lock(), threading.Barrier(abreast)

    def work(engine: Engine) -> str:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        together.wait(timeout=10)  # until so many are here
        with lock:
            at_once -= 1
        engine.exchange("fit", ["fit"])  # type: ignore[list-item]
        return "done"

    lockstep = Lockstep(engine)
    assert lockstep([work] * 4) == ["done"] * 4
    assert most == abreast
    assert engine.calls == [("fit", ["fit"] * 4)]
    lockstep.close()


def test_of_runs_side_by_side_the_first_that_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    threads, lockstep = Threads(), Lockstep(Counting())
    with pytest.raises(ValueError, match="b failed"):
        lockstep([run("a", "fit"), run("b", error=ValueError("b failed")), run("c", error=KeyError("c failed"))])
    assert lockstep([run(name, "fit") for name in "abc"]) == ["a", "b", "c"], "and one can go on"
    lockstep.close()
    assert threads.have_ended()


def test_after_an_interruption_runs_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the caller while it waits for runs that go on."""
    threads, lockstep, seen = Threads(), Lockstep(Counting()), 0
    wait = lockstep_module._Worker.wait

    def interrupted(worker: lockstep_module._Worker) -> None:
        nonlocal seen
        seen += 1
        if seen == 2:
            raise KeyboardInterrupt
        wait(worker)

    monkeypatch.setattr(lockstep_module._Worker, "wait", interrupted)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    with pytest.raises(KeyboardInterrupt):
        lockstep([run(name, "fit") for name in "abc"])
    for names in ("def", "ghi"):
        assert lockstep([run(name, "fit", "score") for name in names]) == list(names)
    lockstep.close()
    assert not threads.started(), "closed means that all have ended"
