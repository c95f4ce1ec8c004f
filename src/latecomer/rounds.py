"""What the rounds of several papers share, as functions that a method calls by name.

A method's own file shows its `round` and its `personalise`; where the same lines would stand in many files, it calls
one of these. Nothing here knows which method calls, and a client step is declared in its method's class alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import tree
from .clients import Clients, Sending
from .data.split import SIZES
from .errors import DataError
from .learn import SGD, pullback
from .ops.upload import upload
from .optim import Adam, Parts, carried
from .replies import By, Replies
from .steps import Step
from .task import Batches, Home
from .tree import Tree

if TYPE_CHECKING:
    from .method import Method, TrainsBySGD


# on the server: one model for all


def average(fit: Step, state: Tree, clients: Clients, *, by: By) -> Tree:
    """FedAvg's round. The state is one tree under one name; it moves by the mean of what `fit` would change of it.

    `by` is what a client counts for in the mean: as many as it has labelled "examples", or "clients": one.
    """
    ((name, common),) = state.items()
    return {name: tree.add(common, clients.mean(fit, shared=state, by=by))}


# newcomers: clients that keep something which they have to train before its first use
#
# Only the client can know whether it has: its answer may have been lost after it trained. So it remembers that, as
# `met` beside what it keeps, and is asked. A server marks whom it has met only in tables of its own.


def welcome(introduce: Step, arrive: Step, state: Tree, clients: Clients, then: Sending) -> Sending:
    """On the server: latecomers, and members that were never drawn, `arrive`; all are sent `then` to predict with."""
    met = clients.run(introduce).each["met"]
    strangers = clients.only(met.cpu() == 0)
    if len(strangers):
        strangers.run(arrive, shared=state)
    return then


def introduce(method: Method, home: Home) -> Tree:
    """On the client: whether it has trained what it keeps."""
    return {"met": home.memory["met"]}


def keep(home: Home, **trained: Any) -> None:
    """On the client: remember what was trained, and that it was."""
    home.memory = {**trained, "met": torch.ones_like(home.memory["met"])}


def rows_of(origin: Tensor, table: Tensor, new: Tensor | float = 0.0) -> Tensor:
    """On the server: a table for other members than before; row k is row `origin[k]`, or `new` where that is -1."""
    rows = table[origin.clamp(min=0)]
    return torch.where(tree.align(origin >= 0, rows), rows, torch.as_tensor(new, dtype=rows.dtype))


def embeddings_of(
    origin: Tensor, optimiser: SGD | Parts, state: Tree, fresh: Tree, start: Tensor | None = None
) -> Tree:
    """On the server: a state with a table of embeddings among what is learned, for other members than before.

    New ones begin at `start`, or at the mean of the members there were; their moments are at rest.
    """

    def rows(tables: Tree, new: Tensor | float = 0.0) -> Tree:
        return {name: rows_of(origin, part, new) if name == "embedding" else part for name, part in tables.items()}

    learned = state["learned"]
    if start is None and "embedding" in learned:
        start = learned["embedding"].mean(0)
    moments = carried(optimiser, state["optimiser"], learned, rows)
    return fresh | {"learned": rows(learned, 0.0 if start is None else start), "optimiser": moments}


# on the client: a common body, a head of one's own


def head_memory(method: Method, generator: torch.Generator) -> Tree:
    """A head that is nobody's own yet."""
    return {"head": tree.pick(method.task.model.fresh(generator), method.task.head), "met": torch.zeros(())}


def fit_head(method: TrainsBySGD, home: Home, body: Tree, batches: Batches) -> Tree:
    """Train the head while the body stays as it is, keep it, and answer nothing."""
    train = method.local.at(home.round)
    keep(home, head=train(lambda head, batch: method.task.loss(body | head, batch), home.memory["head"], batches))
    return {}


# on the server: models that a hypernetwork generates


def fitted(
    clients: Clients,
    fit: Step,
    generate: Callable[..., Tree],
    *inputs: Any,
    shared: Tree | None = None,
    each: Tree | None = None,
) -> tuple[Replies, Callable[[Tree], tuple[Any, ...]]]:
    """An exchange in which every client fits the model that was generated for it.

    Returns the replies, and the way back: from what the models changed by to gradients at the inputs of `generate`.
    What the cohort shares gets the sum over clients, to which the silent, whose rows are zero, add nothing.
    """
    params, pull = pullback(generate, *inputs)
    replies = clients.run(fit, shared=shared, each={"params": params} | (each or {}))
    return replies, lambda change: pull(tree.scale(change, -1))


@dataclass(frozen=True)
class Fitting:
    """How descriptors of new clients are fitted, by Adam over some turns, while the hypernetwork stays as it is.

    Adam, because how large gradients are depends on data, local training and hypernetwork, while descriptors are of
    the order of one; and no clipping, so that clients do not affect each other.
    """

    generate: Callable[[Tensor], Tree]  # descriptors to models, a row each
    lr: float

    def begin(self, v: Tensor) -> Tree:
        """Adam's moments before the first turn."""
        return tree.to(Adam(self.lr).init({"v": v}), v.device)

    def turn(self, v: Tensor, moments: Tree, change: Tree) -> tuple[Tensor, Tree]:
        """Better descriptors, after clients trained the models of these, which changed so."""
        _, pull = pullback(self.generate, v)
        (gradient,) = pull(tree.scale(change, -1))
        params, moments = Adam(self.lr).step({"v": v}, {"v": gradient}, moments)
        return params["v"], moments

    def over(self, turns: Sequence[Clients], fit: Step, v: Tensor) -> Tensor:
        """The descriptors after all turns."""
        moments = self.begin(v)
        for clients in turns:
            v, moments = self.turn(v, moments, clients.run(fit, each={"params": self.generate(v)}).each)
        return v


# on the server: clients whose models have several sizes


@dataclass(frozen=True)
class Group:
    """Clients of one size, and what they told the server about themselves."""

    size: str  # empty where all clients have the same model
    which: Tensor  # [cohort] bool, on the CPU
    clients: Clients
    told: Tree


def in_order(groups: Sequence[Group], rows: Callable[[Group], Tensor]) -> Tensor:
    """What there is of every group, a row a client, in the order of the cohort."""
    found = torch.cat([rows(group) for group in groups])
    order = torch.cat([group.which.nonzero()[:, 0] for group in groups]).argsort()
    return found[order.to(found.device)]


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
