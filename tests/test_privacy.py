"""Privacy: the noise is that of the analytic Gaussian mechanism, and the result says what is spent."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import scipy.optimize
import scipy.stats

from console import Command, Outcome
from latecomer import privacy
from latecomer.errors import BudgetSpent, MissingExtra

RUN = ["--clients", "10", "--unseen", "0.2", "--rounds", "2", "--cohort", "2", "--batch", "8", "--engine", "vector"]
PRIVATE = ["--epsilon", "2", "--delta", "1e-4", "--pool", "mean", "--bound", "1.5"]
PRIVATE += ["--evaluate-every", "1"]


def excess(sigma: float, epsilon: float, delta: float) -> float:
    """Balle and Wang's condition, by SciPy: how far the mechanism is above delta."""
    first = scipy.stats.norm.cdf(1 / (2 * sigma) - epsilon * sigma)
    return float(first - math.exp(epsilon + scipy.stats.norm.logcdf(-1 / (2 * sigma) - epsilon * sigma)) - delta)


@pytest.mark.parametrize("epsilon", [0.001, 0.1, 1.0, 3.0, 10.0, 500.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.01, 0.9])
def test_the_least_noise_that_keeps_the_promise(epsilon: float, delta: float) -> None:
    found = privacy.sigma(epsilon, delta)
    wanted = scipy.optimize.brentq(excess, 1e-3, 1e5, args=(epsilon, delta), xtol=1e-13, rtol=1e-12)
    assert found == pytest.approx(wanted, rel=1e-6)
    assert privacy.delta(epsilon, found) <= delta < privacy.delta(epsilon, 0.999 * found)


def test_it_is_less_than_the_classical_noise() -> None:
    """sqrt(2 ln(1.25 / delta)) / epsilon, which holds for epsilon below 1."""
    for epsilon, delta in ((0.1, 1e-5), (0.5, 1e-6), (0.9, 1e-3)):
        assert privacy.sigma(epsilon, delta) < math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def test_rounding_errs_on_the_safe_side() -> None:
    """Where two probabilities are nearly equal, their difference is all rounding; the noise must still suffice."""
    assert privacy.sigma(1e-12, 1e-20) >= 1e12
    assert privacy.sigma(1e-300, 1e-5) == pytest.approx(1 / (1e-5 * math.sqrt(2 * math.pi)), rel=1e-3)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 8.0])
def test_several_answers_spend_what_less_noise_would(epsilon: float) -> None:
    """k answers with Gaussian noise are like one with the noise divided by the root of k: checked with SciPy.

    dp-accounting, which rounds up, says nearly the same.
    """
    sigma = privacy.sigma(epsilon, 1e-5)
    for count in (1, 4, 10):
        less = sigma / math.sqrt(count)
        wanted = scipy.optimize.brentq(lambda e, less=less: excess(less, e, 1e-5), 1e-3, 1e3)
        found = privacy.epsilon(count / sigma**2, 1e-5)
        assert found == pytest.approx(wanted, rel=1e-6)
        assert found <= privacy.composed(sigma, 1e-5, count, step=epsilon / 1000) <= 1.01 * found


def test_who_says_nothing_spends_nothing() -> None:
    assert privacy.epsilon(0.0, 1e-5) == 0.0
    assert privacy.epsilon(1e-12, 1e-5) == 0.0, "so little that delta alone covers it"


def test_a_ledger_adds_up_and_knows_when_it_is_full() -> None:
    small, large = (privacy.Release.gaussian(epsilon, 1e-5, budget=2.0) for epsilon in (0.5, 1.0))
    ledger = privacy.Ledger()
    for number in range(3):
        assert not ledger.would_exceed(small)
        ledger = ledger.with_one(small, "a server", number, 0.0)
    assert ledger.epsilon(1e-5) == pytest.approx(privacy.epsilon(3 * small.loss, 1e-5))
    assert 0.5 < ledger.epsilon(1e-5) < 1.5, "less than the sum"
    assert privacy.Ledger.of(ledger.columns()) == ledger
    ledger = ledger.with_one(large, "another", 7, 1.0)
    together = privacy.epsilon(3 * small.loss + large.loss, 1e-5)
    assert ledger.epsilon(1e-5) == pytest.approx(together)
    answers = 4
    while not ledger.would_exceed(small):
        ledger, answers = ledger.with_one(small, "a server", 0, 0.0), answers + 1
    assert ledger.epsilon(1e-5) <= 2.0 < privacy.epsilon(ledger.loss + small.loss, 1e-5)
    with pytest.raises(
        BudgetSpent, match=rf"spent epsilon 1\.\d+ of its budget of 2 in {answers} answers, and another"
    ):
        ledger.with_one(small, "a server", 0, 0.0)
    free = privacy.Release.gaussian(0.5, 1e-5)
    assert not ledger.would_exceed(free), "no budget, no limit"


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 7.0, 90.0])
def test_a_budget_for_one_answer_is_enough_for_one_and_not_for_two(epsilon: float) -> None:
    release = privacy.Release.gaussian(epsilon, 1e-5, budget=epsilon)
    once = privacy.Ledger().with_one(release, "a server", 0, 0.0)
    assert once.would_exceed(release)


def told(done: Outcome, folder: Path) -> dict[str, Any]:
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads((folder / "x/result.json").read_text())["privacy"]
    return found


def test_a_run_says_what_is_spent(command: Command, tmp_path: Path) -> None:
    """Members are asked at both evaluations, latecomers once."""
    done = command("run", "odpflhn", *RUN, *PRIVATE, "--no-unseen-labelled", "--out", tmp_path, "--name", "x")
    found = told(done, tmp_path)
    assert (found["epsilon"], found["delta"]) == (2.0, 1e-4)
    assert "analytic Gaussian" in found["mechanism"]
    assert excess(found["noise_multiplier"], 2.0, 1e-4) == pytest.approx(0, abs=1e-9)
    assert "one answer" in found["covers"]
    assert "members" in found["does_not_cover"]
    worst, late = found["worst"], found["latecomers"]
    assert (worst["answers"], worst["role"], late["answers"], late["role"]) == (2, "member", 1, "latecomer")
    assert late["epsilon"] == pytest.approx(2.0, rel=1e-5)
    assert worst["epsilon"] == pytest.approx(privacy.epsilon(2 / privacy.sigma(2.0, 1e-4) ** 2, 1e-4), rel=1e-5)
    assert worst["epsilon"] <= found["worst_by_dp_accounting"] <= 1.01 * worst["epsilon"]
    assert (found["budget"], found["refused"]) == (None, 0)
    line = next(line for line in done.out.splitlines() if line.startswith("Privacy"))
    assert "epsilon 2, delta 0.0001" in line
    assert f"a member spent at most {worst['epsilon']:.3g} in 2 answers" in " ".join(done.out.split())
    assert "a latecomer spent at most 2 in 1 answer" in " ".join(done.out.split())


def test_a_run_without_privacy_says_nothing_of_it(command: Command, tmp_path: Path) -> None:
    done = command("run", "odpflhn", *RUN, "--out", tmp_path, "--name", "x")
    assert done.code == 0, done.err
    assert "privacy" not in json.loads((tmp_path / "x/result.json").read_text())
    assert "epsilon" not in done.out


def test_without_the_extra_a_run_keeps_its_promise_and_says_what_is_missing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingExtra, match=r"pip install 'latecomer\[privacy\]' brings it"):
        privacy.composed(1.0, 1e-5, 2, 0.01)
    found = told(command("run", "odpflhn", *RUN, *PRIVATE, "--out", tmp_path, "--name", "x"), tmp_path)
    assert found["worst"]["epsilon"] > found["latecomers"]["epsilon"] == pytest.approx(2.0)
    assert found["worst_by_dp_accounting"].startswith("not computed: This needs the package 'dp_accounting'; pip")
