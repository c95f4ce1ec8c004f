"""What the server of a run tells whoever follows it: lines of JSON among those of its log."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from ..runs.files import strict

MARK = "latecomer> "


def tell(**news: Any) -> None:
    """One line; Flower carries what a ServerApp writes to the SuperLink, and from there to whoever follows."""
    sys.stdout.write(f"{MARK}{json.dumps(strict(news))}\n")


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
