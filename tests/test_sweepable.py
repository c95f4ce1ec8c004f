"""Settings that may differ within a map: who says so of itself can be a tensor in every client step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_type_hints

import pytest
import torch
from torch import nn

import toys
from latecomer import methods
from latecomer.clients import Ask, Clients, Engine
from latecomer.engines.vector import Vector
from latecomer.evaluate import Scores, evaluate
from latecomer.method import Method
from latecomer.nets.net import Net
from latecomer.settings import check_ranges, settings_of
from latecomer.steps import steps
from latecomer.sweep import together
from latecomer.sweep.lockstep import Lockstep
from latecomer.sweep.packed import Packed
from latecomer.task import Task
from latecomer.tree import Tree

ROUNDS = 2
ALL = torch.arange(len(toys.TRAIN))
LATER: dict[str, dict[str, Any]] = {"lgfedavg": {"warmup": 0}}
"""Settings with which a round asks for the steps that the variants do not ask for."""
NEVER = {"knnper": {"arrive"}, "flowdup": {"represent"}}
"""Steps that no round asks for: users and studies do."""


def sweepable(kind: Any) -> list[str]:
    return [name for name, field in settings_of(kind).items() if field.metadata["sweepable"]]


def scaled(usual: Method, make: Callable[..., Method], factor: float) -> Method:
    """A method with every sweepable setting so much smaller; what is 0 becomes a bit of something."""
    chosen = {name: getattr(usual, name) * factor or (1 - factor) / 10 for name in sweepable(usual)}
    method = make(**chosen)
    check_ranges(method)
    return method


class Noting(Packed):
    """Remembers the steps that were asked for of several runs at once."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked: set[str] = set()

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        super().exchange(step, asks)
        self.asked |= {step} if len(asks) > 1 else set()


def packed(several: Sequence[Method], rounds: int = ROUNDS) -> tuple[list[Tree], list[Scores], Noting]:
    """States and scores of several methods after some rounds on one engine."""
    engine = Noting(several, [toys.federation()] * len(several), "cpu")
    lockstep, states = Lockstep(engine), [toys.start(method) for method in several]

    def one(run: int, number: int, engine: Engine) -> Tree:
        return several[run].round(states[run], Clients(engine, toys.cohort(number), number, run_index=run))

    for number in range(rounds):
        states = lockstep([partial(one, run, number) for run in range(len(several))])
    scores = evaluate(several, states, lockstep, [ALL] * len(several), number=1)
    return states, scores, engine


def kept(engine: Vector, run: int) -> Tree:
    """What clients remember; without momentum their velocity matters to nobody, and only some engines write it."""
    memories = engine.memories(run)
    if memories and not getattr(engine.methods[run] if isinstance(engine, Packed) else engine.method, "momentum", 0):
        memories["rows"].pop("velocity", None)
    return memories


def check_alike(several: Sequence[Method]) -> Noting:
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


def check_scaled(name: str, **settings: Any) -> set[str]:
    """The steps that were done with all sweepable settings as tensors."""
    make = partial(toys.method, name, torch.float64, **settings)
    usual = make()
    engine = check_alike([usual, *(scaled(usual, make, factor) for factor in (0.9, 0.6))])
    assert engine.names == sweepable(usual)
    return engine.asked


@pytest.mark.parametrize("name", sorted(methods.names()))
def test_every_step_of_every_method_takes_its_sweepable_settings_as_tensors(name: str) -> None:
    asked = check_scaled(name)
    for variant, (base, _) in toys.VARIANTS.items():
        asked |= check_scaled(variant) if base == name else set()
    if name in LATER:
        asked |= check_scaled(name, **LATER[name])
    assert asked == set(steps(methods.get(name))) - NEVER.get(name, set())


@pytest.mark.parametrize("name", ["fedavg", "pfedhn-pc", "fedrep"])
@pytest.mark.parametrize("setting", ["momentum", "weight_decay", "clip"])
def test_zero_means_not_at_all_also_beside_others(name: str, setting: str) -> None:
    engine = check_alike([toys.method(name, torch.float64, lr=0.3, **{setting: value}) for value in (0.0, 0.5, 0.05)])
    assert engine.names == [setting]


def test_settings_do_make_a_difference() -> None:
    """Else all of the above would hold for an engine that gives every run the numbers of the first."""
    states, _, _ = packed([toys.method("fedavg", torch.float64, lr=lr) for lr in (0.1, 0.2)])
    assert toys.gap(states[0], states[1]) > 1e-3


@pytest.mark.parametrize("name", sorted(methods.names()))
def test_only_numbers_are_sweepable(name: str) -> None:
    kind = methods.get(name)
    hints = get_type_hints(kind)
    assert {hints[setting] for setting in sweepable(kind)} == {float}


def test_a_copy_with_another_number_has_what_follows_from_it() -> None:
    """As within a map."""
    method = toys.method("pefll", lambda_theta=0.1)
    engine = Packed([method, toys.method("pefll", lambda_theta=0.2)], [toys.federation()] * 2, "cpu")
    assert engine.names == ["lambda_theta"]
    assert method.local.weight_decay == 0.2  # type: ignore[attr-defined]


# what is the same


@dataclass(frozen=True)
class Holder:
    rate: float
    more: Any = None
    table: dict[str, Any] = field(default_factory=dict)


def net(activation: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), activation(), nn.Linear(4, 2))


def task(**parts: Any) -> Task:
    known = {"model": Net(partial(net, nn.ReLU)), "shape": (4,), "classes": 2}
    return Task(**known | parts)


SAME = {
    "number": (0.1, 0.1),
    "dataclass": (Holder(0.1, (1.0, "x"), {"a": 1}), Holder(0.1, (1.0, "x"), {"a": 1})),
    "list": ([1.0, "x"], [1.0, "x"]),
    "functions": (net, net),
    "nets": (Net(nn.ReLU), Net(nn.ReLU)),
    "nets with arguments": (Net(partial(net, nn.ReLU)), Net(partial(net, nn.ReLU))),
    "tasks": (task(), task()),
    "tasks with sizes": (task(sizes={"S": {"w": torch.Size([2])}}), task(sizes={"S": {"w": torch.Size([2])}})),
}


@pytest.mark.parametrize("case", SAME)
def test_equal_parts_are_the_same(case: str) -> None:
    a, b = SAME[case]
    assert together._same(a, b)


OTHER = {
    "number": (0.1, 0.2),
    "kind": (1, 1.0),
    "bool": (True, 1),
    "text": ("x", "y"),
    "none": (None, 1.0),
    "length": ((1.0,), (1.0, 2.0)),
    "nested": (Holder(0.1, (1.0, 2.0)), Holder(0.1, (1.0, 3.0))),
    "keys": ({"a": 1}, {"b": 1}),
    "functions": (lambda x: x, lambda x: x + 1),
    "layers": (Net(partial(net, nn.ReLU)), Net(partial(net, nn.Tanh))),
    "a number in a layer": (Net(partial(nn.LeakyReLU, 0.1)), Net(partial(nn.LeakyReLU, 0.2))),
    "tasks": (task(), task(model=Net(partial(net, nn.Tanh)))),
    "what cannot tell": (torch.ones(2), torch.ones(2)),
}


@pytest.mark.parametrize("case", OTHER)
def test_all_else_is_not(case: str) -> None:
    a, b = OTHER[case]
    assert not together._same(a, b)


@pytest.mark.parametrize("name", [*methods.names(), *toys.VARIANTS])
def test_a_method_can_share_a_map_with_another_of_the_same_settings(name: str) -> None:
    runs = [together._run(k, (toys.method(name), toys.federation()), {"cohort": 3}) for k in range(2)]
    assert together._can_share(*runs)
