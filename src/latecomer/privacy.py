"""Differential privacy: how much noise a promise takes, and how the promise wears off (extra 'privacy').

The noise needs no extra: it is calibrated here, by the analytic Gaussian mechanism (Balle and Wang, ICML 2018). The
extra, dp-accounting, adds up what several answers give away together.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch

from .errors import MissingExtra, need

REQUESTS = (1, 2, 5, 10)
ROUNDING = 2.0**-50  # a difference of two probabilities is off by less than this share of the larger


def delta(epsilon: float, sigma: float) -> float:
    """The smallest delta for which noise of this size on a query of sensitivity 1 is (epsilon, delta)-private.

    Balle and Wang's exact expression, Phi(1/2s - epsilon s) - e^epsilon Phi(-1/2s - epsilon s), rounded up.
    """
    centre, half = epsilon * sigma, 0.5 / sigma
    places = torch.tensor([half - centre, -half - centre], dtype=torch.float64)
    first, second = torch.special.log_ndtr(places).tolist()
    larger = math.exp(first)
    return larger - math.exp(min(epsilon + second, first)) + ROUNDING * larger


def sigma(epsilon: float, target: float) -> float:
    """The least noise (its standard deviation) that makes a query of sensitivity 1 (epsilon, target)-private."""
    low = high = 1.0
    while delta(epsilon, high) > target:
        high *= 2
    while delta(epsilon, low) <= target:
        low /= 2
    while high - low > 1e-12 * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if delta(epsilon, middle) <= target else (middle, high)
    return high


def composed(noise: float, target: float, requests: int, step: float) -> float:
    """The epsilon that several answers spend together, each of sensitivity 1 and with this noise, by dp-accounting.

    It rounds up to multiples of `step`. A loss spreads over some multiples of 1 / noise, so a much smaller step would
    cost memory.
    """
    need("dp_accounting", "privacy")
    try:
        module = importlib.import_module("dp_accounting.pld.privacy_loss_distribution")
        gaussian = module.from_gaussian_mechanism
    except ModuleNotFoundError:  # before version 0.1
        module = importlib.import_module("dp_accounting.privacy_loss_distribution")
        gaussian = module.PrivacyLossDistribution.from_gaussian_mechanism
    one = gaussian(noise, value_discretization_interval=max(step, 1e-3 / noise))
    return float(one.self_compose(requests).get_epsilon_for_delta(target))


def account(epsilon: float, target: float, sensitivity: float) -> dict[str, Any]:
    """What a result says about a guarantee for the one message a client sends to get a model."""
    noise = sigma(epsilon, target)
    try:
        grown: Any = {
            str(count): float(f"{composed(noise, target, count, step=epsilon / 1000):.4g}") for count in REQUESTS
        }
    except MissingExtra as missing:
        grown = f"not computed: {missing}"
    return {
        "epsilon": epsilon,
        "delta": target,
        "mechanism": "analytic Gaussian (Balle and Wang 2018)",
        "noise": {"sigma_at_sensitivity_1": noise, "sensitivity_times_examples": sensitivity},
        "covers": "one example, replaced by another, in the one descriptor that a latecomer sends to get its model",
        "does_not_cover": "what members send during training, and how many examples a client has",
        "epsilon_by_requests": grown,
    }
