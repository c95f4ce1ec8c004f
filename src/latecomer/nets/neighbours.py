"""Nearest neighbours: a client's own examples as a classifier."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..task import one_hot


@dataclass(frozen=True)
class Datastore:
    """Features of examples and their labels. Exact search in tensor arithmetic, so that it maps over clients."""

    keys: Tensor  # [examples, features]
    labels: Tensor  # [examples]
    known: Tensor  # [examples] bool: real, labelled and within the client's capacity
    classes: int

    def vote(self, queries: Tensor, count: int, sigma: float) -> Tensor:
        """Class shares among the `count` nearest, each weighing exp(-distance / sigma): [queries, classes].

        With fewer examples than `count`, all vote. Distances are taken relative to the nearest, which changes no share
        and keeps far-away queries from losing all their voters to rounding.
        """
        squares = queries.square().sum(1, keepdim=True) + self.keys.square().sum(1) - 2 * queries @ self.keys.t()
        distance = torch.where(self.known, squares.clamp(min=0).sqrt(), torch.inf)
        near, which = distance.topk(min(count, len(self.keys)), largest=False)
        relative = torch.where(near.isinf(), torch.inf, near - near[:, :1])
        weight = torch.where(near.isinf(), 0.0, (-relative / sigma).exp())
        votes = (one_hot(self.labels[which], self.classes).to(weight.dtype) * weight[..., None]).sum(1)
        return votes / votes.sum(1, keepdim=True).clamp(min=1e-12)
