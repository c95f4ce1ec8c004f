"""What there is to choose from, read from the source files: importing them would import torch, which takes seconds."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .. import methods

_PACKAGE = Path(__file__).parent.parent

Names = dict[str, str]
"""A name, and what it means in one line."""


def data() -> Names:
    """The named sets, and around them what the head of the file says of digits and of a user's own."""
    path = "data/sources.py"
    known = {}
    for name, call in _table(path, "_KNOWN").items():
        classes, hub = (ast.literal_eval(part) for part in ([*_positional(call), ast.Constant("")])[:2])
        origin = f"{name}.npz in $LATECOMER_DATA" + (f", else {hub} on Hugging Face" if hub else "")
        known[name] = f"{classes} classes; {origin}"
    lines = re.findall(r"^ {4}(\S+) {2,}(\S.*)$", ast.get_docstring(_parsed(path), clean=False) or "", re.MULTILINE)
    return dict(lines[:1]) | dict(sorted(known.items())) | dict(lines[1:])


def partitions() -> Names:
    return _described("data/partitions.py", "PARTITIONS")


def models() -> Names:
    return _described("nets/models.py", "MODELS")


def engines() -> Names:
    return {name: str(ast.literal_eval(text)) for name, text in _table("engines/__init__.py", "NAMES").items()}


KINDS: dict[str, Callable[[], Names]] = {
    "methods": methods.names,
    "data": data,
    "partitions": partitions,
    "models": models,
    "engines": engines,
}


SWITCH = ("true", "false")


def settings(method: str = "") -> dict[str, tuple[str, ...]]:
    """The settings of a run, or those of a method's own, each with the values that its type names."""
    path = f"methods/{method}.py" if method else "settings.py"
    kinds = [node.name for node in _parsed(path).body if isinstance(node, ast.ClassDef)]
    lines = [_lineage(path, kind) for kind in kinds]
    line = next((line for line in lines if line[0].name == "Method"), lines[0])
    found: dict[str, tuple[str, ...]] = {}
    for node in line:
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found.pop(field.target.id, None)
                if isinstance(field.value, ast.Call) and ast.unparse(field.value.func) == "setting":
                    found[field.target.id] = _literals(field.annotation)
    return {name: values for name, values in found.items() if name != "method"}


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
    """The values of a Literal, also of one that may be None; of a switch, true and false."""
    if ast.unparse(annotation) == "bool":
        return SWITCH
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
            return tuple(str(value) for value in ast.literal_eval(ast.Tuple([node.slice], ast.Load()))[0])
    return ()


def _described(path: str, registry: str) -> Names:
    """The first docstring line of the function or class that a registry holds under each name."""
    lines = {
        node.name: (ast.get_docstring(node) or "").split("\n")[0]
        for file in (*_neighbours(path), path)
        for node in _parsed(file).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    return {name: lines.get(ast.unparse(value), "") for name, value in _table(path, registry).items()}


def _neighbours(path: str) -> list[str]:
    """The files of the same folder that a file imports from."""
    imports = [node for node in _parsed(path).body if isinstance(node, ast.ImportFrom) and node.level == 1]
    return [f"{Path(path).parent.as_posix()}/{node.module}.py" for node in imports]


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


def _positional(call: ast.expr) -> list[ast.expr]:
    return call.args if isinstance(call, ast.Call) else []


@cache
def _parsed(path: str) -> ast.Module:
    return ast.parse((_PACKAGE / path).read_text(encoding="utf-8"))
