"""FLowDUP, Theorem 4.1: the error of all members, by that of the labelled ones and two complexities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

import torch
from torch import Tensor

from ... import tree
from ...clients import Clients
from ...errors import SettingError
from ...handover.trained import Trained
from ...methods.flowdup import FLowDUP
from ...settings import setting
from ...tree import Tree
from . import MORE_LIKELY, Certificate, Tell, Term, pefll, remarks
from .posterior import (
    Posterior,
    Spread,
    begun_elsewhere,
    error_of_mean,
    from_prior,
    gaussian_kl,
    price_of_draws,
    risks,
    sampled,
    squared_norm,
    typical_size,
)

FEW = 20  # clients, labelled or not, below which t(n_L, n) is not what it stands for

ASSUMES = [
    "assumes that the labelled members are drawn at random among the members, and every client's examples, training "
    "and test, independently from its own distribution, whether they have a label or not",
    "assumes the 0-1 loss, which lies in [0, 1]; training minimises cross-entropy",
    "assumes priors N(psi_0, sigma^2) for the weights of the hypernetwork, N(r, sigma-model^2) for a client's place in "
    "the subspace and N(0, sigma-prior^2) for r, with spreads and --prior chosen before the data were seen: psi_0 is "
    "0, or with --prior start the initial weights, which follow from the seed, as theta_0 and P do",
    "holds for the stochastic predictor, of which the hypernetwork and then a client's place in the subspace are "
    "drawn; the one that is deployed takes their centres, and no theorem of the paper speaks of it",
    "draws a client's place from N(h, sigma-model^2), as the theorem's proof (Theorem A.1) has it; equation 7 writes "
    "the loss at h itself",
    "takes c_1 = log(2 t(n_L, n) / delta): the proof joins two statements, of which equation 30 takes delta whole, so "
    "that both together would hold with 1 - 1.5 delta only; and c_2 = log(8 m n / delta) + 1",
    f"takes t(n_L, n) as the paper has it where at least {FEW} members have labels and {FEW} have none, a range that "
    "the paper does not name; below it, the sum that t stands for",
    "takes the harmonic mean of members' numbers of examples as m, of labelled ones where a member has any: the proof, "
    "which lets all clients have m, then holds as it stands",
    "speaks of members alone: latecomers stand beside it, but no theorem of the paper is about them",
]


@dataclass(frozen=True, kw_only=True)
class Settings(Spread):
    sigma_prior: tuple[float, ...] = setting(
        (0.001,), "standard deviation of the place that models are pulled to (alpha_r); of several, likewise", above=0
    )


def sampling(labelled: int, clients: int) -> float:
    """t(n_L, n) = 3 log(n_L) sqrt(n_L (1 - n_L / n)) of equation 11; where one of the groups is small, the sum that it
    bounds from above: for few labelled clients it would be too small (0, for one)."""
    # the sum is of errors of 0 and 1; exp(n_L D) is convex in errors, so those in between give no more (Jensen)
    if labelled >= FEW and clients - labelled >= FEW:
        return 3 * math.log(labelled) * math.sqrt(labelled * (1 - labelled / clients))
    return max(_sum(labelled, clients, wrong) for wrong in range(1, max(clients, 2)))


def _sum(drawn: int, clients: int, wrong: int) -> float:
    """E exp(n_L D(k / n_L, K / n)) for k of K wrong among those drawn, D as in Begin et al. (2014): every term is the
    probability of k over what Stirling's formula makes of it."""
    rest = clients - wrong
    found = []
    for k in range(max(0, drawn - rest), min(drawn, wrong) + 1):
        ways = _log_choose(wrong, k) + _log_choose(rest, drawn - k) - _log_choose(clients, drawn)
        found.append(math.exp(ways - _entropy(wrong, k) - _entropy(rest, drawn - k) + _entropy(clients, drawn)))
    return sum(found)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _entropy(n: int, k: int) -> float:
    """The first term of log(n over k)."""
    return -sum(part * math.log(part / n) for part in (k, n - k) if part)


def unlabelled(kl: float, labelled: int, clients: int, delta: float) -> float:
    """What may be lost from labelled to all members: the second term of equation 8, 0 where all are labelled."""
    if labelled == clients:
        return 0.0
    c_1 = math.log(2 * sampling(labelled, clients) / delta)
    return math.sqrt((1 - labelled / clients) * (kl + c_1) / (2 * labelled))


def terms(
    errors: Sequence[float],
    squares: Sequence[float],
    norms: tuple[float, float],
    clients: tuple[int, int],
    examples: float,
    dimension: int,
    sigma: tuple[float, float, float],
    delta: tuple[float, float],
    choices: int = 1,
) -> list[Term]:
    """Equation 8, from numbers; the last term is the bound.

    Of every draw: the training error of labelled members, and the sum over members of the squared distance of their
    places to psi_r. `norms` are the squared norms of psi_h and psi_r, `clients` how many are labelled and how many
    there are, `sigma` the spreads of the hypernetwork, of a client's place and of psi_r (0: it is no draw, but fixed);
    `delta` the probabilities that the theorem fails and that the draws mislead, shared by `choices` of spreads.
    """
    known, n = clients
    failing, misleading = (share / choices for share in delta)
    kl_h, kl_r = gaussian_kl(norms[0], sigma[0]), gaussian_kl(norms[1], sigma[2]) if sigma[2] else 0.0
    spread = n * dimension * sigma[2] * sigma[2]  # E |h - psi_r'|^2 = |h - psi_r|^2 + k alpha_r, for each of n clients
    kls = [gaussian_kl(distance + spread, sigma[1]) for distance in squares]
    lost = [pefll.within(kl + kl_r, n, examples, failing) for kl in kls]
    part = fmean(error + min(1.0, more) for error, more in zip(errors, lost, strict=True))  # each within [0, 2]
    across, price = unlabelled(kl_h, known, n, failing), 2 * price_of_draws(len(errors), misleading)
    c_1 = [] if known == n else [Term("c_1", math.log(2 * sampling(known, n) / failing), "log(2 t(n_L, n) / delta)")]
    return [
        Term("n", n, "members"),
        Term("n_L", known, "members with labels"),
        Term("m", examples, "examples of a member (labelled, if it has any), harmonic mean"),
        Term("k", dimension, "size of the subspace"),
        Term("sigma", sigma[0], "standard deviation of the hypernetwork's weights; alpha_h = sigma^2"),
        Term("sigma-model", sigma[1], "standard deviation of a client's place; alpha_theta = sigma-model^2"),
        Term("sigma-prior", sigma[2], "standard deviation of psi_r; alpha_r = sigma-prior^2; 0: psi_r is fixed"),
        Term("delta", failing, f"--delta over {choices} choice{'s' * (choices > 1)} of spreads"),
        Term("delta-draws", misleading, f"--delta-draws over {choices} choice{'s' * (choices > 1)} of spreads"),
        Term("draws", len(errors)),
        Term("empirical error", fmean(errors), f"mean of draws, standard error {error_of_mean(errors):.2g}"),
        Term("|psi_h|^2", norms[0], "hypernetwork, from where its prior is centred"),
        Term("KL of the hypernetwork", kl_h, "|psi_h|^2 / (2 sigma^2)"),
        *c_1,
        Term("unlabelled members", across, "sqrt((1 - n_L/n) (KL of the hypernetwork + c_1) / (2 n_L)); 0 if n_L = n"),
        Term("|psi_r|^2", norms[1], "where models are pulled to"),
        Term("KL of psi_r", kl_r, "|psi_r|^2 / (2 sigma-prior^2)"),
        Term("KL of the models", fmean(kls), "sum of (|h - psi_r|^2 + k alpha_r) / (2 sigma-model^2), mean of draws"),
        Term("c_2", math.log(8 * examples * n / failing) + 1, "log(8 m n / delta) + 1"),
        Term("within clients", fmean(lost), "mean of draws of sqrt((KL of the models + of psi_r + c_2) / (2 m n))"),
        Term(
            "right-hand side", fmean(errors) + across + fmean(lost), "empirical error + unlabelled + within, by draws"
        ),
        Term("drawn part", part, "mean of draws of empirical error + within, the latter 1 where it is above"),
        Term("error of the draws", price, "2 sqrt(log(1 / delta-draws) / (2 draws))"),
        Term("bound", part + across + price, "drawn part + unlabelled + error of the draws"),
    ]


def certificate(run: Trained, asked: Settings, tell: Tell) -> Certificate:
    """The bound for a run of FLowDUP, and its true gap."""
    number = run.server(asked.server)
    method, psi = cast(FLowDUP, run.method), run.states[number]["psi"]
    centre = psi.get("r", torch.zeros(method.space.size))

    def models(h: Tree, clients: Clients) -> tuple[Tree, Tensor]:
        v = method.h2(h["h2"], method.described({"psi": h}, clients))
        return {"v": v}, (v - centre.to(v.device)).double().square().sum(1)

    def complete(made: Tree) -> Tree:
        return tree.stack([method.space.on(v.device)(v) for v in made["v"]])

    networks = networks_of(run.states[number])
    posterior = Posterior.of(run, number, asked.device, networks, models, complete)
    federation = posterior.federation
    weight, sizes = federation.weight[: federation.members], federation.train.sizes[: federation.members]
    known = int((weight > 0).sum())
    if not known:
        raise SettingError(f"No member of {run.path} has labels, so there is no empirical error to start from.")
    # an empirical error is a mean over labelled examples; nobody knows that of a member without any, so it is over all
    clients, examples = (known, federation.members), typical_size(torch.where(weight > 0, weight, sizes))
    norms = squared_norm(from_prior(run, number, networks_of, asked.prior)), squared_norm({"r": centre})
    further = asked.sigma_prior if "r" in psi else (0.0,)
    deltas, choices = (asked.delta, asked.delta_draws), len(asked.sigma) * len(asked.sigma_model) * len(further)
    tried = []
    for sigma, sigma_model, sigma_prior, draws in sampled(posterior, asked, tell, further):
        errors, squares = [draw.train for draw in draws], [draw.squares for draw in draws]
        spreads = sigma, sigma_model, sigma_prior
        made = terms(errors, squares, norms, clients, examples, method.space.size, spreads, deltas, choices)
        tried.append((made, draws))
    best, draws = min(tried, key=lambda one: one[0][-1].value)
    with torch.no_grad():
        deployed = posterior.drawn(0.0, 0.0, torch.Generator())
    sure = 1 - asked.delta - asked.delta_draws
    holds = (
        f"With probability {sure:g} at least, over who has labels, the data and the draws, the expected error of the "
        f"stochastic predictor on the {federation.members} members, averaged over them, is at most the bound."
    )
    assumes = [*remarks(run, MORE_LIKELY, "their error says nothing of the bound"), *ASSUMES]
    assumes += begun_elsewhere(run, asked.prior)
    title = f"FLowDUP, Theorem 4.1, for {run.path.name}"
    return Certificate(title, best, best[-1].value, holds, assumes, risks(draws, deployed))


def networks_of(state: Tree) -> Tree:
    """The two parts of the hypernetwork."""
    return {name: state["psi"][name] for name in ("h1", "h2")}
