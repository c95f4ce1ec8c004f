"""Where two objects differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import toys
from latecomer import methods
from latecomer.nets.net import Net
from latecomer.sweep.alike import Unlike, get, put, same, ways


@dataclass(frozen=True)
class Rule:
    rate: float
    steps: int = 3


@dataclass(frozen=True)
class Holder:
    rule: Rule
    more: Any = None
    table: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def size(self) -> int:
        return 7


class Plain:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


def scaled(factor: float) -> Callable[[float], float]:
    return lambda x: factor * x


def net(activation: Callable[[], nn.Module]) -> Net:
    return Net(lambda: nn.Sequential(nn.Linear(4, 4), activation(), nn.Linear(4, 2)))


class Buffered(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("code", torch.full((2,), value))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.code)  # type: ignore[no-any-return, operator]


DIFFER = {
    "number": (0.1, 0.2, [()]),
    "whole number for a fraction": (1, 0.5, [()]),
    "dataclass": (Rule(0.1), Rule(0.2), [("rate",)]),
    "nested": (Holder(Rule(0.1), 1.0), Holder(Rule(0.2), 2.0), [("rule", "rate"), ("more",)]),
    "tuple": (Holder(Rule(0.1), (1.0, 2.0)), Holder(Rule(0.1), (1.0, 3.0)), [("more", 1)]),
    "list": ([1.0, "x"], [2.0, "x"], [(0,)]),
    "dict": (Holder(Rule(0.1), None, {"a": 1.0}), Holder(Rule(0.1), None, {"a": 2.0}), [("table", "a")]),
    "plain object": (Plain(a=1.0, b="x"), Plain(a=2.0, b="x"), [("a",)]),
    "nothing": (Holder(Rule(0.1)), Holder(Rule(0.1)), []),
    "equal tensors": (Plain(t=torch.ones(3)), Plain(t=torch.ones(3)), []),
    "equal functions": (Plain(f=scaled(2.0)), Plain(f=scaled(2.0)), []),
    "equal nets": (net(nn.ReLU), net(nn.ReLU), []),
    "equal constants": (Net(partial(Buffered, 1.0)), Net(partial(Buffered, 1.0)), []),
}


@pytest.mark.parametrize("case", DIFFER)
def test_numbers_that_differ_are_found_and_can_be_put_elsewhere(case: str) -> None:
    a, b, expected = DIFFER[case]
    assert ways(a, b) == expected
    assert same(a, b) == (not expected)
    moved = a
    for way in expected:
        moved = put(moved, way, get(b, way))
    assert ways(moved, b) == []
    assert ways(a, b) == expected, "the original is as it was"


circle, round_about = Plain(a=1.0), Plain(a=2.0)
circle.me, round_about.me = circle, round_about  # type: ignore[attr-defined]

UNLIKE = {
    "kind": (Rule(0.1), Plain(rate=0.1, steps=3)),
    "whole numbers": (Rule(0.1, 3), Rule(0.1, 4)),
    "bool": (Plain(a=True), Plain(a=1.0)),
    "text": (Plain(a="x"), Plain(a="y")),
    "none": (Plain(a=None), Plain(a=1.0)),
    "attributes": (Plain(a=1.0), Plain(a=1.0, b=1.0)),
    "length": ((1.0,), (1.0, 2.0)),
    "tensors": (Plain(t=torch.ones(3)), Plain(t=torch.zeros(3))),
    "shapes": (Plain(t=torch.ones(3)), Plain(t=torch.ones(1))),
    "a number in a closure": (Plain(f=scaled(2.0)), Plain(f=scaled(3.0))),
    "a number in a partial": (partial(max, 2.0), partial(max, 3.0)),
    "a number of whom a method is bound to": (Plain(f=Rule(0.1).__eq__), Plain(f=Rule(0.2).__eq__)),
    "functions": (Plain(f=lambda x: x), Plain(f=lambda x: x + 1)),
    "layers": (net(nn.ReLU), net(nn.Tanh)),
    "a number in a layer": (net(partial(nn.LeakyReLU, 0.1)), net(partial(nn.LeakyReLU, 0.2))),
    "constants": (Net(partial(Buffered, 1.0)), Net(partial(Buffered, 2.0))),
    "a circle": (circle, round_about),
    "what cannot be compared": (Plain(a=np.ones(2)), Plain(a=np.ones(2))),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_all_else_that_differs_is_told(case: str) -> None:
    a, b = UNLIKE[case]
    with pytest.raises(Unlike):
        ways(a, b)
    assert not same(a, b)


def test_one_object_in_two_places_is_found_in_both() -> None:
    a, b = ((rule := Rule(rate)) and Plain(first=rule, second=[rule]) for rate in (0.1, 0.2))
    assert ways(a, b) == [("first", "rate"), ("second", 0, "rate")]


def test_what_was_computed_already_makes_no_difference() -> None:
    a, b = Holder(Rule(0.1)), Holder(Rule(0.2))
    assert a.size == 7
    assert ways(a, b) == ways(b, a) == [("rule", "rate")]


def test_a_net_that_was_moved_is_still_the_same() -> None:
    a, b = Net(partial(Buffered, 1.0)), Net(partial(Buffered, 1.0))
    a.constants(torch.device("meta"))
    assert ways(a, b) == []


@pytest.mark.parametrize("name", [*methods.names(), *toys.VARIANTS])
def test_a_method_is_like_another_of_the_same_settings(name: str) -> None:
    assert ways(toys.method(name), toys.method(name)) == []


def test_what_follows_from_a_setting_differs_with_it() -> None:
    a, b = toys.method("pefll", lambda_theta=0.1), toys.method("pefll", lambda_theta=0.2)
    assert ways(a, b) == [("lambda_theta",)]
    assert get(put(a, ("lambda_theta",), 7.0), ("local", "weight_decay")) == 14.0
    assert get(a, ("local", "weight_decay")) == 0.2
    with pytest.raises(Unlike):
        ways(a, toys.method("pefll", lambda_theta=0.1, steps=2))
    with pytest.raises(Unlike):
        ways(a, toys.method("pefll", lambda_theta=0.1, hidden=7))
