"""What the server of a run tells whoever follows it: lines of JSON among those of its log."""

from __future__ import annotations

import json
import logging
import math
import sys
from typing import Any

MARK = "latecomer> "


def tell(**news: Any) -> None:
    """One line; Flower carries what a ServerApp writes to the SuperLink, and from there to whoever follows."""
    sys.stdout.write(f"{MARK}{json.dumps(_plain(news))}\n")


def heard(line: str) -> dict[str, Any]:
    """What a line tells; nothing where it is not one of ours."""
    _, mark, text = line.partition(MARK)
    try:
        found = json.loads(text) if mark else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Notes(logging.Handler):
    """What latecomer logs on the server, a client that fell silent say, is told as a note."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(note=record.getMessage())


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
