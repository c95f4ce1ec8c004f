"""Prototypes: a datastore compressed to a few learned points a class, in a learned projection of the features.

ProtoNN (Gupta et al., ICML 2017), as Microsoft's EdgeML trains it: a query x scores sum_j z_j exp(-|W x - b_j|^2). The
projection W, the prototypes b_j and their class scores z_j are learned together, by Adam on the squared error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from .. import optim
from ..ops.shuffle import mix, purpose
from ..task import one_hot
from ..tree import Tree
from .neighbours import Datastore, Kernel, Search

SWEEPS = 10  # of k-means, for the first prototypes
REACH = 2.5  # a prototype's weight falls to 1/e at so many median distances (EdgeML's choice)
NOWHERE = 1e6  # where prototypes lie for which a class has no example: too far to weigh anything


@dataclass(frozen=True)
class ProtoNN:
    """How to compress. The result is a function of the datastore alone, so nothing random has to be kept or sent."""

    each: int  # prototypes a class
    width: int  # of the projection; 0: the features as they are
    steps: int
    lr: float

    def fit(self, store: Datastore) -> Tree:
        """The compressed datastore: prototypes, their class scores, the projection, and the unit of length."""
        learned: Tree = {"projection": signs(store.keys, self.width)} if self.width else {}
        keys = self.project(learned, store.keys)
        centres, used = clusters(keys, store, self.each)
        unit = REACH * _median(_squares(keys, centres).clamp(min=0).sqrt(), store.known[:, None] & used)
        learned["prototypes"] = torch.where(used[:, None], centres / unit, NOWHERE)
        labels = torch.arange(store.classes, device=keys.device).repeat_interleave(self.each)
        learned["scores"] = one_hot(labels, store.classes).to(keys.dtype)
        target = one_hot(store.labels, store.classes).to(keys.dtype)

        def loss(learned: Tree) -> Tensor:
            kernel = (-_squares(self.project(learned, store.keys / unit), learned["prototypes"])).exp()
            wrong = (kernel @ learned["scores"] - target) * store.known[:, None]
            total: Tensor = wrong.square().sum() / store.known.sum().clamp(min=1)
            return total

        adam = optim.Adam(self.lr)
        state = adam.init(learned)
        for _ in range(self.steps):
            learned, state = adam.step(learned, grad(loss)(learned), state)
        return learned | {"unit": unit}

    def vote(self, model: Tree, queries: Tensor) -> Tensor:
        """Class shares by the scores of all prototypes, those below zero taken as zero: [queries, classes]."""
        squares = _squares(self.project(model, queries / model["unit"]), model["prototypes"])
        kernel = (squares.amin(1, keepdim=True) - squares).exp()  # relative to the nearest: the shares are the same
        votes = (kernel @ model["scores"]).clamp(min=0)
        shares: Tensor = votes / votes.sum(1, keepdim=True).clamp(min=1e-12)
        return shares

    def project(self, model: Tree, x: Tensor) -> Tensor:
        directions: Tensor | None = model.get("projection")
        return x if directions is None else x @ directions


@dataclass(frozen=True)
class Vote:
    """Who votes on a new example: those stored that are nearest, or all prototypes that stand for them."""

    counts: Sequence[int]
    sigmas: Sequence[float]
    kernel: Kernel
    classes: int
    search: Search
    compress: ProtoNN | None

    def voters(self, store: Datastore) -> Tree:
        """All that a vote needs of a datastore."""
        if self.compress:
            return self.compress.fit(store)
        return {"keys": store.keys, "labels": store.labels, "known": store.known}

    def __call__(self, voters: Tree, features: Tensor) -> Tensor:
        """Class shares, [kinds, features, classes]: of every count and sigma there is to try, or of all prototypes."""
        if self.compress:
            return self.compress.vote(voters, features)[None]
        store = Datastore(**voters, classes=self.classes, search=self.search)
        return store.votes(features, self.counts, self.sigmas, self.kernel)


def clusters(keys: Tensor, store: Datastore, each: int) -> tuple[Tensor, Tensor]:
    """Per class, `each` centres by k-means, beginning with the examples stored first; and which of them there are."""
    slots = torch.arange(store.classes * each, device=keys.device)
    mine = one_hot(torch.where(store.known, store.labels, -1), store.classes)  # [examples, classes]
    rank = (mine.cumsum(0) * mine).sum(1).long() - 1  # among the examples of its class
    begins = (store.labels * each + rank)[:, None] == slots
    begins = begins & (store.known & (rank < each))[:, None]
    used = begins.any(0)
    centres = begins.to(keys.dtype).t() @ keys
    allowed = mine.bool().repeat_interleave(each, 1) & used
    for _ in range(SWEEPS):
        squares = torch.where(allowed, _squares(keys, centres), torch.inf)
        share = ((squares.argmin(1)[:, None] == slots) & store.known[:, None]).to(keys.dtype)
        count = share.sum(0)[:, None]
        centres = torch.where(count > 0, share.t() @ keys / count.clamp(min=1), centres)
    return centres, used


def signs(like: Tensor, width: int) -> Tensor:
    """A random projection with entries of one size: the same for everybody, from nothing but its shape."""
    place = torch.arange(like.shape[1] * width, device=like.device)
    bits = mix(place, purpose("projection")) & 1
    return (1 - 2 * bits).to(like.dtype).view(like.shape[1], width) / math.sqrt(width)


def _squares(a: Tensor, b: Tensor) -> Tensor:
    return a.square().sum(1, keepdim=True) + b.square().sum(1) - 2 * a @ b.t()


def _median(values: Tensor, which: Tensor) -> Tensor:
    """The middle one of those for which the mask holds; 1 where there are none, or where it is zero."""
    ordered = torch.where(which, values, torch.inf).flatten().sort().values
    middle = ordered.gather(0, ((which.sum() - 1) // 2).clamp(min=0)[None])[0]
    return torch.where(middle.isfinite() & (middle > 0), middle, 1.0)
