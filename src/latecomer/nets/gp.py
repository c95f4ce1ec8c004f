"""Gaussian processes that classify, by Pólya-Gamma augmentation: given these variables, posteriors are Gaussian.

A tree of classes needs a binary classifier at every node. The nodes of one level have disjoint examples, so they are
solved as one: a Gaussian process whose covariance between examples of different nodes is zero. Its Cholesky factor has
the same zeros. Examples that take no part (padding, no label, nothing to decide) stand alone, with `kappa` zero.

All of this is done in double precision: the covariance of similar examples is nearly singular.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from numpy.polynomial.hermite import hermgauss
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

Noise = Callable[[int, str], Tensor]

TERMS = 8  # of the sum that a Pólya-Gamma variable is; the mean stands for the rest, under 0.01 % of the variance
POINTS = [(float(at), float(share) / math.sqrt(math.pi)) for at, share in zip(*hermgauss(20), strict=True)]
"""Gauss-Hermite quadrature: where to look at a normal variable, and for what share of the mean it counts."""


@dataclass(frozen=True)
class Kernel:
    """The RBF kernel on embeddings of length one."""

    scale: float
    length: float
    jitter: float = 1e-3

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = normalize(a.double(), dim=-1), normalize(b.double(), dim=-1)
        return self.scale * ((a @ b.mT - 1) / self.length**2).exp()  # |a - b|^2 = 2 - 2 a b

    def within(self, z: Tensor, node: Tensor, active: Tensor) -> Tensor:
        """The covariance of examples: zero between nodes, one for an example that takes no part."""
        together = (node[:, None] == node) & active[:, None] & active
        alone = torch.where(active, self.jitter, 1.0).double()
        return torch.where(together, self(z, z), 0.0) + torch.diag_embed(alone)


@dataclass(frozen=True)
class Posterior:
    """One Gaussian for every draw of the Pólya-Gamma variables: with covariance K + 1/omega, seen at kappa/omega."""

    factor: Tensor  # [draws, n, n] the Cholesky factor of K + 1/omega
    white: Tensor  # [draws, n] what is left of kappa/omega when the factor is divided out

    @staticmethod
    def of(covariance: Tensor, kappa: Tensor, omega: Tensor) -> Posterior:
        factor = cholesky(covariance + torch.diag_embed(1 / omega))
        return Posterior(factor, _divide(factor, (kappa / omega)[..., None]).squeeze(-1))

    def latent(self, cross: Tensor, prior: float, member: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance [draws, new, nodes] at new examples, in every node.

        `cross` [new, n] is their covariance with the examples, `prior` their own, `member` [n, nodes] says which
        examples a node has.
        """
        weights = _divide(self.factor, cross.mT.expand(len(self.factor), -1, -1))  # [draws, n, new]
        member = member.to(weights.dtype)
        mean = (weights * self.white[..., None]).mT @ member
        return mean, (prior - weights.square().mT @ member).clamp(min=1e-9)

    def unlikelihood(self) -> Tensor:
        """Minus the log marginal likelihood [n], example by example; a node's is the sum over its examples.

        The mean over draws, less what depends on omega and kappa alone.
        """
        return (self.white.square() / 2 + self.factor.diagonal(dim1=-2, dim2=-1).log()).mean(0)


def gibbs(covariance: Tensor, kappa: Tensor, draws: int, steps: int, noise: Noise) -> Tensor:
    """Pólya-Gamma variables [draws, n] after some steps of Gibbs sampling, every draw a chain of its own.

    A chain begins with f from the prior. Then, by turns: omega given f, and f given omega and kappa.
    """
    covariance, count = covariance.detach(), len(kappa)
    prior = cholesky(covariance)

    def numbers(step: int) -> Tensor:
        drawn = noise(count * (TERMS + 2) * draws, f"step {step}").double()
        return drawn.reshape(count, -1, draws).permute(1, 2, 0)  # examples first: padding at the end changes nothing

    drawn = numbers(0)
    omega = polya_gamma(drawn[0] @ prior.mT, drawn[2:])
    for step in range(1, steps + 1):
        drawn = numbers(step)
        # a draw from the prior, moved by what the observations say against it, is one from the posterior
        start = drawn[0] @ prior.mT
        surprise = kappa / omega - start - drawn[1] / omega.sqrt()
        factor = cholesky(covariance + torch.diag_embed(1 / omega))
        moved = _divide(factor.mT, _divide(factor, surprise[..., None]), upper=True).squeeze(-1)
        omega = polya_gamma(start + moved @ covariance, drawn[2:])
    return omega


def polya_gamma(tilt: Tensor, noise: Tensor) -> Tensor:
    """Draws from PG(1, tilt): a sum of exponential variables, made from normals [terms, *tilt.shape]."""
    exponential = -(torch.erfc(noise / math.sqrt(2)) / 2).log()
    k = torch.arange(len(noise), device=tilt.device, dtype=tilt.dtype) + 0.5
    weight = 1 / (2 * (math.pi * k).square().reshape(-1, *[1] * tilt.ndim) + tilt.square() / 2)
    size = tilt.abs().clamp(min=1e-4)
    whole = (size / 2).tanh() / (2 * size)  # the mean of the endless sum
    return whole + ((exponential - 1) * weight).sum(0)


def positive(mean: Tensor, variance: Tensor, of_log: bool) -> Tensor:
    """The probability that a latent value is answered with yes: the mean of the sigmoid, or exp of its log's mean."""
    spread, total = (2 * variance).sqrt(), torch.zeros_like(mean)
    for at, share in POINTS:  # plain numbers: a tensor from the host cannot enter a CUDA graph
        value = torch.add(mean, spread, alpha=at)
        total = torch.add(total, logsigmoid(value) if of_log else value.sigmoid(), alpha=share)
    return total.exp() if of_log else total


def cholesky(matrix: Tensor) -> Tensor:
    """The factor; NaN, and so silence, where there is none (an exception could not leave a mapped step)."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    return torch.where((info > 0)[..., None, None], torch.nan, factor)


def _divide(factor: Tensor, right: Tensor, upper: bool = False) -> Tensor:
    quotient: Tensor = torch.linalg.solve_triangular(factor, right, upper=upper)
    return quotient
