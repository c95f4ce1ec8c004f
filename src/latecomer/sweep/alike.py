"""Where two objects differ: in numbers alone, or in kind.

Methods that differ in numbers alone (learning rates, say, and all that was made from them) do the same operations, so
one map can serve them all. Everything that an object holds is looked at; what cannot be looked into counts as
different. So two methods may be told apart that are alike, which costs time, but never the other way round.
"""

from __future__ import annotations

import copy
from functools import cached_property, partial
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ..nets.net import Net

Way = tuple[Any, ...]
"""Attributes, keys and places that lead from an object to a number within it."""

_BOOKKEEPING = set(vars(nn.Module())) - {"_modules", "_parameters", "_buffers"}


class Unlike(Exception):
    """Two objects that differ in more than numbers."""


def ways(a: object, b: object) -> list[Way]:
    """The ways to the numbers in which two objects differ. Raises `Unlike` where they differ in anything else."""
    return _Comparison().ways(a, b)


def same(a: object, b: object) -> bool:
    """Whether two objects do not differ at all."""
    try:
        return not ways(a, b)
    except Unlike:
        return False


def get(whole: Any, way: Way) -> Any:
    for name in way:
        whole = whole[name] if isinstance(whole, dict | list | tuple) else getattr(whole, name)
    return whole


def put(whole: Any, way: Way, value: Any) -> Any:
    """A copy with another value at the end of the way; what does not lie on the way is not copied."""
    if not way:
        return value
    name, part = way[0], put(get(whole, way[:1]), way[1:], value)
    if isinstance(whole, list | tuple):
        return type(whole)(part if k == name else old for k, old in enumerate(whole))
    if isinstance(whole, dict):
        return whole | {name: part}
    changed = copy.copy(whole)
    object.__setattr__(changed, name, part)  # a frozen dataclass, too: this copy is still being made
    return changed


class _Comparison:
    def __init__(self) -> None:
        self.found: dict[tuple[int, int], list[Way] | None] = {}  # None: still being compared

    def ways(self, a: Any, b: Any) -> list[Way]:
        if a is b:
            return []
        if _number(a) and _number(b) and float in (type(a), type(b)):
            return [] if a == b else [()]
        if type(a) is not type(b):
            raise Unlike
        parts, others = _parts(a), _parts(b)
        if parts is None or others is None:
            if not _equal(a, b):
                raise Unlike
            return []
        pair = id(a), id(b)
        if pair not in self.found:
            self.found[pair] = None
            self.found[pair] = self._through(a, parts, others)
        found = self.found[pair]
        if found is None:  # the way leads in a circle
            raise Unlike
        return found

    def _through(self, whole: Any, parts: dict[Any, Any], others: dict[Any, Any]) -> list[Way]:
        if parts.keys() != others.keys():
            raise Unlike
        found = [(name, *way) for name in parts for way in self.ways(parts[name], others[name])]
        if found and not _changeable(whole):
            raise Unlike
        return found


def _number(value: object) -> bool:
    return type(value) in (int, float)


def _changeable(whole: object) -> bool:
    """Whether `put` can change a part of it."""
    if isinstance(whole, FunctionType | MethodType | partial | nn.Module):
        return False
    return type(whole) in (dict, list, tuple) or hasattr(whole, "__dict__")


def _parts(whole: Any) -> dict[Any, Any] | None:
    """All that an object's behaviour depends on, by name; None for what has no parts."""
    if isinstance(whole, dict):
        return dict(whole)
    if isinstance(whole, list | tuple):
        return dict(enumerate(whole))
    if isinstance(whole, partial):
        return {"func": whole.func, "args": whole.args, "keywords": whole.keywords}
    if isinstance(whole, MethodType):
        return {"self": whole.__self__, "func": whole.__func__}
    if isinstance(whole, FunctionType):
        behind = {"code": whole.__code__, "defaults": whole.__defaults__, "named": whole.__kwdefaults__}
        return behind | dict(enumerate(_content(cell) for cell in whole.__closure__ or ()))
    if isinstance(whole, Tensor | type) or not hasattr(whole, "__dict__"):
        return None
    held = {name: part for name, part in vars(whole).items() if not _remembered(whole, name)}
    if isinstance(whole, nn.Module):
        hooks = [*whole._forward_pre_hooks.values(), *whole._forward_hooks.values()]
        held = {name: part for name, part in held.items() if name not in _BOOKKEEPING} | dict(enumerate(hooks))
    if isinstance(whole, Net):  # its skeleton is what was built; a copy of its constants may lie on some device
        held = {name: part for name, part in held.items() if name != "build"}
        held |= {"constants": whole.constants(torch.device("cpu"))}
    return held


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a function that was made before what it needs
        raise Unlike from None


def _remembered(whole: object, name: str) -> bool:
    """Whether an attribute only spares computing something twice, so that one object may have it and its like not."""
    kind = type(whole)
    cached = isinstance(getattr(kind, name, None), cached_property)
    fields = getattr(kind, "__dataclass_fields__", {}).keys()
    private = name.startswith("_") and name not in fields
    return cached or (private and (bool(fields) or isinstance(whole, Net)))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
            return False
        return a.is_meta or (a.data_ptr() == b.data_ptr() and a.stride() == b.stride()) or torch.equal(a, b)
    try:
        return bool(a == b)
    except Exception:  # arrays, say, which answer number by number
        return False
