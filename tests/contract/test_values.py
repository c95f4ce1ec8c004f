"""A round is a pure function: of its state, its cohort and its seed, whatever else goes on beside it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import toys
from latecomer import tree
from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.method import Method
from latecomer.nets.net import Net
from latecomer.run import restore, snapshot
from latecomer.train import Plan, Training
from latecomer.tree import Tree

PLAN = Plan(rounds=4, cohort=4, evaluate_every=2, silence=0.1)


def training(name: str, engine: str, federations: list[Federation], dtype: torch.dtype = torch.float32) -> Training:
    method = toys.method(name, dtype)
    return Training(method, federations, toys.engine(engine, method, federations), PLAN)


def whole(training: Training) -> tuple[Tree, dict[str, Any]]:
    """All that is left at the end, less the clock."""
    result, scores = training.finish()
    tensors, facts = snapshot(training)
    counts = {str(k): {"seen": seen.counts, "unseen": late.counts} for k, (seen, late) in enumerate(scores) if late}
    return tensors | {"counts": counts}, json.loads(json.dumps(facts | result | {"seconds": 0}))


@pytest.mark.parametrize("engine", ["vector", "flower"])
def test_resuming_equals_never_having_stopped(name: str, engine: str) -> None:
    straight = training(name, engine, toys.federations(2))
    expected = [metrics for metrics in straight.go() if metrics]
    straight.drain()
    before = training(name, engine, toys.federations(2))
    going = before.go()
    found = [metrics for metrics in (next(going) for _ in range(3)) if metrics]
    before.drain()
    tensors, facts = snapshot(before)
    flat = {path: leaf.clone() for path, leaf in tree.flatten(tensors).items()}
    for _ in going:  # what the stopped training might still have done must not reach into the snapshot
        pass
    after = training(name, engine, toys.federations(2))
    restore(after, tree.unflatten(flat), json.loads(json.dumps(facts)))
    assert after.round == 3
    found += [metrics for metrics in after.go() if metrics]
    after.drain()
    assert [metrics["runs"] for metrics in found] == [metrics["runs"] for metrics in expected]
    (trees, numbers), (more_trees, more_numbers) = whole(straight), whole(after)
    assert toys.same(trees, more_trees)
    assert numbers == more_numbers


def test_the_same_seed_twice_is_the_same_bit_for_bit(name: str) -> None:
    once, twice = (training(name, "vector", toys.federations(2)) for _ in range(2))
    for one in (once, twice):
        list(one.go())
        one.drain()
    (trees, numbers), (more_trees, more_numbers) = whole(once), whole(twice)
    assert toys.same(trees, more_trees)
    assert numbers == more_numbers


@pytest.mark.parametrize("engine", ["chunked", "flower"])
def test_seeds_in_lockstep_equal_seeds_alone(variant: str, engine: str) -> None:
    both = toys.federations(2)
    together = training(variant, engine, both, torch.float64)
    list(together.go())
    for run, federation in enumerate(both):
        alone = training(variant, engine, [federation], torch.float64)
        list(alone.go())
        assert toys.gap(alone.states[0], together.states[run]) < 1e-9
        memories = toys.remembered(alone.engine, 0, run), toys.remembered(together.engine, run, run)
        assert toys.gap(*memories) < 1e-9
        assert toys.same(alone.best[0].scores.counts, together.best[run].scores.counts)
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
