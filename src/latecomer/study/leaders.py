"""Of a comparison: the simple row that others are compared with; and which is first on latecomers, by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from .compare import paired, same_clients, spread
from .finished import MEANS, Finished, Group
from .recipe import at

LATE: tuple[Group, ...] = ("unseen", "unlike")


def best_simple(simple: Sequence[str], column: str, runs: Mapping[tuple[str, str], Finished]) -> str | None:
    """Of the simple rows the one that validation data like best: test data choose nothing. None: nothing can choose."""
    scores = {row: _validation(runs[row, column]) for row in simple if (row, column) in runs}
    known = [row for row, score in scores.items() if len(scores) == 1 or not math.isnan(score)]
    return max(known, key=lambda row: scores[row], default=None)


def _validation(run: Finished) -> float:
    """The mean over seeds of the validation score of the selected round."""
    best = [[line["runs"][k]["validation"] for line in run.metrics] for k in range(len(run.seeds))]
    scores = [max((score for score in some if score is not None), default=math.nan) for some in best]
    return spread(scores)[0]


def leaders(
    metrics: tuple[str, ...], simplest: Mapping[str, str], runs: Mapping[tuple[str, str], Finished]
) -> list[str]:
    """A sentence for every column and score of latecomers. `simplest` are the rows that others are compared with.

    Runs on other splits than a column's simple row, or with other labels, are no competitors.
    """
    wanted = [(group, score) for group in LATE for score in MEANS if f"{group}.{score}" in metrics]
    return [
        _sentence(group, score, column, simple, rivals)
        for column, simple in simplest.items()
        for group, score in wanted
        if len(rivals := _rivals(runs, column, simple, group, score)) > 1
    ]


def _rivals(
    runs: Mapping[tuple[str, str], Finished], column: str, simple: str, group: Group, score: str
) -> dict[str, Finished]:
    """The runs of a column that have scored the same clients as the simple row."""
    first = runs[simple, column]
    here = {row: run for (row, there), run in runs.items() if there == column and same_clients(run, first)}
    return {row: run for row, run in here.items() if run.means(group, score)}


def _sentence(group: Group, score: str, column: str, simple: str, rivals: Mapping[str, Finished]) -> str:
    means = {row: fmean(run.means(group, score)) for row, run in rivals.items()}
    first = max(means, key=lambda row: means[row])
    others = {row: run for row, run in rivals.items() if row != first}
    gaps = {row: paired(rivals[first], run, group, score, len(others)) for row, run in others.items()}
    ties = [row for row, gap in gaps.items() if not gap.low > 0]
    count = len(rivals[first].scores(group, score))
    clients = f"{count} client{'s' * (count != 1)}"
    told = f"{at(f'{group}.{score}', column)}: {first} has most, {means[first]:.1f} over {clients}"
    if first == simple:
        gain = "; it is the simple row"
    else:
        many = f", as one of {len(others)} intervals" if len(others) > 1 else ""
        gain = f", {gaps[simple]} on {simple} (over {gaps[simple].over}{many})"
    return f"{told}{gain}; {'as good may be: ' + ', '.join(ties) if ties else 'all others have less'}."
