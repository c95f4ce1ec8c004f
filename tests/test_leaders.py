"""Who is first on latecomers, by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

from latecomer.study.finished import Finished
from latecomer.study.leaders import best_simple, leaders

METRICS = ("seen.accuracy", "unseen.accuracy", "unlike.accuracy", "unseen.bottom_decile")


def run(scores: Sequence[float], validation: float, splits: str = "a") -> Finished:
    """One member and some latecomers, of whom the last has another kind."""
    roles = ["member", *["latecomer"] * len(scores)]
    rows = [
        {"seed": 0, "client": k, "role": role, "accuracy": score, "classes": "0:1", "rotation": 90 * (k == len(scores))}
        for k, (role, score) in enumerate(zip(roles, (50, *scores), strict=True))
    ]
    result = {"method": "m", "seeds": [0]}
    metrics = [{"round": 1, "runs": [{"validation": validation}]}]
    return Finished(Path("x"), {}, {}, {"splits": [splits]}, result, rows, metrics)


def test_the_first_its_gain_and_who_cannot_be_told_from_it() -> None:
    runs = {
        ("local", "c"): run([10, 20, 30], 70),
        ("fedavg", "c"): run([40, 40, 40], 60),
        ("near", "c"): run([31, 39, 50], 90),
        ("far", "c"): run([30, 41, 52], 90),
        ("labelled", "c"): run([99, 99, 99], 99, "b"),  # other splits: no competitor
    }
    assert best_simple(["local", "fedavg"], "c", runs) == "local", "validation data say so, whatever latecomers score"
    assert leaders(METRICS, {"c": "local"}, runs) == [
        "unseen.accuracy@c: far has most, 41.0 over 3 clients, +21.0 [+16.6, +25.4] on local (over clients, as one of "
        "3 intervals); as good may be: fedavg, near.",
        "unlike.accuracy@c: far has most, 52.0 over 1 client, +22.0 on local (over clients, as one of 3 intervals); as "
        "good may be: local, fedavg, near.",
    ]
    del runs["far", "c"], runs["near", "c"]
    first, _ = leaders(METRICS, {"c": "fedavg"}, runs)
    assert (
        first == "unseen.accuracy@c: fedavg has most, 40.0 over 3 clients; it is the simple row; as good may be: local."
    )
    runs["local", "c"] = run([10, 11, 12], 70)
    assert leaders(METRICS, {"c": "fedavg"}, runs)[0].endswith("it is the simple row; all others have less.")


def test_nobody_leads_who_has_less() -> None:
    """Where a client of the first has no score, the same clients may say otherwise than the means."""
    first, other = run([90, 10, 11], 70), run([20, 30, 31], 60)
    first.rows[1]["accuracy"], other.rows[1]["accuracy"] = 90.0, math.nan
    (said,) = leaders(("unseen.accuracy",), {"c": "other"}, {("first", "c"): first, ("other", "c"): other})
    assert "first has most, 37.0" in said
    assert said.endswith("as good may be: other.")


def test_whoever_is_best_is_hardly_ever_left_out() -> None:
    """Although who is first is read off the scores. Of twelve equals any is the best, the first in the table, say."""
    draw, wrong = random.Random(0), 0
    for _ in range(300):
        runs = {(f"m{k}", "c"): run([draw.gauss(50, 5) for _ in range(20)], 50) for k in range(12)}
        said = leaders(("unseen.accuracy",), {"c": "m0"}, runs)[0]
        named = [said.split()[1], *said.rstrip(".").partition("as good may be: ")[2].split(", ")]
        wrong += "m0" not in named
    assert wrong <= 15, "5 % of the tables"
