"""Runs together: every one must end where it would have ended alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

import toys
from latecomer import train, tree
from latecomer.engines import auto
from latecomer.engines.vector import Vector
from latecomer.errors import DataError, LatecomerError, MemoryShortage, SettingError, UnknownName
from latecomer.method import Method
from latecomer.methods.fedavg import FedAvg
from latecomer.settings import setting
from latecomer.sweep import together
from latecomer.sweep.packed import Packed
from latecomer.task import Home
from latecomer.tree import Tree

# declarations


@dataclass(frozen=True, kw_only=True)
class Careful(FedAvg):
    """Decides by one number, says falsely that it does not by another, and may fail."""

    shrink: float = setting(0.0, "what is taken from every change")
    stretch: float = setting(0.0, "what is added to every change", sweepable=True)
    fail: bool = setting(False, "whether a client raises")

    def fit(self, home: Home, *, params: Tree) -> Tree:
        change = super().fit(home, params=params)
        if self.fail:
            raise ValueError("the client is tired")
        change = tree.scale(change, 1 - self.shrink) if self.shrink else change
        return tree.scale(change, 1 + self.stretch) if self.stretch else change


def careful(**settings: Any) -> tuple[Method, Any]:
    sizes = {"task": toys.task(), "clients": len(toys.TRAIN), "members": toys.MEMBERS}
    return Careful(**sizes, batch=8, **settings), toys.federation()


def test_what_is_not_sweepable_may_be_decided_by() -> None:
    runs = [careful(shrink=shrink) for shrink in (0.0, 0.1, 0.1, 0.5)]
    assert groups(*runs) == [[0], [1, 2], [3]], "equal methods stay together"
    assert results(runs) == [alone(*run) for run in runs]
    runs = [careful(lr=lr, shrink=0.1) for lr in (0.1, 0.2)]
    assert groups(*runs) == [[0, 1]], "what does not differ may be decided by"
    assert results(runs) == [alone(*run) for run in runs]


def test_a_step_that_decides_by_a_sweepable_number_is_told() -> None:
    runs = [careful(stretch=stretch) for stretch in (0.1, 0.2)]
    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        results(runs)
    assert results(runs[:1]) == [alone(*runs[0])], "alone it is a plain number"


def test_what_is_wrong_with_a_step_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="the client is tired"):
        results([careful(lr=lr, fail=True) for lr in (0.1, 0.2)])


# memory


def rows_computed(monkeypatch: pytest.MonkeyPatch, room: float) -> list[int]:
    """How many rows every map has had, where more than `room` of them run out of memory."""
    inputs, counts = Vector._inputs, []

    def limited(self: Vector, asks: Any, first: int, rows: int, nested: bool) -> Any:
        if rows * len(asks) > room:
            raise torch.OutOfMemoryError
        counts.append(rows * len(asks))
        return inputs(self, asks, first, rows, nested)

    monkeypatch.setattr(Vector, "_inputs", limited)
    return counts


def rates(count: int, **settings: Any) -> list[Method]:
    return [toys.method("fedavg", lr=0.1 / (k + 1), **settings) for k in range(count)]


def results(runs: Sequence[Any], engine: str = "vector", **options: Any) -> list[dict[str, Any]]:
    """Without the time they took."""
    options = {"rounds": 3, "cohort": 3, "evaluate_every": 2} | options
    return [
        {key: value for key, value in result.items() if key != "seconds"}
        for result in train.together(runs, engine, "cpu", **options)
    ]


@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_never_more_rows_than_the_chunk(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    runs = [(method, toys.federation()) for method in rates(5)]
    expected = results(runs)
    counts = rows_computed(monkeypatch, room=10**9)
    assert results(runs, chunk=chunk) == expected
    assert max(counts) <= chunk


def test_more_runs_than_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [(method, toys.federation()) for method in rates(5)]
    expected = results(runs)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    counts = rows_computed(monkeypatch, room=2)
    assert results(runs) == expected
    assert max(counts) == 2
    with pytest.raises(MemoryShortage, match="--chunk 2 would fit"):
        results(runs, chunk=7)


def test_packs_are_as_large_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [(method, toys.federation()) for method in rates(5)]
    sizes: list[int] = []
    begin = Packed.__init__

    def noted(self: Packed, several: Sequence[Method], *rest: Any, **options: Any) -> None:
        sizes.append(len(several))
        begin(self, several, *rest, **options)

    monkeypatch.setattr(Packed, "__init__", noted)
    expected = results(runs)
    monkeypatch.setattr(together, "SERVER_BUDGET", 3 * together._bytes(together._run(0, runs[0], {"cohort": 3})))
    assert results(runs) == expected
    assert sizes == [5, 3, 2]


def test_examples_are_not_copied() -> None:
    federations = toys.federations(3)
    engine = Packed(rates(3), federations, "cpu")
    assert engine.homes.x.data_ptr() == federations[0].examples.x.data_ptr()
    engine = Packed(rates(3), federations[:1] * 3, "cpu")
    assert engine.homes.index["train"].data_ptr() == federations[0].train.index.data_ptr(), "nor is who owns what"


# results


def alone(method: Method, federations: Any, engine: str = "vector", **plan: Any) -> dict[str, Any]:
    several = federations if isinstance(federations, list) else [federations]
    plan = {"rounds": 3, "cohort": 3, "evaluate_every": 2} | plan
    result = train.run(method, several, toys.engine(engine, method, several), **plan)
    return {key: value for key, value in result.items() if key != "seconds"}


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_results_are_those_of_each_run_alone(engine: str) -> None:
    one, other = toys.federations(2)
    fedavg, pefll = (partial(toys.method, name, torch.float64) for name in ("fedavg", "pefll"))
    runs: list[Any] = [
        (fedavg(lr=0.1), one),
        (pefll(lr=0.02), [one, other]),
        (fedavg(lr=0.3, momentum=0.9), other),
        (fedavg(lr=0.1, batch=4), one, {"rounds": 4}),  # another shape
        (pefll(server_lr=0.01), one),
        (pefll(server_lr=0.01), one, {"rounds": 5, "evaluate_every": 1, "watch_unseen": True}),  # longer than its like
        (fedavg(lr=0.2), [other, one], {"cohort": 5, "faults": "drop=0.3"}),
        (fedavg(lr=0.4), one, {"rounds": 1, "faults": "drop=0.2", "select": "pooled"}),
    ]
    expected = [alone(method, given, engine, **(own[0] if own else {})) for method, given, *own in runs]
    assert results(runs, engine) == expected
    assert len({str(result) for result in expected}) == len(runs), "they do differ"


@pytest.mark.parametrize("roles", [(0, 3), (3, 0), (0, 1), (3, 1)])
def test_runs_may_have_latecomers_or_validators_and_others_none(roles: tuple[int, int]) -> None:
    """Of the three clients that do not train, so many are validators."""
    plan = {"rounds": 6, "cohort": 5, "evaluate_every": 1, "watch_unseen": True}
    runs = [
        (toys.method("fedavg", lr=rate, batch=4), replace(toys.federation(), validators=some))
        for rate, some in zip((1.0, 0.9), roles, strict=True)
    ]
    told: list[list[dict[str, Any]]] = [[], []]
    results = train.together(
        runs, "vector", progress=lambda place, metrics: told[place].extend(metrics["runs"]), **plan
    )
    for place, (method, federation) in enumerate(runs):
        lines: list[dict[str, Any]] = []
        alone = train.run(
            method,
            federation,
            Vector(method, [federation]),
            progress=lambda metrics, lines=lines: lines.extend(metrics["runs"]),
            **plan,
        )
        assert ("unseen" in alone) == (roles[place] < 3)
        assert results[place] | {"seconds": 0} == alone | {"seconds": 0}
        # Products of several runs are summed in another order: last bits of a state differ, and so does its digest.
        assert all(len(line.pop("state")) == 64 for line in (*told[place], *lines))
        assert told[place] == lines


@pytest.mark.parametrize("name", ["vector", "loop"])
def test_auto_takes_the_faster_engine_for_all_that_are_alike(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    timed: list[int] = []
    monkeypatch.setattr(auto, "faster", lambda method, federations, *_: timed.append(len(federations)) or name)
    runs = [(method, toys.federation()) for method in (*rates(3), *rates(2, batch=4))]
    assert results(runs, "auto") == [alone(*run, name) for run in runs]
    assert timed == [3, 2]


def test_the_same_exchanges_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight settings take as many maps as one."""
    counts: list[list[int]] = []
    for count in (1, 8):
        runs = [(method, toys.federation()) for method in rates(count)]
        with monkeypatch.context() as patch:
            counts.append(rows_computed(patch, room=10**9))
            results(runs)
    assert len(counts[0]) == len(counts[1]) > 3
    assert [8 * rows for rows in counts[0]] == counts[1]


def test_progress_comes_with_the_place_of_the_run() -> None:
    seen: list[tuple[int, int, int]] = []
    runs: list[Any] = [(method, toys.federations(k + 1)) for k, method in enumerate(rates(3))]
    runs[1] = (*runs[1], {"rounds": 4})
    results(runs, progress=lambda place, metrics: seen.append((place, metrics["round"], len(metrics["runs"]))))
    assert sorted(seen) == [(0, 2, 1), (0, 3, 1), (1, 2, 2), (1, 4, 2), (2, 2, 3), (2, 3, 3)]


def test_no_run_is_no_result() -> None:
    assert train.together([]) == []


def test_an_error_in_one_run_ends_them_all_and_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    runs = [(method, toys.federations(2)) for method in rates(3)]

    def broken(place: int, metrics: dict[str, Any]) -> None:
        if place == 1:
            raise ValueError("the disk is full")

    with pytest.raises(ValueError, match="the disk is full"):
        results(runs, progress=broken)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
        assert not thread.is_alive()


# who goes with whom


def groups(*runs: Any, **plan: Any) -> list[list[int]]:
    wanted = [together._run(place, run, {"cohort": 3} | plan) for place, run in enumerate(runs)]
    return [[run.place for run in group] for group in together._alike(wanted)]


def test_numbers_and_seeds_go_together_and_all_else_does_not() -> None:
    make = partial(toys.method, "fedavg")
    one, other = toys.federations(2)
    brighter = replace(one, examples=replace(one.examples, x=one.examples.x.flip(0)))
    copied = replace(one, examples=replace(one.examples, x=one.examples.x.clone()))
    runs: list[Any] = [
        (make(), one),
        (make(batch=4), one),
        (make(lr=0.5), other),
        (toys.method("fedprox"), one),
        (make(), brighter),
        (make(lr=0.1), copied),
        (make(), one, {"cohort": 2}),
        (make(), one, {"rounds": 7}),
    ]
    assert groups(*runs) == [[0, 2, 5], [1], [3], [4], [6], [7]]


# what is refused

WRONG: dict[str, tuple[Any, type[LatecomerError], str]] = {
    "no tuple": (toys.method("fedavg"), SettingError, "Run 1 must be a method, a federation .*; got FedAvg"),
    "too short": ((toys.method("fedavg"),), SettingError, "Run 1 must be a method"),
    "other order": ((toys.federation(), toys.method("fedavg")), SettingError, "got Federation, FedAvg"),
    "no federation": ((toys.method("fedavg"), []), SettingError, "got FedAvg, list"),
    "no plan": ((toys.method("fedavg"), toys.federation(), 3), SettingError, "got FedAvg, Federation, int"),
    "plan": (
        (toys.method("fedavg"), toys.federation(), {"round": 3}),
        UnknownName,
        "There is no setting 'round'; did you mean 'rounds'",
    ),
    "cohort": ((toys.method("fedavg"), toys.federation(), {"cohort": 9}), SettingError, "--cohort must be at most"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_before_anything_is_trained(case: str) -> None:
    run, error, sentence = WRONG[case]
    trained: list[int] = []
    with pytest.raises(error, match=sentence):
        results([(toys.method("fedavg"), toys.federation()), run], progress=lambda place, _: trained.append(place))
    assert not trained


def test_seeds_on_different_examples_are_refused() -> None:
    one, other = toys.federations(2)
    other = replace(other, examples=replace(other.examples, y=other.examples.y.flip(0)))
    with pytest.raises(DataError, match="must share their examples"):
        results([(toys.method("fedavg"), [one, other])])


def test_an_engine_that_does_not_exist() -> None:
    with pytest.raises(UnknownName, match="There is no engine 'vektor'; did you mean 'vector'"):
        results([], engine="vektor")


def test_a_method_may_refuse_the_engine() -> None:
    runs = [(toys.method("knnper", search="faiss", lr=lr), toys.federation()) for lr in (0.1, 0.2)]
    with pytest.raises(SettingError, match="faiss"):
        results(runs)


# runs that end early


@pytest.mark.parametrize("name", ["fedavg", "fedper", "pefll"])
def test_who_goes_on_does_so_as_if_the_others_had_never_been_there(name: str) -> None:
    plan = {"rounds": 6, "cohort": 3, "evaluate_every": 2}
    runs = [(toys.method(name, lr=0.1 / (k + 1)), toys.federations(2)) for k in range(4)]
    told: list[tuple[int, int]] = []
    ends = {2: {0}, 4: {2, 3}}  # by the round

    def stop(places: Sequence[int]) -> set[int]:
        assert [place for place, _ in told[-len(places) :]] == places, "all that are there were told of"
        return ends.get(told[-1][1], set())

    found = results(runs, progress=lambda place, metrics: told.append((place, metrics["round"])), stop=stop, **plan)
    assert found == [{}, alone(*runs[1], **plan), {}, {}]
    assert sorted(told) == [(0, 2), (1, 2), (1, 4), (1, 6), (2, 2), (2, 4), (3, 2), (3, 4)]
