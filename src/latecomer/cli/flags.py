"""Words of a command line become raw values of settings: --name value, --name=value, --switch, --no-switch."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_type_hints

from ..errors import SettingError, UnknownName
from ..settings import flag, settings_of


def switches(kind: Any) -> set[str]:
    """The settings of a dataclass that are true or false; they need no value."""
    hints = get_type_hints(kind)
    return {name for name in settings_of(kind) if hints[name] is bool}


def given(words: Collection[str], *kinds: Any) -> dict[str, str]:
    """The settings of these dataclasses that a command line gives; the method is a word of its own, no flag."""
    names = {name for kind in kinds for name in settings_of(kind)} - {"method"}
    return read(words, names, {name for kind in kinds for name in switches(kind)})


def read(words: Collection[str], names: Collection[str], switches: Collection[str] = ()) -> dict[str, str]:
    """Every word belongs to a setting called one of `names`, given once; `switches` are those that need no value."""
    given: dict[str, str] = {}
    rest = deque(words)
    while rest:
        name, value = _next(rest, names, switches)
        if name in given:
            raise SettingError(f"{flag(name)} is given twice.")
        given[name] = value
    return given


def pull(words: Sequence[str], name: str) -> tuple[str, list[str]]:
    """The value of one setting (empty if it is not given), and the words without it."""
    for place, word in enumerate(words):
        if word.partition("=")[0] == flag(name):
            end = place + (1 if "=" in word else 2)
            return read(words[place:end], [name])[name], [*words[:place], *words[end:]]
    return "", list(words)


def subject(words: Sequence[str], usage: str) -> tuple[str, list[str]]:
    """The first word, which says what a command is about, and the others."""
    if not words or words[0].startswith("-"):
        raise SettingError(f"Say what it is about: {usage}; --help says more.")
    return words[0], list(words[1:])


def subjects(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first flag, and the others."""
    count = next((k for k, word in enumerate(words) if word.startswith("-")), len(words))
    return list(words[:count]), list(words[count:])


def long(words: Sequence[str]) -> list[str]:
    """-o is short for --output."""
    return ["--output" if word == "-o" else word for word in words]


def needed(given: Mapping[str, str], name: str) -> str:
    """A setting that a command cannot do without."""
    if not given.get(name):
        raise SettingError(f"{flag(name)} is needed; --help says more.")
    return given[name]


def _next(rest: deque[str], names: Collection[str], switches: Collection[str]) -> tuple[str, str]:
    word = rest.popleft()
    if not word.startswith("--"):
        raise SettingError(f"{word!r} is one word too many; settings are given as --name value.")
    text, equals, value = word[2:].partition("=")
    name = text.replace("-", "_")
    if name not in names and name.removeprefix("no_") in switches:
        if equals:
            raise SettingError(f"--{text} takes no value; got {value!r}.")
        return name.removeprefix("no_"), "false"
    if name not in names:
        raise UnknownName("setting", text, [flag(known)[2:] for known in names])
    if equals:
        return name, value
    if name in switches and not (rest and rest[0].lower() in ("true", "false")):
        return name, "true"
    if not rest or rest[0].startswith("--"):
        raise SettingError(f"{flag(name)} needs a value.")
    return name, rest.popleft()
