"""FedRep on two members and a latecomer, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from byhand import owners
from twolayers import BODY, HEAD, START, close, descend, part, task, tensors

from latecomer import tree
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.fedrep import FedRep

X, Y = [[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [3.0, 1.0]], [0, 1, 0, 1]
FEDERATION = owners(X, Y, [[0], [1, 2], [3]], members=2)
MEMORY = {"head": tensors(part(START, HEAD)), "met": torch.zeros((), dtype=torch.float64)}
SETTINGS = {"lr": 0.5, "momentum": 0.0, "batch": 2, "head_epochs": 3, "body_epochs": 2, "novel_epochs": 4}


class Known(FedRep):
    """FedRep whose clients begin with a head that we know."""

    def memory(self, generator: torch.Generator) -> dict[str, Any]:
        return MEMORY


def build() -> tuple[FedRep, dict[str, Any]]:
    method = Known(task=task(), clients=3, members=2, **SETTINGS)
    return method, {"body": tensors(part(START, BODY))}


def turn(layers: dict[str, Any], rows: slice) -> dict[str, Any]:
    """Three steps of the head, then two of the body for the new head."""
    layers = descend(layers, X[rows], Y[rows], 3, 0.5, only=HEAD)
    return descend(layers, X[rows], Y[rows], 2, 0.5, only=BODY)


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_heads_first_then_the_mean_of_the_bodies(engine: str) -> None:
    """Both clients count the same, though one has two examples; then client 0 goes on with its own head."""
    method, state = build()
    made = make(engine, method, [FEDERATION], "cpu")
    state = method.round(state, Clients(made, torch.tensor([0, 1]), 0))
    first, second = turn(START, slice(0, 1)), turn(START, slice(1, 3))
    body = {name: (first[name] + second[name]) / 2 for name in BODY}
    close(state["body"], body)
    rows = made.memories(0)["rows"]["head"]
    close(tree.row(rows, 0), part(first, HEAD))
    close(tree.row(rows, 1), part(second, HEAD))
    state = method.round(state, Clients(made, torch.tensor([0]), 1))
    again = turn(body | part(first, HEAD), slice(0, 1))
    close(state["body"], part(again, BODY))
    close(tree.row(made.memories(0)["rows"]["head"], 0), part(again, HEAD))
