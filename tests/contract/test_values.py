"""A round is a pure function: of its state, its cohort and its seed, whatever else goes on beside it."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import toys
from latecomer import tree
from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.engines.vector import Vector
from latecomer.method import Method
from latecomer.nets.net import Net
from latecomer.runs.run import restore, snapshot
from latecomer.train import Plan, Training
from latecomer.tree import Tree

PLAN = Plan(rounds=4, cohort=4, evaluate_every=2, faults="drop=0.1")


def training(name: str, engine: str, federations: list[Federation], dtype: torch.dtype = torch.float32) -> Training:
    method = toys.method(name, dtype)
    return Training(method, federations, toys.engine(engine, method, federations), PLAN)


def whole(training: Training) -> tuple[Tree, dict[str, Any]]:
    """All that is left at the end, less the clock."""
    result, scores = training.finish()
    tensors, facts = snapshot(training)
    counts = {str(k): {"seen": seen.counts, "unseen": late.counts} for k, (seen, late) in enumerate(scores) if late}
    return tensors | {"counts": counts}, json.loads(json.dumps(facts | result | {"seconds": 0}))


Ending = tuple[Tree, dict[str, Any], list[Any]]
"""All that is left at the end, and the metrics on the way."""


def ending(training: Training, metrics: list[dict[str, Any]]) -> Ending:
    training.drain()
    return *whole(training), [line["runs"] for line in metrics]


@cache
def straight(name: str, engine: str) -> Ending:
    """A training that nothing stops."""
    one = training(name, engine, toys.federations(2))
    return ending(one, [metrics for metrics in one.go() if metrics])


@cache
def stopped(name: str, engine: str) -> tuple[list[dict[str, Any]], dict[str, Tensor], str, Ending]:
    """Another of the same seeds: metrics, tensors and facts after three rounds, and where it ends if it goes on."""
    one = training(name, engine, toys.federations(2))
    going = one.go()
    found = [metrics for metrics in (next(going) for _ in range(3)) if metrics]
    one.drain()
    tensors, facts = snapshot(one)
    flat = {path: leaf.clone() for path, leaf in tree.flatten(tensors).items()}
    more = [metrics for metrics in going if metrics]  # which must not reach into the snapshot
    return found, flat, json.dumps(facts), ending(one, found + more)


def check_same(one: Ending, other: Ending) -> None:
    (trees, *numbers), (more_trees, *more_numbers) = one, other
    assert toys.same(trees, more_trees)
    assert numbers == more_numbers


@pytest.mark.parametrize("engine", ["vector", "flower"])
def test_resuming_equals_never_having_stopped(name: str, engine: str) -> None:
    found, flat, facts, _ = stopped(name, engine)
    after = training(name, engine, toys.federations(2))
    restore(after, tree.unflatten(flat), json.loads(facts))
    assert after.round == 3
    check_same(straight(name, engine), ending(after, found + [metrics for metrics in after.go() if metrics]))


@pytest.mark.parametrize("engine", ["vector", "flower"])
def test_the_same_seed_twice_is_the_same_bit_for_bit(name: str, engine: str) -> None:
    """Though a snapshot was taken of the second."""
    check_same(straight(name, engine), stopped(name, engine)[-1])


@cache
def alone(variant: str, run: int) -> tuple[Tree, Tree, Tree]:
    """State, memories and scores of a seed by itself, with all clients at once and no tapes."""
    federation, method = toys.federations(2)[run], toys.method(variant, torch.float64)
    one = Training(method, [federation], Vector(method, [federation], graphs=False), PLAN)
    list(one.go())
    assert one.best[0] is not None
    return one.states[0], toys.remembered(one.engine, 0, run), one.best[0].scores.counts


@pytest.mark.parametrize("engine", ["chunked", "flower"])
def test_seeds_in_lockstep_equal_seeds_alone(variant: str, engine: str) -> None:
    together = training(variant, engine, toys.federations(2), torch.float64)
    list(together.go())
    for run in range(2):
        state, memories, counts = alone(variant, run)
        assert toys.gap(state, together.states[run]) < 1e-9
        assert toys.gap(memories, toys.remembered(together.engine, run, run)) < 1e-9
        assert toys.same(counts, together.best[run].scores.counts)
    assert not toys.same(together.states[0], together.states[1]) or not together.states[0]


def test_the_order_of_a_cohort_changes_nothing(name: str) -> None:
    found = []
    for ids in (torch.tensor([0, 2, 3, 5, 6]), torch.tensor([5, 0, 6, 3, 2])):
        method = toys.method(name, torch.float64)
        engine = toys.engine("chunked", method, [toys.federation()])
        state = method.round(toys.start(method), Clients(engine, ids, 0))
        found.append(toys.everything(state, engine))
    assert toys.gap(*found) < 1e-9


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_a_round_changes_neither_method_nor_state(name: str, engine: str) -> None:
    method = toys.method(name)
    made = toys.engine(engine, method, [toys.federation()])
    state, _ = toys.rounds(method, made, 1)  # so that what a first call may build is there
    kept, known = tree.map(Tensor.clone, state), fingerprint(method)
    method.round(state, Clients(made, toys.cohort(1), 1))
    method.personalise(state, Clients(made, torch.arange(len(toys.TRAIN)), -1, scratch=1))
    assert toys.same(state, kept)
    assert fingerprint(method) == known


def test_nothing_that_crosses_carries_a_gradient(name: str) -> None:
    method = toys.method(name)
    spy = toys.Spy(toys.engine("vector", method, [toys.federation()]))
    state = method.round(toys.start(method), Clients(spy, toys.cohort(0), 0))
    sent = [part for _, ask in spy.asks for part in (ask.shared, ask.each, ask.recalled)]
    sent += [part.tree() for _, ask in spy.asks for part in ask.collector.parts]
    assert not any(leaf.requires_grad for part in [state, *sent] for leaf in tree.leaves(part))


def fingerprint(thing: Any) -> Any:
    """What a method consists of, down to numbers and shapes."""
    if isinstance(thing, Method):
        return {key: fingerprint(value) for key, value in vars(thing).items()}
    if isinstance(thing, Net):
        parts = {key: value for key, value in vars(thing).items() if key not in ("build", "_constants", "_own")}
        return {key: fingerprint(value) for key, value in parts.items()}
    if isinstance(thing, nn.Module):
        return [(key, value.shape, value.device, value.grad) for key, value in thing.state_dict(keep_vars=True).items()]
    if isinstance(thing, Tensor):
        return thing.tolist()
    if dataclasses.is_dataclass(thing):
        return type(thing).__name__, {f.name: fingerprint(getattr(thing, f.name)) for f in dataclasses.fields(thing)}
    return dict(thing) if isinstance(thing, dict) else thing


def test_a_fingerprint_sees_a_change(name: str) -> None:
    one, other = toys.method(name), toys.method(name, batch=7)
    assert fingerprint(one) == fingerprint(toys.method(name))
    assert fingerprint(one) != fingerprint(other)
