"""Groups of a cohort: clients whose models have one size, and so messages of one shape."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from . import tree
from .clients import Clients
from .errors import DataError
from .ops.upload import upload
from .replies import Replies
from .settings import SIZES
from .tree import Tree


@dataclass(frozen=True)
class Group:
    """Clients of one size, and what they told the server about themselves."""

    size: str  # empty where all clients have the same model
    which: Tensor  # [cohort] bool, on the CPU
    clients: Clients
    told: Tree


def by_size(clients: Clients, told: Replies | None, sizes: Collection[str]) -> list[Group]:
    """The cohort by the `budget` that each client told; without `sizes` all are one group.

    The server has to know the sizes to write its messages, so this waits for the device.
    """
    if told is None or not sizes:
        return [Group("", torch.ones(len(clients), dtype=torch.bool), clients, {} if told is None else told.each)]
    place, heard = told.each["budget"].long().cpu(), told.heard.cpu()
    place[~heard] = SIZES.index(next(iter(sizes)))  # whoever is silent has to be somewhere, and counts nowhere
    if len(strangers := place[~torch.isin(place, torch.tensor([SIZES.index(size) for size in sizes]))]):
        raise DataError(
            f"A client has the budget {SIZES[strangers[0]]}, but there is no model of that size, "
            f"only {', '.join(sizes)}."
        )
    masks = {size: place == SIZES.index(size) for size in sizes}
    return [
        Group(size, mask, clients.only(mask), tree.row(told.each, upload(mask.nonzero()[:, 0], told.heard.device)))
        for size, mask in masks.items()
        if mask.any()
    ]
