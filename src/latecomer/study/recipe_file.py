"""The files of recipes: which there are, what one says with what it takes from the one that it is like, its numbers."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import SettingError

FOLDER = Path(__file__).parent.parent / "recipes"


def names() -> list[str]:
    """All recipes there are."""
    found = (path for path in FOLDER.glob("*/*.toml") if not path.stem.endswith(".tuned"))
    return sorted(f"{path.parent.name}/{path.stem}" for path in found)


def titles() -> dict[str, str]:
    """What each recipe is about, by its name."""
    return {name: str(whole(FOLDER / f"{name}.toml")["title"]) for name in names()}


def tuned_name(stem: str, quick: bool) -> str:
    """What the file beside a recipe is called that holds what searches found."""
    return f"{stem}{'.quick' if quick else ''}.tuned.toml"


def folder_name(name: str, quick: bool) -> str:
    """What is called after a recipe: the folder of its runs, the file of its record."""
    return name.strip("/").replace("/", "-") + ("-quick" if quick else "")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"The recipe {path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise SettingError(f"The recipe {path} is not TOML: {error}.") from error


def whole(path: Path, behind: tuple[Path, ...] = ()) -> dict[str, Any]:
    """What a file says, with what it takes from the one that it is like."""
    told = read_toml(path)
    if "like" not in told:
        return told
    if (name := str(told.pop("like"))) != Path(name).name:
        raise SettingError(f"The recipe {path} is like {name!r}; one of its own folder is called by its name alone.")
    other = path.with_name(f"{name}.toml")
    if other in (path, *behind):
        raise SettingError(f"The recipe {path} is like itself.")
    base = {key: part for key, part in whole(other, (path, *behind)).items() if key != "runs"}
    base |= _for_rows(base, {**base, **told})
    added = {key: _added(base.get(key, {}), told[key]) for key in ("settings", "quick") if key in told}
    return base | told | added


def _for_rows(base: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What the other one says in [tune] and [quick] of rows and columns, without those that are here no more."""
    found: dict[str, Any] = {}
    for part, key, there in (("tune", "search", "rows"), ("quick", "row", "rows"), ("quick", "column", "columns")):
        if key in base.get(part, {}):
            kept = {name: some for name, some in base[part][key].items() if name in now.get(there, {})}
            found[part] = {**base[part], **found.get(part, {}), key: kept}
    return found


def _added(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Two tables as one: tables in them likewise, and of everything else the second's."""
    both = {key: _added(base[key], more[key]) for key in base.keys() & more.keys() if isinstance(more[key], dict)}
    return {**base, **more, **both}


def number(text: Any) -> tuple[float, float]:
    """Mean and spread of "88.9 ± 0.7", of a plain number, or of nothing."""
    if text == "":
        return math.nan, math.nan
    mean, _, spread = str(text).partition("±")
    return float(mean), float(spread) if spread else math.nan
