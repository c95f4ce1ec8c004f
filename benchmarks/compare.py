"""Finished runs side by side: both scores, and each run's paired difference to one of them on the same latecomers.

    python benchmarks/compare.py runs/fedavgplus runs/pefll runs/perfedavg

Pairs are the same clients of the same seeds, so how hard their tasks are cancels out. The interval is Student's at
95 %: over the seeds' mean differences where there are five seeds or more, else over clients.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import scipy.stats

Scores = dict[tuple[int, int], float]
"""Percent of a client, by seed and id."""
FEW = 5  # seeds; with less, an interval over them says nothing


def main() -> None:
    folders = [Path(word) for word in sys.argv[1:]]
    if len(folders) < 2:
        raise SystemExit(__doc__)
    for role, name in (("member", "seen"), ("latecomer", "unseen")):
        for column in ("accuracy", "own_classes"):
            print(f"{name}, {column}")
            several = {folder.name: read(folder, role, column) for folder in folders}
            first = several[folders[0].name]
            for run, scores in several.items():
                print(f"  {run:<24} {spread(scores)}   {difference(scores, first) if scores is not first else ''}")


def read(folder: Path, role: str, column: str) -> Scores:
    with (folder / "clients.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["role"] == role]
    return {(int(row["seed"]), int(row["client"])): float(row[column]) for row in rows}


def spread(scores: Scores) -> str:
    """The mean over seeds and their standard deviation."""
    means = list(by_seed(scores).values())
    return f"{fmean(means):5.1f} ± {stdev(means) if len(means) > 1 else 0.0:.1f}"


def difference(scores: Scores, to: Scores) -> str:
    """The mean of paired differences, with its interval."""
    if scores.keys() != to.keys():
        raise SystemExit("These runs have other clients: they cannot be paired.")
    gaps = {key: scores[key] - to[key] for key in scores}
    seeds = list(by_seed(gaps).values())
    units = seeds if len(seeds) >= FEW else list(gaps.values())
    half = scipy.stats.t.ppf(0.975, len(units) - 1) * stdev(units) / math.sqrt(len(units))
    kind = "seeds" if units is seeds else "clients"
    return f"{fmean(units):+.2f} [{fmean(units) - half:+.2f}, {fmean(units) + half:+.2f}] over {len(units)} {kind}"


def by_seed(scores: Scores) -> dict[int, float]:
    each: dict[int, list[float]] = defaultdict(list)
    for (seed, _), score in scores.items():
        each[seed].append(score)
    return {seed: fmean(some) for seed, some in each.items()}


if __name__ == "__main__":
    main()
