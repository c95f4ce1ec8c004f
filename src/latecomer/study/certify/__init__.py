"""Theorems of the papers as numbers for a finished run, one theorem a file; `THEOREMS` is the registry.

A file says what it can be told (`Settings`) and what its theorem promises of a run (`certificate`); the theorem itself
is functions of plain numbers beside them.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

from ...errors import SettingError, UnknownName, within_memory
from ...handover.trained import Trained
from ...runs.files import strict, write
from ...settings import parse, setting
from ..finished import check_names

THEOREMS = {
    "pefll": "Theorem 4.2 of PeFLL: the error of clients that come later",
    "flowdup": "Theorem 4.1 of FLowDUP: the error of all members, with labels or without",
    "odpflhn": "the bound in the supplement of ODPFL-HN: the least error of a novel client",
    "knnper": "Theorem 4.1 of kNN-Per: the error of a member that blends model and nearest neighbour",
}

LEAST = 1e-100
"""A probability of failing that is still a number when it is shared and divided by."""
Tell = Callable[[int, int], None]
"""Called with how many draws are done, and of how many."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What every certificate can be told."""

    server: int | None = setting(None, "which of the run's seeds; not given: the first")
    device: str = setting("auto", "cpu, cuda, or auto: cuda where there is one")


@dataclass(frozen=True)
class Term:
    """One number of a certificate: what it is, and how it comes from those above it."""

    name: str
    value: float
    how: str = ""


@dataclass(frozen=True)
class Certificate:
    """A theorem's right-hand side term by term, what it takes for granted, and what is true beside it."""

    title: str
    terms: list[Term]
    bound: float
    holds: str  # of whom or what the bound speaks, and how surely
    assumes: list[str]
    risks: list[tuple[str, float]]  # measured: whose error it is, and the error
    floor: float | None = None  # something in the theorem is not known: its bound is no less; None: all is known
    about: dict[str, Any] = field(default_factory=dict)  # of which run, and what it was told

    @property
    def vacuous(self) -> bool:
        """Whether it surely says no more than everybody knows: that at most all examples are wrong."""
        return not (self.bound if self.floor is None else self.floor) < 1

    @property
    def verdict(self) -> str:
        """What a reader should take home, in a sentence."""
        if self.floor is None:
            vacuous = "vacuous, for no error is above 1" if self.vacuous else "not vacuous"
            return f"The bound is {self.bound:.4g}: it is {vacuous}."
        estimate = (
            f"The formula comes to {self.bound:.4g}, an estimate: terms of it are not known, and what the theorem says "
            "may be more or less."
        )
        if self.vacuous:
            return f"{estimate} It is at least {self.floor:.4g}, so it is vacuous, for no error is above 1."
        return (
            f"{estimate} Nothing shows that it is vacuous (it is at least {self.floor:.4g}), but it is no certificate."
        )

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        told = asdict(self) | {"vacuous": self.vacuous, "verdict": self.verdict}
        write(path, json.dumps(strict(told), indent=2, allow_nan=False) + "\n")


def gaps(train: float, members: float, latecomers: float) -> list[tuple[str, float]]:
    """Errors on members' training examples and on test examples, and how far these are above; NaN: there are none."""
    found = [("members, training examples", train)]
    for who, error in (("members", members), ("latecomers", latecomers)):
        if not math.isnan(error):
            found += [(f"{who}, test examples", error), (f"true gap, {who}", error - train)]
    return found


def remarks(run: Trained, best: str, strangers: str = "") -> list[str]:
    """What a reader has to know of a run besides what its theorem assumes of all: `best` says what holds of the best of
    several seeds, `strangers` what it means for the theorem that latecomers were drawn otherwise than members."""
    settings, found = run.experiment.settings, []
    if len(run.seeds) > 1:
        found.append(
            f"holds for one of the run's {len(run.seeds)} seeds, if it was chosen (--server) before results were seen; "
            f"{best}"
        )
    otherwise = {
        "--unlike": settings.unlike,
        "--unseen-alpha": settings.unseen_alpha if settings.unseen_alpha != settings.alpha else 0,
        "--unseen-rotations": settings.unseen_rotations,
    }
    if strangers and (given := [name for name, value in otherwise.items() if value]):
        found.append(f"has latecomers beside it that {' and '.join(given)} made unlike members on purpose: {strangers}")
    return found


MORE_LIKELY = "for the best of them, it fails with a probability that may be as many times as large"


class Theorem(Protocol):
    """A file of this folder."""

    Settings: type[Any]

    def certificate(self, run: Trained, asked: Any, tell: Tell) -> Certificate: ...


def get(method: str) -> Theorem:
    """The theorem about a method."""
    if method not in THEOREMS:
        raise UnknownName("bound for the method", method, THEOREMS)
    return cast(Theorem, importlib.import_module(f".{method}", __name__))


def load(path: str | Path) -> Trained:
    """A finished run whose method has a theorem."""
    check_names([Path(path)])
    run = Trained.load(path)
    if run.name not in THEOREMS:
        raise SettingError(
            f"{path} is a run of {run.name}, for which there is no bound; there is one for {', '.join(THEOREMS)}."
        )
    return run


@within_memory()
def certify(
    run: Trained | str | Path, settings: Mapping[str, Any] | None = None, tell: Tell = lambda done, of: None
) -> Certificate:
    """What the theorem about its method promises of a finished run: `certify("runs/first")`. Nothing is trained."""
    run = run if isinstance(run, Trained) else load(run)
    theorem = get(run.name)
    asked = parse(theorem.Settings, settings or {})
    about = {"run": str(run.path), "method": run.name, "checkpoint": run.digest, "settings": asdict(asked)}
    found = theorem.certificate(run, asked, tell)
    if not any("true gap, members" in name for name, _ in found.risks):
        found.assumes.append("has no true gap of members beside it, for they have no test examples")
    return replace(found, about=about)
