"""Gaussian process classification in NumPy, node by node and draw by draw, independently of the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erfc, pi, sqrt, tanh
from typing import Any

import numpy as np

Array = Any

SCALE, LENGTH, JITTER, TERMS = 8.0, 1.0, 1e-3, 8


def kernel(a: Array, b: Array) -> Array:
    a, b = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (np.array(a), np.array(b)))
    return SCALE * np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * LENGTH**2))


def polya_gamma(tilt: float, normals: Array) -> float:
    """The first terms of the sum that a PG(1, tilt) variable is, with exponentials by the upper tail of a normal."""
    total, expected = 0.0, 0.0
    for k, normal in enumerate(normals, start=1):
        weight = 1 / (2 * pi**2) / ((k - 0.5) ** 2 + tilt**2 / (4 * pi**2))
        total += weight * -np.log(erfc(normal / sqrt(2)) / 2)
        expected += weight
    return total + tanh(tilt / 2) / (2 * tilt) - expected


def omegas(covariance: Array, kappa: Array, normals: Sequence[Array]) -> Array:
    """One chain of Gibbs sampling; `normals` [TERMS + 2, n] for the beginning and for every step.

    The posterior of f given omega has the precision inv(K) + Omega. It is drawn as the library does, because the same
    normals must give the same draw: a draw of the prior, and observations of it with noise, are conditioned on.
    """
    root = np.linalg.cholesky(covariance)
    f = root @ normals[0][0]
    omega = np.array([polya_gamma(value, normals[0][2:, i]) for i, value in enumerate(f)])
    for step in normals[1:]:
        prior = root @ step[0]
        seen = prior + step[1] / np.sqrt(omega)
        f = prior + covariance @ np.linalg.inv(covariance + np.diag(1 / omega)) @ (kappa / omega - seen)
        omega = np.array([polya_gamma(value, step[2:, i]) for i, value in enumerate(f)])
    return omega


def latent(z: Array, kappa: Array, omega: Array, new: Array) -> tuple[Array, Array]:
    """Mean and variance of the latent function at new embeddings: the textbook's formulas of GP regression."""
    inverse = np.linalg.inv(kernel(z, z) + np.diag(JITTER + 1 / omega))
    cross = kernel(new, z)
    return cross @ inverse @ (kappa / omega), SCALE + JITTER - np.einsum("mi,ij,mj->m", cross, inverse, cross)


def mean_over(function: Callable[[Array], Array], mean: float, variance: float) -> float:
    """Of a function of a normal variable, by 20 points of Gauss and Hermite: exactly what the library promises."""
    at, weight = np.polynomial.hermite.hermgauss(20)
    return float((function(mean + np.sqrt(2 * variance) * at) * weight).sum() / np.sqrt(np.pi))


def fine_mean_over(function: Callable[[Array], Array], mean: float, variance: float) -> float:
    """The same by a fine sum: what the library means."""
    at = np.linspace(-9, 9, 4001)
    weight = np.exp(-(at**2) / 2)
    return float((function(mean + np.sqrt(variance) * at) * weight).sum() / weight.sum())


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class Node:
    """A binary classifier on the examples `rows` of a client: those of the `left` classes against the others."""

    def __init__(self, y: Array, rows: Sequence[int], left: Sequence[int], level: int) -> None:
        self.rows, self.level = list(rows), level
        self.kappa = np.where(np.isin(np.array(y)[self.rows], left), 0.5, -0.5)

    def draw(self, z: Array, normals: Callable[[int], Sequence[Array]]) -> list[Array]:
        """The Pólya-Gamma variables of every draw; `normals(level)` are [TERMS + 2, draws, examples] a step."""
        z = np.array(z)[self.rows]
        steps = [step[:, :, self.rows] for step in normals(self.level)]
        covariance = kernel(z, z) + JITTER * np.eye(len(z))
        return [omegas(covariance, self.kappa, [step[:, d] for step in steps]) for d in range(steps[0].shape[1])]

    def left(self, z: Array, drawn: list[Array], new: Array, of_log: bool = False) -> Array:
        """The probability of the left side at new embeddings."""
        total = np.zeros(len(new))
        for omega in drawn:
            means, variances = latent(np.array(z)[self.rows], self.kappa, omega, new)
            for m in range(len(new)):
                if of_log:
                    total[m] += np.exp(mean_over(lambda f: -np.log1p(np.exp(-f)), means[m], variances[m]))
                else:
                    total[m] += mean_over(sigmoid, means[m], variances[m])
        return total / len(drawn)

    def unlikelihood(self, z: Array, drawn: list[Array]) -> float:
        """Minus the log of N(kappa / omega; 0, K + 1 / Omega) without its 2 pi, the mean over draws, an example."""
        z = np.array(z)[self.rows]
        total = 0.0
        for omega in drawn:
            covariance = kernel(z, z) + np.diag(JITTER + 1 / omega)
            seen = self.kappa / omega
            total += (seen @ np.linalg.inv(covariance) @ seen + np.linalg.slogdet(covariance)[1]) / 2
        return total / len(drawn) / len(z)


def slope(function: Callable[[Array], float], at: Array, step: float = 1e-5) -> Array:
    """A gradient by central differences."""
    return np.array([(function(at + step * e) - function(at - step * e)) / (2 * step) for e in np.eye(len(at))])
