"""Differences between runs, by hand: who is a pair, what an interval is over, and how wide it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from latecomer.errors import RunError
from latecomer.study.compare import interval, paired, unpaired
from latecomer.study.finished import Finished, bottom_decile


def run(scores: Mapping[int, Sequence[float]], splits: Sequence[str] = ("a",)) -> Finished:
    """Members with these scores, by seed; NaN: there was nothing to score."""
    rows = [
        {"seed": seed, "client": client, "role": "member", "accuracy": score}
        for seed, some in scores.items()
        for client, score in enumerate(some)
    ]
    return Finished(Path("x"), {}, {}, {"splits": [*splits]}, {"method": "fedavg", "seeds": [*scores]}, rows, [])


def test_student_by_hand() -> None:
    """Of 1, 2 and 3 the deviation is 1, and Student's quantile with two degrees of freedom is 4.302653."""
    half = 4.302653 / math.sqrt(3)
    found = interval([1.0, 2.0, 3.0], "seeds")
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2 - half, 2 + half), abs=1e-6)
    assert not found.told
    assert interval([4.0, 4.1], "seeds").told
    assert not interval([4.0], "seeds").told, "of one value nobody knows how far it is off"


def test_one_of_many_intervals_is_wide_enough_for_all() -> None:
    """With two degrees of freedom the quantile of p is (2p - 1) sqrt(2 / (1 - (2p - 1)^2)); here p is 1 - 0.025 / 5."""
    inside = 1 - 0.05 / 5
    half = inside * math.sqrt(2 / (1 - inside**2)) / math.sqrt(3)
    found = interval([1.0, 2.0, 3.0], "seeds", among=5)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=1e-9)
    assert paired(run({0: [11, 22, 33]}), run({0: [10, 20, 30]}), "seen", among=5).high == pytest.approx(found.high)


def test_with_few_seeds_pairs_are_clients() -> None:
    """Four gaps of 1, 3, 5 and 3: mean 3, variance 8/3, Student's quantile with three degrees of freedom 3.182446."""
    better, worse = run({0: [11, 23], 1: [35, 43]}), run({0: [10, 20], 1: [30, 40]})
    half = 3.182446 * math.sqrt(8 / 3 / 4)
    found = paired(better, worse, "seen")
    assert (found.mean, found.low, found.high) == pytest.approx((3, 3 - half, 3 + half), abs=1e-6)
    assert (found.count, found.over, found.told) == (4, "clients", True)


def test_of_unequal_seeds_each_counts_as_much() -> None:
    """A gap of 12 in one seed, of 0, 1 and 2 in the other: mean (12 + 1) / 2, as the difference of the means of seeds.

    Weights are 1/2 and 1/6, so the variance is (5.5^2 / 4 + (6.5^2 + 5.5^2 + 4.5^2) / 36) * 4 / 3.
    """
    better, worse = run({0: [22], 1: [10, 21, 32]}), run({0: [10], 1: [10, 20, 30]})
    half = 3.182446 * math.sqrt((5.5**2 / 4 + (6.5**2 + 5.5**2 + 4.5**2) / 36) * 4 / 3)
    found = paired(better, worse, "seen")
    assert (found.mean, found.low, found.high) == pytest.approx((6.5, 6.5 - half, 6.5 + half), abs=1e-5)
    ours, theirs = (one.measure("seen.accuracy") for one in (better, worse))
    assert found.mean == sum(ours) / 2 - sum(theirs) / 2


def test_equal_values_show_no_spread() -> None:
    assert not interval([3.0, 3.0, 3.0], "seeds").told
    assert (interval([0.0, 0.0], "seeds").low, interval([0.0, 0.0], "seeds").high) == (0, 0), "the same run twice"


def test_a_gap_is_of_the_same_seed() -> None:
    rows = [{"seed": 0, "client": 0, "role": "member", "accuracy": 70.0}]
    for seed, budget, score in ((0, "M", 50.0), (1, "S", 80.0), (1, "M", 20.0)):
        rows.append({"seed": seed, "client": 1, "role": "latecomer", "accuracy": score, "budget": budget})
    told = Finished(Path("x"), {}, {}, {}, {"method": "m", "seeds": [0, 1]}, rows, [])
    assert told.measure("gap.accuracy") == [-20.0], "no member of seed 1 has a score"
    assert told.by_seed("unseen[budget=S].accuracy") == {1: 80.0}


def test_with_five_seeds_pairs_are_seeds() -> None:
    """However many clients a seed has, it counts once: what they share, its training, is one draw."""
    better = run({seed: [50.0 + seed] * 4 for seed in range(5)})
    found = paired(better, run({seed: [50.0] * 4 for seed in range(5)}), "seen")
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2 - half, 2 + half), abs=1e-6)
    assert (found.count, found.over) == (5, "seeds")


def test_who_has_no_score_in_one_run_is_no_pair() -> None:
    found = paired(run({0: [10, math.nan, 30, 90]}), run({0: [0, 20, 10]}), "seen")
    assert (found.mean, found.count) == (15, 2)
    nobody = paired(run({0: [math.nan]}), run({0: [1.0]}), "seen")
    assert (str(nobody), nobody.told) == ("none to compare", False)


def test_other_splits_are_no_pairs() -> None:
    with pytest.raises(RunError, match="no pairs"):
        paired(run({0: [1.0]}), run({0: [1.0]}, ["b"]), "seen")


def test_who_does_not_say_whose_clients_it_has_has_no_pairs() -> None:
    unknown = run({0: [1.0]}, [])
    with pytest.raises(RunError, match="no pairs"):
        paired(unknown, run({0: [1.0]}, []), "seen")
    assert paired(unknown, unknown, "seen").mean == 0, "but they are its own"


def test_welch_by_hand() -> None:
    """Means 3 and 0; variances of them 2/2 and 8/2, so 5 in all, with 25/(1+16) degrees of freedom."""
    found = unpaired([2.0, 4.0], [-2.0, 2.0])
    half = 6.188115 * math.sqrt(5)
    assert (found.mean, found.low, found.high) == pytest.approx((3, 3 - half, 3 + half), abs=1e-5)


def test_scores_of_groups_by_hand() -> None:
    """Pooled, one counts as often as it has examples; the bottom decile is the (M/10)-th worst, rounded up."""
    rows = [
        {"seed": 0, "client": k, "role": "member", "accuracy": 5.0 * k, "own_classes": 90.0, "test_examples": k + 1}
        for k in range(11)
    ]
    late = {"role": "latecomer", "test_examples": 30, "own_classes": 50.0}
    rows += [
        {"seed": 0, "client": 11, "accuracy": 10.0, "budget": "S", **late},
        {"seed": 0, "client": 12, "accuracy": 70.0, "budget": "M", **late | {"test_examples": 10}},
        {"seed": 0, "client": 13, "accuracy": math.nan, "budget": "S", **late},
    ]
    told = Finished(Path("x"), {}, {}, {}, {"method": "m", "seeds": [0]}, rows, [])
    assert told.measure("seen.bottom_decile") == [5.0], "of eleven the second worst"
    assert [bottom_decile(range(count)) for count in (1, 9, 10, 11, 20, 21)] == [0, 0, 0, 1, 1, 2]
    assert told.measure("seen.accuracy") == [25.0]
    assert told.measure("seen.own_bottom_decile") == [90.0]
    # 5 k (k + 1), summed up to 10, is 5 * 440; k + 1 is 66
    assert told.measure("seen.pooled") == pytest.approx([2200 / 66])
    assert told.measure("unseen.pooled") == [25.0], "30 times 10 and 10 times 70; who has no score has no examples"
    assert told.measure("unseen.bottom_decile") == [10.0]
    assert told.measure("unseen[budget=S].accuracy") == [10.0]
    assert told.measure("gap.accuracy") == [15.0]
    assert told.measure("gap.own_pooled") == [-40.0]
