"""PeFLL, Theorem 4.2: the expected error of future clients, by the errors of members and two complexities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import cast

import torch
from torch import Tensor

from ...clients import Clients
from ...handover.trained import Trained
from ...methods.pefll import PeFLL
from ...tree import Tree
from . import MORE_LIKELY, Certificate, Tell, Term, remarks
from .posterior import (
    Posterior,
    Spread,
    begun_elsewhere,
    error_of_mean,
    from_prior,
    gaussian_kl,
    price_of_draws,
    risks,
    row_squares,
    sampled,
    squared_norm,
    typical_size,
)

ASSUMES = [
    "assumes that members and those who come later are drawn independently from one distribution of clients, and every "
    "client's examples, training and test, independently from its own",
    "assumes the 0-1 loss, which lies in [0, 1] (M = 1); training minimises cross-entropy",
    "assumes priors N(eta_0, sigma^2) for the weights of both networks and N(0, sigma-model^2) for a client's model, "
    "with spreads and --prior chosen before the data were seen: eta_0 is 0, or with --prior start the initial weights, "
    "which follow from the seed (Theorem 4.1 allows any prior that does not depend on data); training and the choice "
    "of a round may have seen everything, since the theorem holds for all weights at once",
    "counts the two scalars by which descriptors are standardised, a mean and the logarithm of a standard deviation, "
    "among the hypernetwork's weights, with a prior and draws like theirs: they come from the first cohort's data",
    "holds for the stochastic predictor, of which networks and then a client's model are drawn; the one that is "
    "deployed takes their centres, and no theorem of the paper speaks of it",
    "draws a client's model from N(h, sigma-model^2), as the theorem's proof (Theorem 4.1) has it; its statement "
    "writes the loss at h itself",
    "takes log(4 sqrt(n) / delta) between clients: the proof joins two statements with half of delta each, but in "
    "equation 25 stands the logarithm for the whole, so that equation 6 as printed would hold with 1 - 1.5 delta only; "
    "the right-hand side below is as printed, the bound is not",
    "takes the harmonic mean of members' numbers of examples as m: the proof, which lets all clients have m, then "
    "holds as it stands",
]


@dataclass(frozen=True, kw_only=True)
class Settings(Spread):
    pass


def between(kl: float, clients: int, delta: float) -> float:
    """What may be lost from members to future clients: the second term of equation 6."""
    return math.sqrt((kl + math.log(2 * math.sqrt(clients) / delta)) / (2 * clients))


def within(kl: float, clients: int, examples: float, delta: float) -> float:
    """What may be lost from training examples to others of the same clients, for one draw: the third term."""
    both = examples * clients
    return math.sqrt((kl + math.log(8 * both / delta) + 1) / (2 * both))


def terms(
    errors: Sequence[float],
    squares: Sequence[float],
    norms: tuple[float, float, float],
    clients: int,
    examples: float,
    sigma: tuple[float, float],
    delta: tuple[float, float],
    choices: int = 1,
) -> list[Term]:
    """Equation 6, from numbers; the last term is the bound.

    Of every draw: members' training error, and the sum of their models' squared norms. `norms` are the squared norms of
    hypernetwork, embedding network and standardising scalars, `sigma` the spreads of networks and of models, `delta`
    the probabilities that the theorem fails and that the draws mislead, of which one of `choices` spreads has its
    share.
    """
    failing, misleading = (share / choices for share in delta)
    kl_networks = gaussian_kl(sum(norms), sigma[0])
    kls = [gaussian_kl(norm, sigma[1]) for norm in squares]
    lost = [within(kl, clients, examples, failing) for kl in kls]
    # The theorem adds what is lost to an error that is expected over models. A cap on the sum in every draw would be
    # below what it promises, since a draw's error is that of one model a client; so the cap is on what is lost alone.
    part = fmean(error + min(1.0, more) for error, more in zip(errors, lost, strict=True))  # each within [0, 2]
    across, price = between(kl_networks, clients, failing), 2 * price_of_draws(len(errors), misleading)
    proven = between(kl_networks, clients, failing / 2)
    return [
        Term("n", clients, "members"),
        Term("m", examples, "training examples of a member, harmonic mean"),
        Term("sigma", sigma[0], "standard deviation of the networks' weights; alpha_h = alpha_v = sigma^2"),
        Term("sigma-model", sigma[1], "standard deviation of a model's weights; alpha_theta = sigma-model^2"),
        Term("delta", failing, f"--delta over {choices} choice{'s' * (choices > 1)} of spreads"),
        Term("delta-draws", misleading, f"--delta-draws over {choices} choice{'s' * (choices > 1)} of spreads"),
        Term("draws", len(errors)),
        Term("empirical error", fmean(errors), f"mean of draws, standard error {error_of_mean(errors):.2g}"),
        Term("|eta_h|^2", norms[0], "hypernetwork, from where its prior is centred"),
        Term("|eta_v|^2", norms[1], "embedding network, likewise"),
        Term("|scalars|^2", norms[2], "that standardise descriptors, likewise"),
        Term("KL of the networks", kl_networks, "(|eta_h|^2 + |eta_v|^2 + |scalars|^2) / (2 sigma^2)"),
        Term("log(2 sqrt(n) / delta)", math.log(2 * math.sqrt(clients) / failing)),
        Term("between clients", across, "sqrt((KL of the networks + log) / (2 n))"),
        Term("KL of the models", fmean(kls), "sum over members of |theta|^2 / (2 sigma-model^2), mean of draws"),
        Term("log(8 m n / delta) + 1", math.log(8 * examples * clients / failing) + 1),
        Term("within clients", fmean(lost), "mean of draws of sqrt((KL of the models + log + 1) / (2 m n))"),
        Term("right-hand side", fmean(errors) + across + fmean(lost), "as printed: empirical error + between + within"),
        Term("between, proven", proven, "between clients with half of delta, as the proof has it to share"),
        Term("drawn part", part, "mean of draws of empirical error + within, the latter 1 where it is above"),
        Term("error of the draws", price, "2 sqrt(log(1 / delta-draws) / (2 draws))"),
        Term("bound", part + proven + price, "drawn part + between, proven + error of the draws"),
    ]


def certificate(run: Trained, asked: Settings, tell: Tell) -> Certificate:
    """The bound for a run of PeFLL, and its true gap."""
    number = run.server(asked.server)
    method, networks = cast(PeFLL, run.method), networks_of(run.states[number])

    def models(drawn: Tree, clients: Clients) -> tuple[Tree, Tensor]:
        v, scalars = method.described({"learned": drawn}, clients), drawn["scalars"]
        made = method.hyper.generate(drawn["hyper"], (v - scalars["mean"]) / scalars["log std"].exp())
        return made, row_squares(made)

    posterior = Posterior.of(run, number, asked.device, networks, models, lambda made: made)
    members, labelled = posterior.federation.members, posterior.federation.weight[: posterior.federation.members]
    away = from_prior(run, number, networks_of, asked.prior)
    norms = squared_norm(away["hyper"]), squared_norm(away["embed"]), squared_norm(away["scalars"])
    examples = typical_size(labelled)
    deltas, choices = (asked.delta, asked.delta_draws), len(asked.sigma) * len(asked.sigma_model)
    tried = []
    for sigma, sigma_model, _, draws in sampled(posterior, asked, tell):
        errors, squares = [draw.train for draw in draws], [draw.squares for draw in draws]
        made = terms(errors, squares, norms, members, examples, (sigma, sigma_model), deltas, choices)
        tried.append((made, draws))
    best, draws = min(tried, key=lambda one: one[0][-1].value)
    with torch.no_grad():
        deployed = posterior.drawn(0.0, 0.0, torch.Generator())
    sure = 1 - asked.delta - asked.delta_draws
    holds = (
        f"With probability {sure:g} at least, over members, their data and the draws, the error that a future client, "
        "drawn as members were, can expect of the stochastic predictor is at most the bound."
    )
    assumes = [*remarks(run, MORE_LIKELY, "the bound promises nothing of them"), *ASSUMES]
    assumes += begun_elsewhere(run, asked.prior)
    title = f"PeFLL, Theorem 4.2, for {run.path.name}"
    return Certificate(title, best, best[-1].value, holds, assumes, risks(draws, deployed))


def networks_of(state: Tree) -> Tree:
    """What is learned from data, and so is drawn: both networks, and the scalars between them."""
    standard = state["standard"]
    learned: Tree = state["learned"]
    return learned | {"scalars": {"mean": standard["mean"], "log std": standard["std"].log()}}
