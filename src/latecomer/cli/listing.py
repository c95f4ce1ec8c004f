"""latecomer list: what there is to choose from."""

from __future__ import annotations

from ..errors import SettingError, UnknownName
from . import catalogue, screen


def main(words: list[str]) -> int:
    if len(words) > 1:
        raise SettingError(f"latecomer list takes one word at most; got {' '.join(words)!r}.")
    if words and words[0] not in catalogue.KINDS:
        raise UnknownName("list of", words[0], catalogue.KINDS)
    for kind in words or catalogue.KINDS:
        screen.section(kind.capitalize(), list(catalogue.KINDS[kind]().items()))
    return 0


def explain(words: list[str]) -> None:
    print(f"Usage: latecomer list [{'|'.join(catalogue.KINDS)}]\n\nWithout a word it lists them all.")
