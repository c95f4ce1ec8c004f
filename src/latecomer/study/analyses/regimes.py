"""A map of regimes: which method is best on latecomers, by how clients differ, and what they have.

Runs are sorted by how their clients differ (classes, turned images, permuted labels), whether latecomers have labels,
and how many examples a client has. In every field the run with the highest mean over latecomers is first. It has the
field to itself where it can be told apart from every other, and shares it with those from which it cannot: Student's
95 % interval of the difference on the same clients, over seeds from five seeds on, else over clients, widened so that
the intervals of a field hold together. With `--shares` there are fields for shorter trainings, too: what a run would
have reported, had it ended then. They are made of the learning curves of runs with `--watch-unseen`, at the round that
validation data select among those up to there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, NamedTuple

from ...errors import SettingError
from ...settings import flag, setting
from ..compare import Difference, interval, paired
from ..figure import Panels, Tile, Tiles
from ..finished import Finished, differing
from . import Analysis

read = Finished.read
COLUMNS = ["clients differ in", "latecomers", "examples", "rounds", "best", "score", "second", "margin", "tied with"]
NOTE = (
    "Who is best is read off the very scores that are compared, so margins are a little too large; intervals of a "
    "field are widened for the number of its methods, so that the best is among those named, not for that of fields."
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    score: Literal["accuracy", "own_classes"] = setting(
        "accuracy", "mean over latecomers that is compared: among all classes, or among a client's own"
    )
    shares: tuple[float, ...] = setting(
        (), "shares of the rounds after which to look, besides the end of the runs", above=0, below=1
    )


class Regime(NamedTuple):
    """What runs must share to stand in one field."""

    kind: str  # how clients differ
    labels: str  # whether latecomers have some
    examples: int  # that a client has at most; 0: all that there are


@dataclass(frozen=True)
class Field:
    """Runs of one regime after some rounds, the best first."""

    scores: Mapping[str, float]  # by method
    behind: Mapping[str, Difference]  # how much the best has more than each of the others

    @property
    def best(self) -> str:
        return next(iter(self.scores))

    @property
    def second(self) -> str:
        return next(iter(self.behind), "")

    @property
    def tied(self) -> list[str]:
        """Those from which the best cannot be told apart."""
        return [name for name, difference in self.behind.items() if not difference.low > 0]

    def text(self) -> str:
        """What stands in the field."""
        first = f"{self.best} {self.scores[self.best]:.1f}"
        if not self.second:
            return f"{first}\nalone"
        if self.tied:
            return f"{first}\ntie of {1 + len(self.tied)}"
        return f"{first}\n+{self.behind[self.second].mean:.1f} to {self.second}"


def analyse(runs: Sequence[Finished], asked: Settings) -> Analysis:
    groups = sorted_by_regime(runs)
    end = max(int(run.result["rounds"]) for run in runs)
    times = sorted({round(share * end) for share in asked.shares})
    fields: dict[tuple[Regime, int], Field] = {}
    for regime, some in groups.items():
        fields |= {(regime, at): found for at in times if (found := earlier(some, at, asked.score)) is not None}
        fields[regime, end] = at_the_end(some, asked.score)
    rows = [row(*key, fields[key]) for key in sorted(fields, key=lambda key: (_order(key[0]), key[1]))]
    title = f"Who is best on latecomers: {asked.score.replace('_', ' ')} of {runs[0].data}, %"
    return Analysis(title, COLUMNS, rows, picture(title, fields), [_counted(fields), NOTE, *_unequal(groups)])


def sorted_by_regime(runs: Sequence[Finished]) -> dict[Regime, dict[str, Finished]]:
    """By regime and method."""
    found: dict[Regime, dict[str, Finished]] = {}
    for run in runs:
        if run.data != runs[0].data:
            raise SettingError(f"One map is of one data set: {runs[0].path} has {runs[0].data}, {run.path} {run.data}.")
        if not run.scores("unseen"):
            raise SettingError(f"The run in {run.path} had no latecomers, of whom the map is.")
        there = found.setdefault(regime_of(run), {})
        if run.method in there:
            raise SettingError(f"{there[run.method].path} and {run.path} are runs of one method in one regime.")
        there[run.method] = run
    return found


def regime_of(run: Finished) -> Regime:
    """From a run's settings."""
    s, kinds = run.settings, []
    partition = str(s.get("partition", "classes"))
    if partition not in ("iid", "rotations"):
        kinds.append(partition)
    if s.get("rotations") or partition == "rotations":
        kinds.append("turned images")
    if s.get("permutations", 0) > 1:
        kinds.append("permuted labels")
    labels = "with labels" if s.get("unseen_labelled", True) else "without labels"
    if (share := s.get("labelled", 1)) < 1:
        labels += f", {100 * share:g} % of the members with"
    return Regime(" and ".join(kinds) or "nothing", labels, int(s.get("examples", 0)))


def at_the_end(runs: Mapping[str, Finished], score: str) -> Field:
    """By every latecomer's score at the round that its run selected."""
    means = {name: fmean(run.means("unseen", score)) for name, run in runs.items()}
    scores = dict(sorted(means.items(), key=lambda pair: -pair[1]))
    best, *others = scores
    return Field(scores, {name: paired(runs[best], runs[name], "unseen", score, len(others)) for name in others})


def earlier(runs: Mapping[str, Finished], at: int, score: str) -> Field | None:
    """By the means of seeds, had all runs ended after so many rounds; None: none was evaluated by then."""
    each = {name: curve for name, run in runs.items() if (curve := selected(run, at, score))}
    scores = dict(sorted(((name, fmean(some.values())) for name, some in each.items()), key=lambda pair: -pair[1]))
    if not scores:
        return None
    best, *others = scores
    gaps = {
        name: [each[best][seed] - each[name][seed] for seed in each[best].keys() & each[name].keys()] for name in others
    }
    return Field(scores, {name: interval(some, "seeds", len(others)) for name, some in gaps.items()})


def selected(run: Finished, at: int, score: str) -> dict[int, float]:
    """By seed, the latecomers' mean at the round up to `at` that validation data like best, as a run selects it."""
    lines = [line for line in run.metrics if line["round"] <= at]
    found = {}
    for place, seed in enumerate(run.seeds):
        best = math.nan
        for line in lines:
            told = line["runs"][place]
            if "unseen" not in told:
                raise SettingError(f"{run.path} did not watch latecomers (--watch-unseen), which --shares needs.")
            validation = math.nan if told["validation"] is None else told["validation"]
            if not validation <= best:
                best, found[seed] = validation, told["unseen"][score]
    return found


def row(regime: Regime, at: int, field: Field) -> list[Any]:
    margin = str(field.behind[field.second]) if field.second else ""
    known = [field.best, field.scores[field.best], field.second, margin, ", ".join(field.tied)]
    return [regime.kind, regime.labels, _examples(regime), at, *known]


def picture(title: str, fields: Mapping[tuple[Regime, int], Field]) -> Panels:
    """A table of colours for every kind of difference, and below it the same for latecomers of another sort."""
    regimes = sorted({regime for regime, _ in fields}, key=_order)
    kinds, labels = (list(dict.fromkeys(values)) for values in ([r.kind for r in regimes], [r.labels for r in regimes]))
    labels.sort()
    by_size = sorted(regimes, key=lambda regime: regime.examples or math.inf)
    columns = list(dict.fromkeys(map(_examples, by_size)))
    times = [str(at) for at in sorted({at for _, at in fields})]
    tables = []
    for label in labels:
        for kind in kinds:
            mine = {key: field for key, field in fields.items() if key[0][:2] == (kind, label)}
            tiles = [
                Tile(_examples(r), str(at), [field.best, *field.tied], field.text()) for (r, at), field in mine.items()
            ]
            name = f"{kind}, latecomers {label}" if mine else f"{kind}, latecomers {label}: no runs"
            tables.append(Tiles(name, "examples a client has", "rounds", columns, times, tiles))
    return Panels(title, tables, columns=len(kinds))


def _unequal(groups: Mapping[Regime, Mapping[str, Finished]]) -> list[str]:
    """A note where runs of a field did not have the same conditions; who sends nothing has no rounds to share."""
    found = set()
    for some in groups.values():
        equal = [run for run in some.values() if (run.result.get("bytes") or {}).get("down") != 0]
        found |= {name for name in differing(equal) if name in equal[0].settings} - {"method"} if equal else set()
    return [
        f"Runs of one field differ in {', '.join(map(flag, sorted(found)))}, too, not in their methods alone."
    ] * bool(found)


def _examples(regime: Regime) -> str:
    return str(regime.examples or "all")


def _order(regime: Regime) -> tuple[str, str, float]:
    return regime.kind, regime.labels, regime.examples or math.inf


def _counted(fields: Mapping[tuple[Regime, int], Field]) -> str:
    """How often each method leads, and how many fields have no leader."""
    won = Counter(field.best for field in fields.values() if not field.tied and field.second)
    told = [f"{name} leads in {count}" for name, count in won.most_common()]
    told += [f"ties: {ties}"] if (ties := sum(bool(field.tied) for field in fields.values())) else []
    told += [f"with one method only: {lone}"] if (lone := sum(not field.second for field in fields.values())) else []
    return f"Fields: {len(fields)}. {', '.join(told)}."
