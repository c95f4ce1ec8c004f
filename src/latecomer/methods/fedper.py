"""FedPer: a common body, a personal head. Arivazhagan et al., 2019 (arXiv:1912.00818), Algorithms 1 and 2.

Body and head are trained together on the client. Only the body travels; the head stays where it was trained.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import tree
from ..clients import Clients, Sending
from ..method import TrainsByPasses
from ..settings import setting
from ..task import Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class FedPer(TrainsByPasses):
    head_epochs: int = setting(20, "passes over the data of a newcomer, which trains its head, body frozen", low=1)

    # on the client

    def fit(self, home: Home, *, body: Tree) -> Tree:
        before = body | home.memory["head"]
        after = self.local(self.task.loss, before, home.epochs(self.epochs, self.batch))
        home.memory = {"head": tree.pick(after, self.task.head)}
        return tree.without(tree.sub(after, before), self.task.head)

    def arrive(self, home: Home, *, body: Tree) -> Tree:
        batches = home.epochs(self.head_epochs, self.batch)
        head = self.local(lambda head, batch: self.task.loss(body | head, batch), home.memory["head"], batches)
        home.memory = {"head": head}
        return {}

    def predict(self, home: Home, x: Tensor, *, body: Tree) -> Tensor:  # type: ignore[override]
        return self.task.logits(body | home.memory["head"], x)

    def memory(self, generator: torch.Generator) -> Tree:
        return {"head": tree.pick(self.task.model.fresh(generator), self.task.head)}

    # on the server

    def init(self, generator: torch.Generator) -> Tree:
        body = tree.without(self.task.model.fresh(generator), self.task.head)
        return {"body": body, "met": torch.zeros(self.members, dtype=torch.bool)}  # met: who has a trained head

    def round(self, state: Tree, clients: Clients) -> Tree:
        update = clients.run(self.fit, shared={"body": state["body"]})
        ids, met = clients.index, state["met"]
        return {
            "body": tree.add(state["body"], update.mean(by="examples")),
            "met": met.index_copy(0, ids, met[ids] | update.heard),
        }

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        newcomers = clients.only(~torch.isin(clients.ids, state["met"].nonzero()[:, 0].cpu()))
        if len(newcomers):  # latecomers, and members that were never drawn
            newcomers.run(self.arrive, shared={"body": state["body"]})
        return Sending(shared={"body": state["body"]})
