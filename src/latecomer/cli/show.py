"""latecomer show: the settings of a method and of a run, from the dataclasses that define them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from .. import methods
from ..errors import SettingError
from ..runs.settings import Settings
from ..settings import allowed, flag, settings_of
from . import screen


def main(words: list[str]) -> int:
    if len(words) > 1:
        raise SettingError(f"latecomer show takes one method at most; got {' '.join(words)!r}.")
    show(words[0] if words else "run")
    return 0


def explain(words: list[str]) -> None:
    print("Usage: latecomer show [METHOD]\n\nWithout a method, or for `run`: the settings that all methods share.")


def show(name: str) -> None:
    """What `latecomer run NAME` can be told; for `run`, what it can always be told."""
    if name != "run":
        _show_method(name)
    else:
        _show_run({})


def _show_method(name: str) -> None:
    with screen.working("Loading"):
        kind = methods.get(name)
    print(f"{(sys.modules[kind.__module__].__doc__ or '').strip()}\n")
    screen.section(f"Settings of {name}", lines(kind, {}))
    if kind.paper:
        screen.section("Run settings of its paper", [(flag(key), _text(value)) for key, value in kind.paper.items()])
    _show_run(kind.paper)


def _show_run(paper: Mapping[str, Any]) -> None:
    rows = [line for line in lines(Settings, paper) if line[0] != "--method"]
    rows.append(("--settings", "", "TOML file with settings, a run folder's settings.toml say; flags override it"))
    screen.section("Run settings", rows)


def lines(kind: Any, defaults: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Of every setting its flag, its default, and its meaning with the values it takes."""
    return [
        (
            flag(name),
            _text(defaults.get(name, f.default)),
            f.metadata["meaning"] + f" [{allowed(kind, name)}]" * bool(allowed(kind, name)),
        )
        for name, f in settings_of(kind).items()
    ]


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "-"
    return f"{value:g}" if isinstance(value, float) else str(value) or "-"
