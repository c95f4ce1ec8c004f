"""How long something takes, without waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class Stopwatch:
    """Seconds between start and stop; on a GPU by events, read only when asked, so that nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.began = self._now()

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        if torch.cuda.is_current_stream_capturing():
            return None  # part of a graph takes no time of its own
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def stop(self) -> Callable[[], float] | None:
        began, ended = self.began, self._now()
        if began is None or ended is None:
            return None
        if self.device.type != "cuda":
            return lambda: float(ended - began)

        def read() -> float:
            ended.synchronize()
            return float(began.elapsed_time(ended)) / 1000

        return read
