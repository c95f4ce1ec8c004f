"""Which runs can stand beside each other: those whose clients are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..data.split import Split
from ..errors import RunError, UnknownName
from ..study.analyses import labels
from ..study.finished import Finished, check_names, is_number, read_all


@dataclass(frozen=True)
class Section:
    """Runs on the same clients, what to call them, and which one the others are compared with."""

    runs: list[Finished]
    names: list[str]
    baseline: int = 0

    @property
    def title(self) -> str:
        first = self.runs[0]
        rows = [row for row in first.rows if row["seed"] == first.seeds[0]]
        roles = [(role, sum(row["role"] == role for row in rows)) for role in ("member", "validator", "latecomer")]
        counts = ", ".join(f"{count:,} {role}{'s' * (count != 1)}" for role, count in roles if count)
        few = len(first.seeds) < 6
        told = ", ".join(map(str, first.seeds)) if few else f"{first.seeds[0]} to {first.seeds[-1]}"
        seeds = f"seed{'s' * (len(first.seeds) > 1)} {told}"
        return f"{first.data}: {counts or 'no clients'}; {seeds}"


def gather(paths: Sequence[Path], baseline: Path | None) -> tuple[list[Section], list[str]]:
    """Runs by the data and splits that they have in common, and sentences about what is missing or kept apart."""
    check_names([*paths, *([baseline] if baseline else [])])
    distinct = list({path.resolve(): path for path in paths}.values())
    found, notes = read_all(distinct)
    runs = []
    for run in found:
        try:
            check(run)
            runs.append(run)
        except RunError as error:
            notes.append(str(error))
    if not runs:
        raise RunError(" ".join(notes))
    chosen = baseline.resolve() if baseline else None
    if chosen is not None and chosen not in [run.path.resolve() for run in runs]:
        raise UnknownName("run for a baseline", str(baseline), [str(run.path) for run in runs])
    groups: dict[Any, list[tuple[Finished, str]]] = {}
    for run, name in zip(runs, labels(runs), strict=True):
        # Where no splits are told, nobody knows whose clients they are, so such a run stands alone.
        key = (run.data, *run.splits, *run.seeds) if run.splits else run.path
        groups.setdefault(key, []).append((run, name))
    sections = []
    for group in groups.values():
        place = next((k for k, (run, _) in enumerate(group) if run.path.resolve() == chosen), 0)
        sections.append(Section([run for run, _ in group], [name for _, name in group], place))
    if len(sections) > 1:
        parts = "; ".join(", ".join(section.names) for section in sections)
        firsts = [section.runs[0] for section in sections]
        told = [name for name in _DEAL if all(name in run.settings for run in firsts)]
        why = [name for name in told if len({str(run.settings[name]) for run in firsts}) > 1]
        because = f" They differ in: {', '.join(why)}." if why else ""
        notes.append(f"These runs have other data, other splits or other seeds and are kept apart: {parts}.{because}")
    return sections, notes


_DEAL = (*(one.name for one in fields(Split)), "data", "seed", "seeds")
"""Settings that say who owns what."""


def check(run: Finished) -> None:
    """What the page needs besides what every finished run has is there, and of the right kind."""
    result = run.result
    sent = result.get("bytes")
    if not isinstance(sent, dict) or not all(is_number(sent.get(way)) for way in ("down", "up")):
        raise RunError(f"The run in {run.path} is damaged: result.json does not say what was sent.")
    each, selected = result.get("bytes_per_client_round") or {}, result.get("selected_rounds") or []
    if not isinstance(each, dict) or not all(is_number(each.get(way, 0)) for way in ("down", "up")):
        raise RunError(f"The run in {run.path} is damaged: result.json does not say what a client was sent.")
    if not isinstance(selected, list) or not all(type(at) is int for at in selected):
        raise RunError(f"The run in {run.path} is damaged: result.json does not say which rounds were selected.")
    for place, line in enumerate(run.metrics, 1):
        if not is_number(line.get("seconds")):
            raise RunError(f"The run in {run.path} is damaged: line {place} of metrics.jsonl does not say when it was.")
