"""FedPer on two members and a latecomer, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from byhand import owners
from twolayers import BODY, HEAD, START, close, descend, part, task, tensors

from latecomer import tree
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.methods.fedper import FedPer

X, Y = [[1.0, 2.0], [2.0, 0.0], [0.0, 4.0], [1.0, -1.0], [3.0, 1.0]], [0, 1, 0, 0, 1]
FEDERATION = owners(X, Y, [[0], [1, 2, 3], [4]], members=2)
MEMORY = {"head": tensors(part(START, HEAD)), "met": torch.zeros((), dtype=torch.float64)}


class Known(FedPer):
    """FedPer whose clients begin with a head that we know."""

    def memory(self, generator: torch.Generator) -> dict[str, Any]:
        return MEMORY


def build() -> tuple[FedPer, dict[str, Any]]:
    method = Known(task=task(), clients=3, members=2, lr=0.5, epochs=2, batch=3, head_epochs=3)
    return method, {"body": tensors(part(START, BODY))}


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_bodies_are_averaged_and_heads_stay(engine: str) -> None:
    """Client 1 has three examples and so counts three times; in the second round client 0 goes on with its own head."""
    method, state = build()
    made = make(engine, method, [FEDERATION], "cpu")
    state = method.round(state, Clients(made, torch.tensor([0, 1]), 0))
    first, second = descend(START, X[:1], Y[:1], 2, 0.5), descend(START, X[1:4], Y[1:4], 2, 0.5)
    body = {name: (first[name] + 3 * second[name]) / 4 for name in BODY}
    close(state["body"], body)
    rows = made.memories(0)["rows"]["head"]
    close(tree.row(rows, 0), part(first, HEAD))
    close(tree.row(rows, 1), part(second, HEAD))
    state = method.round(state, Clients(made, torch.tensor([0]), 1))
    again = descend(body | part(first, HEAD), X[:1], Y[:1], 2, 0.5)
    close(state["body"], part(again, BODY))
    close(tree.row(made.memories(0)["rows"]["head"], 0), part(again, HEAD))
