"""Which calls become graphs, with a toy in the place of CUDA (test_cuda.py has the real)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from latecomer.engines.capture.graphs import Graphs


def test_the_second_call_is_captured_with_what_is_called_within(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, captured = Graphs(), []

    def capture(function: Any, leaves: list[torch.Tensor], shape: Any, lasting: bool) -> Any:
        captured.append(len(leaves))
        return (lambda leaves, lasting: "replayed"), "replayed"

    monkeypatch.setattr(graphs, "_capture", capture)

    def outer(x: torch.Tensor) -> torch.Tensor:
        doubled: torch.Tensor = graphs("inner", lambda y: 2 * y, (x,))
        return doubled

    assert graphs("outer", outer, (torch.ones(2),)).tolist() == [2, 2]
    assert not captured
    assert graphs("outer", outer, (torch.ones(2),)) == "replayed"
    assert captured == [1]
    assert {key[0] for key in graphs._seen} == {"outer"}, "what is called within is part of it"
    assert not graphs._within
