"""Counts and times in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
EDGES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # seconds


class Metrics:
    """Of requests; the rest is asked for when somebody reads."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()  # method, path template, status
        self.times: dict[str, list[int]] = {}  # by path template, up to every edge and beyond
        self.seconds: Counter[str] = Counter()

    def count(self, method: str, path: str, status: int, seconds: float) -> None:
        self.requests[method, path, status] += 1
        self.times.setdefault(path, [0] * (len(EDGES) + 1))[bisect_left(EDGES, seconds)] += 1
        self.seconds[path] += seconds  # type: ignore[assignment]

    def text(self, further: Mapping[str, tuple[str, str, float]]) -> str:
        """All of it; `further` are (type, help, value) by name, with labels if it has any."""
        lines = _head("latecomer_requests_total", "counter", "Requests answered.")
        lines += [
            f'latecomer_requests_total{{method="{method}",path="{path}",status="{status}"}} {count}'
            for (method, path, status), count in sorted(self.requests.items())
        ]
        lines += _head("latecomer_request_seconds", "histogram", "From the first byte of a request to its answer.")
        for path, counts in sorted(self.times.items()):
            lines += self._histogram(path, counts)
        for name, (kind, meaning, value) in further.items():
            lines += [*_head(name.partition("{")[0], kind, meaning), f"{name} {value:g}"]
        return "\n".join(lines) + "\n"

    def _histogram(self, path: str, counts: list[int]) -> Iterable[str]:
        total = 0
        for edge, count in zip([*map(str, EDGES), "+Inf"], counts, strict=True):
            total += count
            yield f'latecomer_request_seconds_bucket{{path="{path}",le="{edge}"}} {total}'
        yield f'latecomer_request_seconds_sum{{path="{path}"}} {self.seconds[path]:.6f}'
        yield f'latecomer_request_seconds_count{{path="{path}"}} {total}'


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
