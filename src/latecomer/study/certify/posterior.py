"""Errors of a stochastic predictor by draws: weights of the server's networks, and around what they make, models.

The loss of all theorems is 1 for a wrong answer and 0 for a right one, so it is bounded as they ask. A client's error
is its mean over the client's examples, and clients count alike, as in the theorems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, stdev
from typing import Literal

import torch
from torch import Tensor

from ... import tree
from ...clients import Clients, Engine
from ...data import Federation
from ...errors import SettingError
from ...evaluate import AT_ONCE, Scores
from ...handover.trained import Trained
from ...methods.fedavg import FedAvg
from ...settings import flag, setting
from ...tree import Tree
from ..rescore import engine_for
from . import LEAST, Asked, Tell, gaps

Models = Callable[[Tree, Clients], tuple[Tree, Tensor]]
"""From networks to their clients' models in a row each: the numbers that a posterior is centred on, and of every client
the squared distance of those to where its prior is centred."""
Complete = Callable[[Tree], Tree]
"""From such numbers, a row each, to the weights of models."""


@dataclass(frozen=True, kw_only=True)
class Spread(Asked):
    """What theorems about a posterior can all be told."""

    delta: float = setting(0.05, "probability that the bound fails", low=LEAST, below=1)
    sigma: tuple[float, ...] = setting(
        (0.01,), "standard deviation of the networks' weights; the best of several costs a share of delta", above=0
    )
    sigma_model: tuple[float, ...] = setting(
        (0.01,), "standard deviation around what the networks make of a client; of several, likewise", above=0
    )
    prior: Literal["zero", "start"] = setting(
        "zero",
        "where the prior of the networks' weights is centred: at 0, as in the papers, or at the seed's initial weights",
    )
    draws: int = setting(100, "draws from the posterior", low=2)
    delta_draws: float = setting(0.01, "probability that the draws mislead by more than is added", low=LEAST, below=1)
    seed: int = setting(0, "of the draws", low=0)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value == ():
                raise SettingError(f"{flag(name)} needs a number, or several with commas between them.")
        if self.delta + self.delta_draws >= 1:
            raise SettingError(
                f"--delta {self.delta:g} and --delta-draws {self.delta_draws:g} are 1 or more together, so nothing "
                "would be promised with any probability."
            )


@dataclass(frozen=True)
class Draw:
    """One draw from the posterior: errors, and how far clients' models lie from where the prior is."""

    train: float  # of members on their own labelled training examples
    members: float  # of members on test examples
    latecomers: float  # NaN: there are none
    squares: float  # summed over members


@dataclass(frozen=True, eq=False)
class Posterior:
    """A seed of a run, its networks, and how models come of them."""

    federation: Federation
    networks: Tree  # what is drawn: the learned weights
    models: Models
    complete: Complete
    describing: Engine
    scoring: Engine
    scorer: FedAvg  # its clients' models are the weights that they are sent

    @staticmethod
    def of(run: Trained, number: int, device: str, networks: Tree, models: Models, complete: Complete) -> Posterior:
        federation, method = run.federations[number], run.method
        scorer = FedAvg(task=method.task, clients=method.clients, members=method.members)
        seen = replace(federation, val=federation.train)  # what clients train on is scored where validation would be
        describing, scoring = (
            engine_for(run, by, [data], device) for by, data in ((method, federation), (scorer, seen))
        )
        networks = tree.to(networks, describing.device)
        return Posterior(federation, networks, models, complete, describing, scoring, scorer)

    def drawn(self, sigma: float, sigma_model: float, generator: torch.Generator) -> Draw:
        """A draw; with spreads of 0, the predictor as it is."""
        networks, members = noisy(self.networks, sigma, generator), self.federation.members
        late = torch.arange(self.federation.first_late, len(self.federation))
        train, test, squares = self._scored(networks, torch.arange(members), sigma_model, generator)
        newcomers = self._scored(networks, late, sigma_model, generator)[1] if len(late) else torch.full((1,), math.nan)
        return Draw(_mean(train), _mean(test), _mean(newcomers), float(squares.double().sum()))

    def _scored(
        self, networks: Tree, ids: Tensor, sigma: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of every client its error on training and on test examples, and its squared distance from the prior."""
        found = []
        for some in ids.split(AT_ONCE):
            centres, squares = self.models(networks, Clients(self.describing, some, -1, scratch=0))
            weights = self.complete(noisy(centres, sigma, generator))
            clients = Clients(self.scoring, some, -1, scratch=1)
            replies = clients.run(self.scorer.score, each={"params": weights})
            scores = Scores.of(some, tree.to(replies.each, torch.device("cpu")), replies.heard.cpu())
            errors = [1 - scores.accuracy(split).double() / 100 for split in ("val", "test")]
            found.append((*errors, squares.cpu()))
        train, test, squares = (torch.cat(parts) for parts in zip(*found, strict=True))
        return train, test, squares


def noisy(numbers: Tree, sigma: float, generator: torch.Generator) -> Tree:
    """A draw from a normal distribution around numbers, made on the CPU, so that devices agree."""

    def moved(leaf: Tensor) -> Tensor:
        noise = torch.randn(leaf.shape, generator=generator, dtype=leaf.dtype)
        return leaf + sigma * noise.to(leaf.device)

    return tree.map(moved, numbers) if sigma else numbers


def sampled(
    posterior: Posterior, asked: Spread, tell: Tell, further: tuple[float, ...] = (0.0,)
) -> Iterator[tuple[float, float, float, list[Draw]]]:
    """For every choice of spreads (those of `further` need no draws of their own): the spreads, and the draws."""
    pairs = list(product(asked.sigma, asked.sigma_model))
    for place, (sigma, sigma_model) in enumerate(pairs):
        generator, draws = torch.Generator().manual_seed(asked.seed), []
        with torch.no_grad():
            for k in range(asked.draws):
                draws.append(posterior.drawn(sigma, sigma_model, generator))
                tell(place * asked.draws + k + 1, len(pairs) * asked.draws)
        for third in further:
            yield sigma, sigma_model, third, draws


def from_prior(run: Trained, number: int, networks: Callable[[Tree], Tree], prior: str) -> Tree:
    """Learned networks less the centre of their prior. Initial ones follow from the seed alone, and not from data."""
    learned = networks(run.states[number])
    if prior == "zero":
        return learned
    start = run.method.init(torch.Generator().manual_seed(run.federations[number].seed))
    return tree.sub(learned, networks(start))


def begun_elsewhere(run: Trained, prior: str) -> list[str]:
    """What --prior start means for a run that went on from another."""
    if prior == "zero" or not run.experiment.settings.continue_from:
        return []
    return ["takes for --prior start the weights that the seed gives; with --continue-from, training began with others"]


def squared_norm(numbers: Tree) -> float:
    """The sum of squares over all leaves."""
    return float(sum(leaf.double().square().sum() for leaf in tree.leaves(numbers)))


def row_squares(numbers: Tree) -> Tensor:
    """Of every row the sum of squares over all leaves."""
    return torch.stack([leaf.double().flatten(1).square().sum(1) for leaf in tree.leaves(numbers)]).sum(0)


def gaussian_kl(squared_distance: float, sigma: float) -> float:
    """KL divergence of two normal distributions of the same variance, sigma^2 in every direction."""
    return squared_distance / sigma / sigma / 2  # a square of its own could be 0, or beyond all numbers


def price_of_draws(draws: int, delta: float) -> float:
    """Hoeffding: how far the mean of so many draws within [0, 1] may lie below what is expected, but for delta."""
    return math.sqrt(math.log(1 / delta) / (2 * draws))


def error_of_mean(values: Sequence[float]) -> float:
    """The standard error of a mean of draws."""
    return stdev(values) / math.sqrt(len(values))


def typical_size(sizes: Tensor) -> float:
    """The harmonic mean of the numbers of examples: with clients of different sizes, the m for which proofs hold."""
    if not len(sizes) or int(sizes.min()) < 1:
        raise SettingError("A member has no labelled training example, so the theorem does not apply.")
    return len(sizes) / float((1 / sizes.double()).sum())


def risks(draws: list[Draw], deployed: Draw) -> list[tuple[str, float]]:
    """Errors and true gaps: of the stochastic predictor that a theorem speaks of, and of the one that is deployed."""
    found = []
    for who, some in (("drawn", draws), ("deployed", [deployed])):
        train, members, late = (fmean(getattr(d, name) for d in some) for name in ("train", "members", "latecomers"))
        found += [(f"{who}: {what}", value) for what, value in gaps(train, members, late)]
    return found


def _mean(errors: Tensor) -> float:
    """Over clients that have something to score."""
    known = errors[~errors.isnan()]
    return float(known.mean()) if len(known) else math.nan
