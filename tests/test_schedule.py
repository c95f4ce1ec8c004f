"""Learning rates that fall over the rounds: the factors, and that every method follows them on every engine."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import toys
from latecomer import learn, methods, optim, tree
from latecomer.engines import make
from latecomer.errors import SettingError
from latecomer.schedule import Schedule
from latecomer.train import Plan, Training

ROUNDS = 4


def test_factors() -> None:
    rounds = torch.tensor([-3, 0, 99, 100, 149, 150, 199])
    assert Schedule("constant", 200).factor(rounds) == 1.0
    step = Schedule("step", 200).factor(rounds)
    assert isinstance(step, torch.Tensor)
    assert step.tolist() == pytest.approx([1, 1, 1, 0.1, 0.1, 0.01, 0.01])
    cosine = Schedule("cosine", 200).factor(rounds)
    assert isinstance(cosine, torch.Tensor)
    assert cosine.tolist() == pytest.approx(
        [(1 + math.cos(math.pi * max(k, 0) / 200)) / 2 for k in rounds.tolist()], abs=1e-6
    )


@pytest.mark.parametrize("rule", [learn.SGD, optim.Adam])
def test_an_optimiser_at_a_round(rule: Any) -> None:
    assert rule(0.4).at(torch.tensor(7)) == rule(0.4)
    assert float(rule(0.4, schedule=Schedule("step", 10)).at(torch.tensor(7)).lr) == pytest.approx(0.04)


@pytest.mark.parametrize("rule", [learn.SGD, optim.Adam])
def test_a_server_takes_rates_as_tensors(rule: Any) -> None:
    params, gradient = {"w": torch.ones(3)}, {"w": torch.tensor([1.0, -2.0, 0.5])}
    expected, _ = rule(0.04).step(params, gradient, rule(0.04).init(params))
    scheduled = rule(0.4, schedule=Schedule("step", 10)).at(torch.tensor(7))
    found, _ = scheduled.step(params, gradient, scheduled.init(params))
    torch.testing.assert_close(found, expected)


def trained(name: str, course: str, engine: str, graphs: bool = True) -> tuple[list[Any], Any]:
    """The state and the memories before and after every round."""
    method = toys.method(name, lr_schedule=course, rounds=ROUNDS)
    federations = toys.federations(1)
    made = make(engine, method, federations, "cpu", graphs=graphs)
    training = Training(method, federations, made, Plan(rounds=ROUNDS, cohort=5))
    seen = [toys.everything(training.states[0], made)]
    for _ in range(ROUNDS):
        training.advance()
        seen.append(toys.everything(training.states[0], made))
    return seen, made


@pytest.mark.parametrize("name", sorted(methods.names()))
def test_every_method_has_schedules(name: str) -> None:
    """With `step`, the first two of four rounds are as they were, and the others are not."""
    plain, _ = trained(name, "constant", "vector")
    falling, _ = trained(name, "step", "vector")
    first, third = 2, 3
    for k in range(first + 1):
        assert toys.gap(plain[k], falling[k]) < 1e-5
    assert toys.gap(plain[third], falling[third]) > 1e-7, "rates fall after half of the rounds"


@pytest.mark.parametrize("name", ["pefll", "fedavg", "flowdup", "pfedhn"])
def test_schedules_are_replayed_and_the_same_everywhere(name: str) -> None:
    falling, engine = trained(name, "cosine", "vector")
    plain, _ = trained(name, "cosine", "vector", graphs=False)
    assert all(toys.same(a, b) for a, b in zip(falling, plain, strict=True))
    (tape,) = [tape for key, tape in engine.capture._kept.items() if key[0] == "a whole round"]
    assert tape.checked
    assert tape.program is not None
    for other in ("loop", "flower"):
        elsewhere, _ = trained(name, "cosine", other)
        assert toys.gap(tree.pick(falling[2], ["state"]), tree.pick(elsewhere[2], ["state"])) < 1e-4


def test_a_schedule_has_to_know_the_rounds() -> None:
    with pytest.raises(SettingError, match="give rounds="):
        toys.method("fedavg", lr_schedule="cosine")
    method = toys.method("fedavg", lr_schedule="cosine", rounds=5)
    with pytest.raises(SettingError, match="schedule for 5 rounds; these are 6"):
        Training(
            method, toys.federations(1), toys.engine("vector", method, toys.federations(1)), Plan(rounds=6, cohort=2)
        )
