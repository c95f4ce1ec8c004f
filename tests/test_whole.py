"""Whole rounds, with a plain call in the place of a CUDA graph (test_cuda.py has the real)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import toys
from latecomer import tree
from latecomer.engines.vector import Vector
from latecomer.train import Plan, Training


class Calls:
    """In the place of graphs: calls what it is given, or has no memory for a whole round."""

    def __init__(self, room: bool) -> None:
        self.room = room
        self.names: list[str] = []

    def __call__(self, name: str, function: Callable[..., Any], inputs: tuple[Any, ...], lasting: bool = True) -> Any:
        self.names.append(name)
        if name == "a whole round" and not self.room:
            raise torch.OutOfMemoryError
        return function(*inputs)

    def clear(self) -> None:
        pass


def trained(graphs: Calls | None, chunk: int = 0) -> tuple[list[tree.Tree], list[dict[str, Any]], Vector]:
    federations = toys.federations(2)
    method = toys.method("pefll")
    engine = Vector(method, federations, "cpu", chunk=chunk)
    engine.graphs = graphs  # type: ignore[assignment]
    training = Training(method, federations, engine, Plan(rounds=3, cohort=5))
    for _ in range(3):
        training.advance()
    return training.states, [line | {"seconds": 0} for line in training.drain()], engine


def test_rounds_of_many_chunks_replay_a_chunk() -> None:
    """Two seeds of five clients, a chunk of one: ten chunks."""
    graphs = Calls(room=True)
    trained(graphs, chunk=1)
    assert set(graphs.names) == {"describe", "fit", "backprop"}


@pytest.mark.parametrize("chunk", [0, 3], ids=["at once", "in chunks"])
@pytest.mark.parametrize("room", [True, False], ids=["fits", "out of memory"])
def test_whole_rounds_are_the_same_rounds(room: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    states, lines, _ = trained(None)
    graphs = Calls(room)
    whole, told, engine = trained(graphs, chunk)
    assert graphs.names.count("a whole round") == (3 if room else 1), "after one failure it is not tried again"
    assert engine.in_parts != room
    assert told == lines
    for ours, theirs in zip(whole, states, strict=True):
        for path, leaf in tree.flatten(ours).items():
            torch.testing.assert_close(leaf, tree.flatten(theirs)[path], atol=1e-5, rtol=1e-4, msg=path)
