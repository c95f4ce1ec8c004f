"""FLowDUP, Tables 4 to 9, pFedHN, Fig. 6: accuracy against a setting in which finished runs differ.

Runs that differ in nothing else are a line. Those of another method, on other data, or with other settings besides are
another one, named by what is special about it; `--lines method` puts them together, and a note says what else differs.
Whether members without labels help (FLowDUP, Tables 6 and 7) is `--by labelled` over runs with them and without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan
from typing import Any, Literal

from ...errors import SettingError, UnknownName
from ...runs.settings import Settings as OfRuns
from ...settings import flag, setting, settings_of
from ..compare import paired, same_clients, spread, unpaired
from ..figure import AXES, Figure, Score, Series, banded
from ..finished import MEANS, Finished, Group, differing
from . import Analysis

read = Finished.read


@dataclass(frozen=True, kw_only=True)
class Settings:
    by: str = setting("", "the setting along which runs are set beside each other, of the run or of the method")
    lines: tuple[str, ...] = setting((), "settings by which lines differ; none: all others in which the runs do")
    who: Literal["auto", "latecomers", "members", "unlike"] = setting(
        "auto", "whose scores; auto: the latecomers', or the members' where there are none; unlike: of a new kind"
    )
    score: Score = setting("accuracy", "which score")
    log_x: bool = setting(False, "a logarithmic axis")


@dataclass(frozen=True)
class Point:
    """The runs of a line that have the same value; several, if they have other seeds."""

    runs: list[Finished]
    group: Group
    score: Score

    @property
    def means(self) -> list[float]:
        """One a seed."""
        return [mean for run in self.runs for mean in run.measure(f"{self.group}.{self.score}")]

    def less(self, other: Point) -> str:
        """The difference with its interval: pair by pair where clients are the same, else between means of seeds."""
        (here, *more), (there, *others) = self.runs, other.runs
        if same_clients(here, there) and not more and not others and self.score in MEANS:
            found = paired(here, there, self.group, self.score)
            return f"{found}, {found.count} {found.over}"
        return f"{unpaired(self.means, other.means)}, no pairs"


def analyse(runs: Sequence[Finished], asked: Settings) -> Analysis:
    by = _checked(runs, asked.by)
    apart = [_checked(runs, name) for name in asked.lines if name != "method"]
    group, lines, notes = _group(runs, asked.who), _lines(runs, by, apart, bool(asked.lines)), []
    values = sorted({value: None for line in lines.values() for value in line}, key=_place)
    if len(values) < 2:
        others = ", ".join(name for name in differing(runs) if name != by) or "nothing"
        raise SettingError(f"All runs have the same {flag(by)}, {_word(values[0])}; they differ in {others}.")
    numbers = all(_number(value) for value in values)
    if asked.log_x and not (numbers and values[0] > 0):
        raise SettingError(f"--log-x needs numbers above 0; {flag(by)} is {', '.join(map(_word, values))}.")
    rows, series = [], []
    first = next(iter(lines))
    for name, line in lines.items():
        points = {value: Point(line[value], group, asked.score) for value in values if value in line}
        before = {value: points[last] for last, value in pairwise(points)}
        base = {} if name == first else {value: Point(some, group, asked.score) for value, some in lines[first].items()}
        for value, point in points.items():
            gains = [point.less(old[value]) if value in old else "" for old in (before, base)]
            at = value if numbers else _word(value)
            rows.append([name, at, *spread(point.means), len(point.means), *gains[: min(len(lines), 2)]])
        series.append(_series(name, points, values, numbers))
        if mixed := [other for other in differing([run for some in line.values() for run in some]) if other != by]:
            notes.append(f"{name}: its runs differ in {', '.join(mixed)}, too.")
    columns = ["line", by, asked.score, "std", "seeds", "less the one before", f"less {first}"]
    figure = Figure(f"Accuracy against {by}", "lines", by, AXES[asked.score], series, asked.log_x)
    return Analysis(figure.title, columns[: 5 + min(len(lines), 2)], rows, figure, notes)


def _checked(runs: Sequence[Finished], name: str) -> str:
    """The name of a setting, as it is written in files."""
    known = {*settings_of(OfRuns)} | {own for run in runs for own in run.own}
    if (found := name.lstrip("-").replace("-", "_")) not in known:
        raise UnknownName("setting", name, known) if name else SettingError("Say which setting: --by NAME.")
    return found


def _group(runs: Sequence[Finished], who: str) -> Group:
    """Whose scores; all runs must have some."""
    groups: dict[str, Group] = {"latecomers": "unseen", "members": "seen", "unlike": "unlike"}
    group = groups.get(who) or ("unseen" if all(run.scores("unseen") for run in runs) else "seen")
    for run in runs:
        if not run.scores(group):
            whom = {"unseen": "latecomers", "seen": "members", "unlike": "latecomers of a kind that no member has"}
            raise SettingError(f"The run in {run.path} has no scores of {whom[group]}; choose another --who.")
    return group


def _lines(
    runs: Sequence[Finished], by: str, apart: Sequence[str], given: bool
) -> dict[str, dict[Any, list[Finished]]]:
    """Of every line, by its name, the runs with every value of the setting."""
    found: dict[str, dict[Any, list[Finished]]] = {}
    for run in runs:
        differ = [name for name in differing([other for other in runs if other.method == run.method]) if name != by]
        special = [*apart, *({"data"} & {*differ} - {*apart})] if given else differ
        name = ", ".join([run.method, *(f"{name} {_word(run.setting(name))}" for name in special)])
        value = run.setting(by)
        value = _word(value) if isinstance(value, list) else value
        some = found.setdefault(name, {}).setdefault(value, [])
        if twice := [other for other in some if {*other.seeds} & {*run.seeds}]:
            raise SettingError(
                f"{run.path} and {twice[0].path} have the same {flag(by)} and seeds, and would be one point."
            )
        some.append(run)
    return found


def _series(name: str, points: dict[Any, Point], values: Sequence[Any], numbers: bool) -> Series:
    """Of categories all lines have all, so that they stand in one order; the band is a standard deviation wide."""
    known = [value for value in values if value in points or not numbers]
    each = [spread(points[value].means) if value in points else (nan, nan) for value in known]
    x = known if numbers else [_word(value) for value in known]
    return banded(name, x, [mean for mean, _ in each], [std for _, std in each])


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _place(value: Any) -> tuple[bool, Any]:
    """Numbers by size, and before words."""
    return (False, value) if _number(value) else (True, _word(value))


def _word(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if _number(value) else str(value) or "none"
