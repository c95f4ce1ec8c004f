"""Privacy: the noise is that of the analytic Gaussian mechanism, and the result says what is spent."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import scipy.optimize
import scipy.stats

from console import Command
from latecomer import privacy
from latecomer.errors import MissingExtra

RUN = ["--clients", "10", "--unseen", "0.2", "--rounds", "2", "--cohort", "2", "--batch", "8", "--engine", "vector"]
PRIVATE = ["--epsilon", "2", "--delta", "1e-4", "--pool", "mean", "--bound", "1.5", "--lipschitz", "2"]


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
    """k answers with Gaussian noise are like one with the noise divided by the root of k: checked with SciPy."""
    sigma = privacy.sigma(epsilon, 1e-5)
    for count in (1, 4, 10):
        found = privacy.composed(sigma, 1e-5, count, step=epsilon / 1000)
        less = sigma / math.sqrt(count)
        wanted = scipy.optimize.brentq(lambda e, less=less: excess(less, e, 1e-5), 1e-3, 1e3)
        assert wanted <= found <= 1.01 * wanted


def test_a_run_says_what_is_spent(command: Command, tmp_path: Path) -> None:
    done = command("run", "odpflhn", *RUN, *PRIVATE, "--no-unseen-labelled", "--out", tmp_path, "--name", "x")
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "x/result.json").read_text())["privacy"]
    assert (told["epsilon"], told["delta"]) == (2.0, 1e-4)
    assert "analytic Gaussian" in told["mechanism"]
    assert told["noise"]["sensitivity_times_examples"] == 2 * 2 * 1.5
    assert excess(told["noise"]["sigma_at_sensitivity_1"], 2.0, 1e-4) == pytest.approx(0, abs=1e-9)
    assert "one descriptor" in told["covers"]
    assert "members" in told["does_not_cover"]
    grown = [told["epsilon_by_requests"][key] for key in ("1", "2", "5", "10")]
    assert grown[0] == pytest.approx(2.0, rel=2e-3)
    assert grown == sorted(grown)
    assert grown[-1] < 10 * grown[0], "less than ten times as much"
    assert "epsilon 2, delta 0.0001" in done.out


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
    done = command("run", "odpflhn", *RUN, *PRIVATE, "--out", tmp_path, "--name", "x")
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "x/result.json").read_text())["privacy"]
    assert told["epsilon"] == 2.0
    assert told["epsilon_by_requests"].startswith("not computed: This needs the package 'dp_accounting'; pip install")
