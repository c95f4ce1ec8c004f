"""The methods. One paper per file, no import between them; this folder is the registry."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UnknownName

if TYPE_CHECKING:  # names can be had without waiting for torch
    from ..method import Method

_FOLDER = Path(__file__).parent


def names() -> dict[str, str]:
    """Every method's name and the first line of its file, read without importing it."""
    return {
        path.stem: (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]
        for path in sorted(_FOLDER.glob("[a-z]*.py"))
    }


@cache
def get(name: str) -> type[Method]:
    """The method class of a file."""
    key = name.lower().replace("-", "")
    if key not in names():
        raise UnknownName("method", name, names())
    from ..method import Method

    module = importlib.import_module(f".{key}", __name__)
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__
    )
