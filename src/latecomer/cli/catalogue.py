"""What there is to choose from, without importing torch, which takes seconds.

Sources, partitions and the settings of a run need none; of models, engines and methods the source files are read.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from .. import methods
from ..data import partitions, sources
from ..runs.settings import Settings
from ..settings import settings_of

_PACKAGE = Path(__file__).parent.parent

Names = dict[str, str]
"""A name, and what it means in one line."""


def _partitions() -> Names:
    return {name: (deal.__doc__ or "").split("\n")[0] for name, deal in partitions.PARTITIONS.items()}


def _models() -> Names:
    """The first line about each class that the table of models names, from its file or a neighbour that it imports."""
    path = "nets/models.py"
    imports = [node.module for node in _parsed(path).body if isinstance(node, ast.ImportFrom) and node.level == 1]
    bodies = [node for file in (path, *(f"nets/{module}.py" for module in imports)) for node in _parsed(file).body]
    kinds = {node.name: ast.get_docstring(node) or "" for node in bodies if isinstance(node, ast.ClassDef)}
    return {name: kinds[ast.unparse(kind)].split("\n")[0] for name, kind in _table(path, "MODELS").items()}


def _engines() -> Names:
    return {name: ast.literal_eval(text) for name, text in _table("engines/__init__.py", "NAMES").items()}


KINDS: dict[str, Callable[[], Names]] = {
    "methods": methods.names,
    "data": lambda: sources.NAMES,
    "partitions": _partitions,
    "models": _models,
    "engines": _engines,
}

SWITCH = ("true", "false")


def run_settings() -> dict[str, tuple[str, ...]]:
    """The settings of a run, each with the values that its type names."""
    hints = get_type_hints(Settings)
    return {name: _choices(hints[name]) for name in settings_of(Settings) if name != "method"}


def _choices(hint: Any) -> tuple[str, ...]:
    """The values of a Literal, also of one within another type; of a switch, true and false."""
    if hint is bool:
        return SWITCH
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    return next((found for part in get_args(hint) if (found := _choices(part))), ())


def method_settings(method: str) -> dict[str, tuple[str, ...]]:
    """The same of a method's own settings, as they stand in its file and those of the classes that it inherits from."""
    path = f"methods/{method}.py"
    lines = [_lineage(path, node.name) for node in _parsed(path).body if isinstance(node, ast.ClassDef)]
    found: dict[str, tuple[str, ...]] = {}
    for node in next(line for line in lines if line[0].name == "Method"):
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found.pop(field.target.id, None)
                if isinstance(field.value, ast.Call) and ast.unparse(field.value.func) == "setting":
                    found[field.target.id] = _literals(field.annotation)
    return found


def _lineage(path: str, kind: str) -> list[ast.ClassDef]:
    """A class of a file after all that it inherits from, as far as they are latecomer's own."""
    for node in _parsed(path).body:
        if isinstance(node, ast.ClassDef) and node.name == kind:
            bases = [_lineage(path, base.id) for base in reversed(node.bases) if isinstance(base, ast.Name)]
            return [*dict.fromkeys(one for line in bases for one in line), node]
        if isinstance(node, ast.ImportFrom) and node.level and kind in [alias.name for alias in node.names]:
            home = Path(path).parents[node.level - 1]
            return _lineage(f"{(home / (node.module or '')).as_posix()}.py", kind)
    return []


def _literals(annotation: ast.expr) -> tuple[str, ...]:
    """As `_choices`, of a type that is written and not yet made."""
    if ast.unparse(annotation) == "bool":
        return SWITCH
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            return tuple(str(value) for value in ast.literal_eval(ast.Tuple([node.slice], ast.Load()))[0])
    return ()


def _table(path: str, name: str) -> dict[str, ast.expr]:
    """A dict that a file assigns to a name at its top level."""
    for node in _parsed(path).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Dict):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if isinstance(target, ast.Name) and target.id == name:
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {ast.literal_eval(key): value for key, value in pairs if key is not None}
    raise LookupError(f"{path} assigns nothing to {name}")


@cache
def _parsed(path: str) -> ast.Module:
    return ast.parse((_PACKAGE / path).read_text(encoding="utf-8"))
