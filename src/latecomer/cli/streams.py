"""Standard output and standard error as everything else here expects them: open, and able to write any character."""

from __future__ import annotations

import codecs
import io
import os
import sys

PLAIN = {"±": "+-", "…": "...", "\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{MULTIPLICATION SIGN}": "x"}

CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "?")
"""Characters by which a name in somebody's folder could colour a terminal, or call it something else."""


def plain(text: str) -> str:
    """A text without characters that do something to a terminal; ends of lines and tabs stay."""
    return text.translate(CONTROLS)


def prepare() -> None:
    # Where a stream is closed (2>&-), the next file opened would take its place, and be written to.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w", encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):  # standard error never fails at a character
        sys.stdout.reconfigure(errors=_plainly.__name__)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """What the user's locale cannot write, in characters that it can."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(PLAIN.get(one, "?") for one in error.object[error.start : error.end]), error.end


codecs.register_error(_plainly.__name__, _plainly)
