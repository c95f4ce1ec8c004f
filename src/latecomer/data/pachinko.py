"""Pachinko allocation (Li and McCallum 2006; Reddi et al. 2021): draw a coarse class, then a fine one within it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def allocate(
    stock: NDArray[Any], parent: NDArray[Any], alphas: NDArray[Any], fine_alpha: float, random: np.random.Generator
) -> NDArray[Any]:
    """How many examples of every fine class each client gets, [classes, clients].

    `stock` holds the number of examples of every fine class, `parent` its coarse class, `alphas` one concentration a
    client. Clients get equally many, and all examples find an owner. A client has Dirichlet(alpha) shares of the coarse
    classes and Dirichlet(fine_alpha) shares of the fine ones within each. It draws without replacement: a class that
    runs out leaves the draw. Drawing a client's examples together, and drawing those again that found nothing left, has
    the same distribution as drawing them one after the other. Clients come in random order, for the last ones take what
    is left.
    """
    table, left = _by_parent(stock, parent)
    given = np.zeros((len(stock), len(alphas)), np.int64)
    sizes = np.full(len(alphas), stock.sum() // len(alphas))
    sizes[: stock.sum() % len(alphas)] += 1
    for client in random.permutation(len(alphas)):
        coarse = random.dirichlet(np.full(len(left), alphas[client]))
        fine = random.standard_gamma(fine_alpha, left.shape)
        before = left.copy()
        _draw(sizes[client], coarse, fine, left, random)
        given[:, client] = (before - left).ravel()[table]
    return given


def _by_parent(stock: NDArray[Any], parent: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The stock as [coarse classes, fine classes], padded with zeros, and every class's place in it."""
    width = np.bincount(parent)
    order = np.argsort(parent, kind="stable")
    column = np.empty(len(parent), np.int64)
    column[order] = np.arange(len(parent)) - np.repeat(width.cumsum() - width, width)
    place = parent * width.max() + column
    left = np.zeros(len(width) * width.max(), np.int64)
    left[place] = stock
    return place, left.reshape(len(width), -1)


def _draw(
    count: int, coarse: NDArray[Any], fine: NDArray[Any], left: NDArray[Any], random: np.random.Generator
) -> None:
    """Takes `count` examples away from what is left; there must be as many."""
    waiting = np.zeros(len(coarse), np.int64)  # draws that have a coarse class, but no fine one yet
    while count or waiting.any():
        waiting += random.multinomial(count, _shares(coarse[None], left.sum(1)[None] > 0)[0])
        taken = np.minimum(random.multinomial(waiting, _shares(fine, left > 0)), left)
        left -= taken
        waiting -= taken.sum(1)
        gone = left.sum(1) == 0  # their draws begin anew
        count, waiting = int(waiting[gone].sum()), np.where(gone, 0, waiting)


def _shares(weights: NDArray[Any], there: NDArray[Any]) -> NDArray[Any]:
    """Rows of shares over what is still there; equal ones where the weights say nothing about it."""
    weights = np.where(there, weights, 0.0)
    total = weights.sum(1, keepdims=True)
    weights = np.where(total > 0, weights, np.where(there.any(1, keepdims=True), there, 1.0))
    shares: NDArray[Any] = weights / weights.sum(1, keepdims=True)
    return shares
