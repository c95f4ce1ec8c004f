"""Which calls become graphs, with a toy in the place of CUDA (test_cuda.py has the real)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from latecomer.engines.capture.graphs import Graphs


def test_a_call_is_captured_with_what_is_called_within(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call of a shape; or the first, if that made no sense because kernels had to be compiled."""
    graphs, captured = Graphs(), []
    answers = iter([(True, "as it is"), (False, None)])
    graphs._first_calls = lambda function, inputs: (function(*inputs), next(answers))[1]  # type: ignore[assignment]

    def capture(function: Any, leaves: list[torch.Tensor], shape: Any, lasting: bool) -> Any:
        captured.append(len(leaves))
        return (lambda leaves, lasting: "replayed"), "replayed"

    monkeypatch.setattr(graphs, "_capture", capture)

    def outer(x: torch.Tensor) -> Any:
        return graphs(lambda y: 2 * y, "inner")(x)

    call = graphs(outer, "outer")
    assert call(torch.ones(2)) == "as it is"
    assert not captured
    assert call(torch.ones(3)) == "replayed"
    assert captured == [1]
    assert call(torch.ones(2)) == "replayed"
    assert captured == [1, 1]
    assert {key[0] for key in graphs._seen} == {"outer"}, "what is called within is part of it"
    assert not graphs.within
