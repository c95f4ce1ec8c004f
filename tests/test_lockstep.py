"""Several runs, one exchange for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from greenlet import getcurrent
from torch.utils._python_dispatch import TorchDispatchMode

from latecomer.clients import Ask, Engine
from latecomer.errors import ProtocolError
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


def test_one_run_is_called_as_it_is() -> None:
    engine, inside = Counting(), []

    def work(given: Engine) -> str:
        inside.append((given, getcurrent()))
        return run("a", "fit")(given)

    assert Lockstep(engine)([work]) == ["a"]
    assert inside == [(engine, getcurrent())]
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


def test_runs_with_unequal_numbers_of_exchanges() -> None:
    engine = Counting()
    lockstep = Lockstep(engine)
    works = [run("a", "fit"), run("b", "fit", "fit", "fit"), run("c")]
    assert lockstep(works) == ["a", "b", "c"]
    assert engine.calls == [("fit", ["a fit", "b fit"]), ("fit", ["b fit"]), ("fit", ["b fit"])]


def test_runs_that_want_different_steps() -> None:
    engine = Counting()
    lockstep = Lockstep(engine)
    assert lockstep([run("a", "arrive", "score"), run("b", "score")]) == ["a", "b"]
    assert engine.calls == [("arrive", ["a arrive"]), ("score", ["a score", "b score"])]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("steps", [(), ("fit",), ("fit", "fit")])
def test_an_error_in_one_run_reaches_the_caller(place: int, steps: tuple[str, ...]) -> None:
    lockstep = Lockstep(Counting())
    works = [run(name, "fit", "fit", "fit") for name in "abc"]
    works[place] = run("x", *steps, error=ValueError("run x is wrong"))
    with pytest.raises(ValueError, match="run x is wrong"):
        lockstep(works)
    assert lockstep([run("a", "fit"), run("b", "fit"), run("c")]) == ["a", "b", "c"], "it can be used again"


def test_an_error_in_the_engine_reaches_the_caller() -> None:
    lockstep = Lockstep(Counting(fail_at="fit"))
    with pytest.raises(RuntimeError, match="the device is gone"):
        lockstep([run("a", "describe", "fit"), run("b", "describe", "fit")])


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


def test_servers_go_on_in_the_order_of_the_runs_and_in_the_callers_thread() -> None:
    seen: list[tuple[str, int]] = []

    def work(name: str, engine: Engine) -> None:
        for step in ("describe", "fit"):
            seen.append((f"{name} {step}", threading.get_ident()))
            engine.exchange(step, [])

    Lockstep(Counting())([partial(work, name) for name in "ab"])
    assert [name for name, _ in seen] == ["a describe", "b describe", "a fit", "b fit"]
    assert {thread for _, thread in seen} == {threading.get_ident()}


def test_of_several_runs_that_would_fail_the_first_is_told() -> None:
    lockstep = Lockstep(Counting())
    with pytest.raises(ValueError, match="b failed"):
        lockstep([run("a", "fit"), run("b", error=ValueError("b failed")), run("c", error=KeyError("c failed"))])
    assert lockstep([run(name, "fit") for name in "abc"]) == ["a", "b", "c"], "and one can go on"


@pytest.mark.parametrize("where", ["server", "exchange"])
def test_after_an_interruption_runs_begin_anew(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while a server calculates, or in the exchange."""
    engine, ended = Counting(), []
    lockstep = Lockstep(engine)

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    def patient(engine: Engine) -> str:
        try:
            engine.exchange("fit", [])
        finally:
            ended.append("patient")
        return "done"

    works = [patient, interrupted if where == "server" else patient]
    with monkeypatch.context() as patch:
        if where == "exchange":
            patch.setattr(engine, "exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lockstep(works)
    assert ended == ["patient"] * (1 if where == "server" else 2), "their clean-up ran"
    for names in ("def", "ghi"):
        assert lockstep([run(name, "fit", "score") for name in names]) == list(names)


def test_whether_gradients_are_recorded_is_everybodys_own_affair() -> None:
    seen: list[tuple[str, bool]] = []

    class Looking(Counting):
        def exchange(self, step: str, asks: Sequence[Ask]) -> None:
            seen.append(("exchange", torch.is_grad_enabled()))

    def work(name: str, recorded: bool, engine: Engine) -> None:
        with torch.set_grad_enabled(recorded):
            engine.exchange("fit", [])
            seen.append((name, torch.is_grad_enabled()))
        engine.exchange("fit", [])
        seen.append((name, torch.is_grad_enabled()))

    with torch.no_grad():
        Lockstep(Looking())([partial(work, "a", True), partial(work, "b", False)])
        assert not torch.is_grad_enabled()
    off = ("exchange", False)
    assert seen == [off, ("a", True), ("b", False), off, ("a", False), ("b", False)]
    assert torch.is_grad_enabled()


MODES = {
    "inference": torch.inference_mode,
    "autocast": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    "device": partial(torch.device, "meta"),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_servers_modes_reach_neither_clients_nor_other_servers(mode: str) -> None:
    """They are the thread's, so a server that would wait within one is told."""
    products: list[torch.Tensor] = []

    def within(engine: Engine) -> None:
        with MODES[mode]():
            engine.exchange("fit", [])

    def plain(engine: Engine) -> None:
        engine.exchange("fit", [])
        products.append(torch.ones(2, 2, requires_grad=True) @ torch.ones(2, 2))

    lockstep = Lockstep(engine := Counting())
    with pytest.raises(ProtocolError, match=r"step 'fit' within torch\.inference_mode"):
        lockstep([plain, within])
    assert engine.calls == []
    lockstep([plain, plain])
    assert all(product.requires_grad and product.dtype == torch.float32 for product in products)
    with MODES[mode]():  # the caller may be in one
        assert lockstep([run("a", "fit"), run("b", "fit")]) == ["a", "b"]


def test_who_watches_the_caller_sees_the_servers() -> None:
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operations.append(operation)
            return operation(*args, **(kwargs or {}))

    operations: list[Any] = []

    def work(engine: Engine) -> float:
        x = torch.ones(3)
        engine.exchange("fit", [])
        return float(x.sum())

    with Seen():
        assert Lockstep(Counting())([work, work]) == [3.0, 3.0]
    assert operations.count(torch.ops.aten.ones.default) == operations.count(torch.ops.aten.sum.default) == 2
