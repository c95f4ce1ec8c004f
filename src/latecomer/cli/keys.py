"""latecomer keys: make, replace, list and revoke the API keys of a server."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ..errors import SettingError, UnknownName
from ..serve.keys import SCOPES, Keys
from ..settings import convert
from . import flags, screen

USAGE = """Usage: latecomer keys new FILE --name NAME [--scopes models,encoder] [--days 90]
       latecomer keys rotate FILE NAME [--grace 7] [--days 90]
       latecomer keys list FILE
       latecomer keys revoke FILE NAME

`new` and `rotate` print a key, once: the file keeps a salted hash. After a rotation the old key works for as many days
as --grace says. Without --days a key does not expire. A running server reads the file again within seconds.
"""

SETTINGS = {"new": ("name", "scopes", "days"), "rotate": ("grace", "days"), "list": (), "revoke": ()}


def main(words: list[str]) -> int:
    if not words:
        raise SettingError(f"Say what to do with keys: {', '.join(SETTINGS)}.")
    action, *rest = words
    if action not in SETTINGS:
        raise UnknownName("command of keys:", action, SETTINGS)
    place = next((k for k, word in enumerate(rest) if word.startswith("--")), len(rest))
    names = ("FILE", "NAME") if action in ("rotate", "revoke") else ("FILE",)
    if place != len(names):
        raise SettingError(
            f"latecomer keys {action} takes {' and '.join(names)} first; got {' '.join(rest) or 'nothing'}."
        )
    given = flags.read(rest[place:], SETTINGS[action])
    path, name = Path(rest[0]), rest[1] if place == 2 else given.get("name", "")
    keys = Keys() if action == "new" and not os.path.exists(path) else Keys.read(path)
    if action == "list":
        return show(keys)
    if action == "revoke":
        keys.revoke(name).write(path)
        return 0
    if action == "new":
        scopes = convert("scopes", given.get("scopes", "models,encoder"), tuple[str, ...])
        after, text = keys.new(name, scopes, days(given, "days", 0.0))
    else:
        after, text = keys.rotate(name, days(given, "grace", 7.0), days(given, "days", 0.0))
    after.write(path)
    print(text)
    return 0


def explain(words: list[str]) -> None:
    print(USAGE)
    screen.section("Scopes", list(SCOPES.items()))


def show(keys: Keys) -> int:
    """Names, never keys."""
    now = time.time()
    lines = []
    for key in keys.keys:
        until = "never" if key.expires is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(key.expires))
        state = "expired" if key.expired(now) else f"until {until}" if key.expires else "does not expire"
        lines.append((key.name, ", ".join(key.scopes), state))
    screen.section("Keys", lines)
    return 0


def days(given: dict[str, str], name: str, default: float) -> float:
    number: float = convert(name, given.get(name, default), float)
    if not 0 <= number < 36500:
        raise SettingError(f"--{name} must be from 0 to 36500 days; got {number:g}.")
    return number
