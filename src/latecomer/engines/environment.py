"""The environment that a package of others is imported in, where it reads there what it may do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(names: Mapping[str, str]) -> Iterator[None]:
    """With these names, where they have no value yet; the process has its own environment back afterwards."""
    added = [name for name in names if name not in os.environ]
    os.environ.update({name: names[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
