"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import LatecomerError


@contextmanager
def drafted(place: Path, kind: type[LatecomerError]) -> Iterator[Path]:
    """A new folder to write into, which becomes `place` at the end; what keeps it from that is one sentence."""
    if os.path.lexists(place):
        raise kind(f"{place} exists already; choose another folder.")
    draft = place.with_name(f".new-{uuid.uuid4().hex}")
    try:
        draft.mkdir(parents=True)
        yield draft
        draft.rename(place)
    except OSError as error:
        raise kind(f"{place} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # it is still there if it could not be named
