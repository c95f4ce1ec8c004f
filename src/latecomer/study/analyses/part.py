"""Where runs part: the first evaluation at which two servers are no longer the same, bit for bit.

Every line of metrics.jsonl has a SHA-256 of the server's state. Each run is compared with the first one, seed by seed:
of another machine, another engine, or before and after a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import RunError, SettingError
from ..finished import Finished, differing
from . import Analysis, labels

read = Finished.read


@dataclass(frozen=True, kw_only=True)
class Settings:
    pass


def analyse(runs: Sequence[Finished], asked: Settings) -> Analysis:
    if len(runs) < 2:
        raise SettingError("Two runs can part, one cannot: latecomer analyse part RUN RUN...")
    (first, *others), (named, *names) = runs, labels(runs)
    rows: list[list[Any]] = []
    notes: list[str] = []
    for run, name in zip(others, names, strict=True):
        if not (seeds := [seed for seed in first.seeds if seed in run.seeds]):
            raise SettingError(f"{first.path} and {run.path} have no seed in common.")
        found = [parting(digests(first, seed), digests(run, seed)) for seed in seeds]
        rows += [[name, seed, *told] for seed, told in zip(seeds, found, strict=True)]
        notes.append(f"{named} and {name} {_beside(first, run)}")
    title = f"Where runs part from {named}"
    return Analysis(title, ["run", "seed", "evaluations", "same until round", "differ from round"], rows, None, notes)


def digests(run: Finished, seed: int) -> dict[int, str]:
    """Of every round that was evaluated, the digest of a seed's server."""
    try:
        lines = {line["round"]: {one["seed"]: one.get("state") for one in line["runs"]} for line in run.metrics}
        found = {at: each[seed] for at, each in lines.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"The run in {run.path} is damaged: metrics.jsonl lacks {error}.") from error
    if not found or None in found.values():
        raise SettingError(f"The run in {run.path} kept no digests of its state; runs of today do.")
    return found


def parting(one: dict[int, str], other: dict[int, str]) -> list[Any]:
    """How many evaluations both have, the last round that is the same, and the first that is not; "-": none."""
    both = sorted(one.keys() & other.keys())
    differ = next((at for at in both if one[at] != other[at]), None)
    same = [at for at in both if differ is None or at < differ]
    return [len(both), same[-1] if same else "-", "-" if differ is None else differ]


def _beside(one: Finished, other: Finished) -> str:
    """In what two runs differ besides: what could be the reason."""
    apart = [f"--{name.replace('_', '-')}" for name in differing([one, other])]
    apart += [name for name in ("engine", "device", "threads") if one.setting(name) != other.setting(name)]
    apart += [k for k in ("machine", "torch", "python", "commit", "splits") if one.about.get(k) != other.about.get(k)]
    return f"differ in {', '.join(apart)}." if apart else "have the same settings, machine, versions and splits."
