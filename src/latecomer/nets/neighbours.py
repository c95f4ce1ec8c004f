"""Nearest neighbours: a client's own examples as a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..clients import Engine
from ..ops.search import Search as Search  # for methods that have it as a setting
from ..ops.search import check_faiss, distances
from ..ops.shuffle import shuffled
from ..task import Batch, one_hot

Rule = Literal["all", "fifo", "concatenate", "fixed"]
Kernel = Literal["distance", "squared"]


@dataclass(frozen=True)
class Datastore:
    """Features of examples and their labels."""

    keys: Tensor  # [examples, features]
    labels: Tensor  # [examples]
    known: Tensor  # [examples] bool: real, labelled and within the client's capacity
    classes: int
    search: Search = "auto"

    def votes(
        self, queries: Tensor, counts: Sequence[int], sigmas: Sequence[float], kernel: Kernel = "distance"
    ) -> Tensor:
        """Class shares among the nearest, for every count of them and every sigma: [counts * sigmas, queries, classes].

        An example weighs exp(-distance / sigma), or with the squared kernel exp(-distance^2 / (features * sigma)). Of
        equally near ones those stored first vote. With fewer examples than `count`, all vote. Exponents are relative to
        the nearest, which changes no share and keeps far-away queries from losing all their voters to rounding.
        """
        distance, places = distances(queries, self.keys, self.known, max(counts), self.search)
        exponent = distance if kernel == "distance" else distance.square() / self.keys.shape[1]
        least = exponent.amin(1, keepdim=True)
        exponent = exponent - torch.where(least.isinf(), 0.0, least)
        ballots = one_hot(self.labels[places], self.classes).to(queries.dtype)
        shares = []
        for count in counts:
            voters = nearest(distance, count)
            for sigma in sigmas:
                weight = torch.where(voters, (-exponent / sigma).exp(), 0.0)
                votes = (weight[:, None] @ ballots)[:, 0]
                shares.append(votes / votes.sum(1, keepdim=True).clamp(min=1e-12))
        return torch.stack(shares)

    def joined(self, other: Datastore) -> Datastore:
        """Both datastores as one; of equally near examples those of this one count as stored first."""
        keys, labels, known = (
            torch.cat([getattr(one, name) for one in (self, other)]) for name in ("keys", "labels", "known")
        )
        return Datastore(keys, labels, known, self.classes, self.search)


def check_search(search: Search, engine: Engine) -> None:
    """Refuses a search that the engine has no way for: better said before training than after."""
    check_faiss(search, engine.one_by_one, engine.device)


def lowered(counts: Sequence[int], sizes: Tensor) -> list[str]:
    """A note for the user where some datastores hold fewer examples than shall vote."""
    few = sizes[(sizes > 0) & (sizes < max(counts))]
    if not len(few):
        return []
    return [
        f"{len(few)} of {len(sizes)} clients keep fewer than {max(counts)} examples, the smallest {int(few.min())}; "
        f"there --neighbours is lowered to as many as they keep."
    ]


def nearest(distance: Tensor, count: int) -> Tensor:
    """Which of the columns are the `count` nearest, row by row; of equally far ones, the first."""
    last = distance.topk(min(count, distance.shape[1]), largest=False).values[:, -1:]
    nearer, equal = distance < last, distance == last
    return nearer | (equal & (equal.cumsum(1) <= count - nearer.sum(1, keepdim=True)))


def best(votes: Tensor, logits: Tensor, held_out: Batch, blends: Sequence[float]) -> tuple[Tensor, Tensor]:
    """The weight of the vote, and the kind of vote (as a vector of one), that get most held-out examples right.

    `votes` are [kinds, examples, classes]; all are blended with the model at once. Small clients get all right in many
    ways: of equals the one that finds the labels likelier (on average, so below one example), then the first.
    """
    tried = listed(blends, logits)
    likely = logits.softmax(-1).lerp(votes, tried[:, None, None, None])
    truth = (likely * one_hot(held_out.y, logits.shape[-1])).sum(-1) / held_out.weight.sum().clamp(min=1)
    gain = (((likely.argmax(-1) == held_out.y) + truth) * held_out.weight).sum(-1)
    chosen = gain.flatten().argmax(0, keepdim=True)
    return tried[chosen // len(votes)][0], chosen % len(votes)


def listed(values: Sequence[float], like: Tensor) -> Tensor:
    """Numbers as a tensor, made where `like` is: a captured graph must not copy from the host."""
    return torch.stack([torch.full((), value, device=like.device, dtype=like.dtype) for value in values])


def drawn(place: Tensor, count: Tensor, lot: Tensor) -> Tensor:
    """Where the first `count` examples of a client stand in a random order that its lot decides."""
    some = count.clamp(min=1)
    return shuffled(torch.minimum(place, some - 1), some, (lot * 2**53).long())


def room(examples: Tensor, share: Tensor | float) -> Tensor:
    """How many examples a share of them is; a bit of one counts as one."""
    return (examples * share - 1e-4).ceil()


def held(rule: Rule, place: Tensor, first: Tensor, now: Tensor, most: Tensor) -> Tensor:
    """Which examples a datastore holds under arriving data, by their place in the order of arrival.

    `first` examples are there at the beginning, `now` have arrived so far, and there is room for `most`. The rule
    `fifo` puts every new example in the place of the oldest; `concatenate` adds them while there is room; `fixed` takes
    none.
    """
    size = torch.minimum(first, most)
    if rule == "fifo":
        return (place < now) & (place >= now - size)
    return place < (size if rule == "fixed" else torch.minimum(now, most))
