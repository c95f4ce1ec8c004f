"""Runs together: every one must end where it would have ended alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import toys
from latecomer import methods, train, tree
from latecomer.clients import Clients, Engine
from latecomer.engines import auto
from latecomer.engines.vector import Vector
from latecomer.errors import DataError, LatecomerError, MemoryShortage, SettingError, UnknownName
from latecomer.evaluate import Scores, evaluate
from latecomer.method import AveragesOneModel, Method, TrainsByPasses
from latecomer.settings import convert, setting, settings_of
from latecomer.sweep import together
from latecomer.sweep.lockstep import Lockstep
from latecomer.sweep.packed import Packed
from latecomer.task import Home
from latecomer.tree import Tree

ROUNDS = 2
ALL = torch.arange(len(toys.TRAIN))


def scaled(name: str, factor: float) -> Method:
    """A method with every setting that is a fraction, or several, so much smaller."""
    usual = toys.method(name, torch.float64)
    chosen = {}
    for key, f in settings_of(usual).items():
        value = getattr(usual, key)
        if isinstance(value, float):
            chosen[key] = value * factor
        elif isinstance(value, tuple) and value and isinstance(value[0], float):
            chosen[key] = tuple(number * factor for number in value)
        if key in chosen:
            assert convert(key, chosen[key], type(value) if isinstance(value, float) else tuple[float, ...]) is not None
            assert f.metadata["low"] is None or f.metadata["low"] <= 0
    return toys.method(name, torch.float64, **chosen)


def packed(several: Sequence[Method], rounds: int = ROUNDS) -> tuple[list[Tree], list[Scores], Packed]:
    """States and scores of several methods after some rounds on one engine."""
    engine = Packed(several, [toys.federation()] * len(several), "cpu")
    lockstep, states = Lockstep(engine), [toys.start(method) for method in several]

    def one(run: int, number: int, engine: Engine) -> Tree:
        return several[run].round(states[run], Clients(engine, toys.cohort(number), number, run_index=run))

    for number in range(rounds):
        states = lockstep([partial(one, run, number) for run in range(len(several))])
    scores = evaluate(several, states, lockstep, [ALL] * len(several), number=1)
    lockstep.close()
    return states, scores, engine


def kept(engine: Vector, run: int) -> Tree:
    """What clients remember; without momentum their velocity matters to nobody, and only some engines write it."""
    memories = engine.memories(run)
    if memories and not getattr(engine.methods[run] if isinstance(engine, Packed) else engine.method, "momentum", 0):
        memories["rows"].pop("velocity", None)
    return memories


def check_alike(several: Sequence[Method]) -> Packed:
    """Train several methods together and each alone, and compare all there is to compare."""
    states, scores, engine = packed(several)
    for run, method in enumerate(several):
        alone = Vector(method, [toys.federation()], "cpu")
        state, _ = toys.rounds(method, alone, ROUNDS)
        assert toys.gap(state, states[run]) < 1e-9
        assert toys.gap(kept(alone, 0), kept(engine, run)) < 1e-9
        (expected,) = evaluate([method], [state], Lockstep(alone), [ALL], number=1)
        assert toys.same(expected.counts, scores[run].counts)
    return engine


APART = {
    "fedtta-early": {"fit"},
    "knnper": {"score"},
    "knnper-fifo": {"score"},
    "knnper-prototypes": {"score"},
    "odpflhn-private": {"backprop", "describe", "request"},
    "pfedgp": {"fit"},
}
"""Steps that cannot take every fraction among their settings as a tensor; all other steps of all methods can."""


@pytest.mark.parametrize("name", [*sorted(methods.names()), *toys.VARIANTS])
def test_every_method_with_all_its_numbers_changed(name: str) -> None:
    several = [toys.method(name, torch.float64), scaled(name, 0.9), scaled(name, 0.6)]
    engine = check_alike(several)
    assert engine.ways
    assert engine.apart == APART.get(name, set())


@pytest.mark.parametrize("name", ["fedavg", "pfedhn-pc", "fedrep"])
@pytest.mark.parametrize("setting", ["momentum", "weight_decay", "clip"])
def test_zero_means_not_at_all_also_beside_others(name: str, setting: str) -> None:
    engine = check_alike([toys.method(name, torch.float64, lr=0.3, **{setting: value}) for value in (0.0, 0.5, 0.05)])
    assert not engine.apart


def test_settings_do_make_a_difference() -> None:
    """Else all of the above would hold for an engine that gives every run the numbers of the first."""
    states, _, _ = packed([toys.method("fedavg", torch.float64, lr=lr) for lr in (0.1, 0.2)])
    assert toys.gap(states[0], states[1]) > 1e-3


# steps that cannot take a tensor


@dataclass(frozen=True, kw_only=True)
class Careful(AveragesOneModel, TrainsByPasses):
    """Decides by one number, calculates with another, and may fail."""

    shrink: float = setting(0.0, "what is taken from every change")
    fail: bool = setting(False, "whether a client raises")

    def fit(self, home: Home, *, params: Tree) -> Tree:
        change = self.local.change(self.task.loss, params, home.epochs(self.epochs, self.batch))
        if self.fail:
            raise ValueError("the client is tired")
        return tree.scale(change, 1 - self.shrink) if self.shrink else change

    def predict(self, home: Home, x: Tensor, *, params: Tree) -> Tensor:  # type: ignore[override]
        return self.task.logits(params, x)


Double = toys.doubled(Careful)


def careful(**settings: Any) -> Method:
    sizes = {"task": toys.task(torch.float64), "clients": len(toys.TRAIN), "members": toys.MEMBERS}
    return Double(**sizes, batch=8, **settings)


def test_a_step_that_decides_by_a_number_is_done_one_method_after_the_other() -> None:
    engine = check_alike([careful(shrink=shrink) for shrink in (0.0, 0.1, 0.1, 0.5)])
    assert engine.apart == {"fit"}
    assert engine.kinds == [0, 1, 1, 3], "equal methods stay together"
    engine = check_alike([careful(lr=lr, shrink=0.1) for lr in (0.1, 0.2)])
    assert not engine.apart, "what does not differ may be decided by"


def test_what_is_wrong_with_a_step_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="the client is tired"):
        packed([careful(lr=lr, fail=True) for lr in (0.1, 0.2)])


def test_an_error_after_the_first_answers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    several = [careful(lr=lr) for lr in (0.1, 0.2)]
    engine = Packed(several, [toys.federation()] * 2, "cpu", chunk=4)
    inputs = engine._inputs

    def limited(asks: Any, first: int, rows: int, nested: bool) -> Any:
        if first:
            raise RuntimeError("the device is gone")
        return inputs(asks, first, rows, nested)

    monkeypatch.setattr(engine, "_inputs", limited)
    works = [
        lambda engine, run=run: several[run].round(
            toys.start(several[run]), Clients(engine, toys.cohort(0), 0, run_index=run)
        )
        for run in range(2)
    ]
    with pytest.raises(RuntimeError, match="the device is gone"):
        Lockstep(engine)(works)
    assert not engine.apart


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
    monkeypatch.setattr(together, "CPU_BUDGET", 3 * together._bytes(together._run(0, runs[0], {"cohort": 3})))
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
        (fedavg(lr=0.2), [other, one], {"cohort": 5, "silence": 0.3}),
        (fedavg(lr=0.4), one, {"rounds": 1, "silence": 0.2, "select": "pooled"}),
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
        "There is no setting of a plan 'round'; did you mean 'rounds'",
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
