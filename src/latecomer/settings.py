"""Settings: a dataclass is the command line, the TOML file and the documentation at once.

    lr: float = setting(0.1, "local learning rate", low=0)

A value comes from the command line (text), from TOML (typed) or from Python; `parse` checks all three alike.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import SettingError, UnknownName

T = TypeVar("T")

LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "low": (operator.ge, "at least"),
    "above": (operator.gt, "greater than"),
    "high": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}
"""How a number may be bounded: whether it keeps the limit, and how that is called."""


def setting(
    default: Any,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    sweepable: bool = False,
) -> Any:
    """A field with its meaning, and the range of a number: `low` <= value <= `high`, `above` < value < `below`.

    With a `sweepable` number a method's client steps only calculate, so runs that differ in it can share a map: there
    it is a tensor, one number a row. What decides (`if self.proxy`), counts or shapes something is not sweepable.
    """
    limits = {"low": low, "above": above, "high": high, "below": below}
    return field(default=default, metadata={"meaning": meaning, "sweepable": sweepable, **limits})


def parse(kind: type[T], values: Mapping[str, Any], *, known: Iterable[str] = ()) -> T:
    """A dataclass of settings from raw values. `known` are further names that would have been allowed."""
    return kind(**complete(kind, values, known=known))


def complete(kind: Any, values: Mapping[str, Any], *, known: Iterable[str] = ()) -> dict[str, Any]:
    """All settings of a dataclass: those given, converted and within their ranges, and the defaults of the others."""
    fields, hints = settings_of(kind), get_type_hints(kind)
    for name in values:
        if name not in fields:
            raise UnknownName("setting", name, {*fields, *known})
    whole = {}
    for name, f in fields.items():
        whole[name] = convert(name, values.get(name, f.default), hints[name])
        _check_range(name, whole[name], _limits(f))
    return whole


def check_ranges(instance: Any) -> None:
    """A sentence where a setting of a dataclass is of another type than it says, or out of its range."""
    complete(type(instance), {name: getattr(instance, name) for name in settings_of(instance)})


def settings_of(kind: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a dataclass that are settings."""
    return {f.name: f for f in dataclasses.fields(kind) if "meaning" in f.metadata}


def _check_range(name: str, value: Any, limits: Mapping[str, float]) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        if not isinstance(number, int | float) or isinstance(number, bool):
            continue
        endless = isinstance(number, float) and not math.isfinite(number)
        if endless or not all(LIMITS[key][0](number, limit) for key, limit in limits.items()):
            raise SettingError(f"{flag(name)} must be {_in_words(limits) or 'a finite number'}; got {number}.")
        if isinstance(number, int) and abs(number) >= 2**63:  # more than a tensor can count
            raise SettingError(f"{flag(name)} must be a whole number below 2^63; got {number}.")


def _limits(f: dataclasses.Field[Any]) -> dict[str, float]:
    return {key: f.metadata[key] for key in LIMITS if f.metadata[key] is not None}


def _in_words(limits: Mapping[str, float]) -> str:
    return " and ".join(f"{LIMITS[key][1]} {limit:g}" for key, limit in limits.items())


def allowed(kind: Any, name: str) -> str:
    """What values a setting takes, in a few words; empty where its meaning says it all."""
    hint, limits = get_type_hints(kind)[name], _limits(settings_of(kind)[name])
    options = [hint, *get_args(hint)]  # the type itself, or what may stand in a union
    for option in options:
        if get_origin(option) is Literal:
            return ", ".join(map(str, get_args(option)))
    if limits.keys() == {"low", "high"}:
        return f"{limits['low']:g} to {limits['high']:g}"
    return _in_words(limits).replace("greater than", "above")


def flag(name: str) -> str:
    """A setting's name as the command line spells it."""
    return "--" + name.replace("_", "-")


def convert(name: str, value: Any, kind: Any) -> Any:
    """`value` as the type asks, or a sentence that says what was expected."""
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        kind = next(option for option in get_args(kind) if option is not type(None))
    if get_origin(kind) is Literal:
        return _choice(name, value, get_args(kind))
    if get_origin(kind) is tuple:
        parts = value.replace(",", " ").split() if isinstance(value, str) else value
        parts = parts.tolist() if hasattr(parts, "tolist") else parts  # an array
        if not isinstance(parts, Sequence):
            raise SettingError(f"{flag(name)} takes several values; got {value!r}.")
        return tuple(convert(name, part, get_args(kind)[0]) for part in parts)
    return _plain(name, value, kind)


def _choice(name: str, value: Any, options: tuple[Any, ...]) -> Any:
    if value not in options:
        raise UnknownName(f"value for {flag(name)}", str(value), [str(option) for option in options])
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _plain(name: str, value: Any, kind: Any) -> Any:
    if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if kind in (int, float) and not isinstance(value, bool):
        try:
            if isinstance(value, str):
                return kind(value.replace("_", ""))
            if isinstance(value, Integral if kind is int else Real):  # numpy's are, too
                return kind(value)
        except (ValueError, OverflowError):
            pass
    elif isinstance(value, kind) and kind in (bool, str) and _writable(value):
        return value
    raise SettingError(f"{flag(name)} must be {_WORDS.get(kind, kind)}; got {value!r}.")


def _writable(value: Any) -> bool:
    """Whether a text can be written to settings.toml; bytes of the command line that are not UTF-8 cannot."""
    return not isinstance(value, str) or value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def dump(values: Mapping[str, Any]) -> str:
    """Flat settings, or tables of them, as TOML. `None` is left out: the default stands for it."""
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict | None)]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += ["", f"[{key}]", dump(value).rstrip()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's escapes are JSON's, and DEL
