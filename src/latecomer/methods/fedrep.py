"""FedRep: learn the head first, then the common body for it. Collins et al., ICML 2021, Algorithm 1.

Many cheap steps fit a client's own head to the common body, then a few fit the body to it. Only the body travels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import learn, tree
from ..clients import Clients, Sending
from ..method import Method, made
from ..settings import setting
from ..task import Batches, Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class FedRep(Method):
    lr: float = setting(0.05, "local learning rate, of head and body", above=0)
    head_epochs: int = setting(5, "local passes over the data a round that train the head, body fixed", low=1)
    body_epochs: int = setting(1, "local passes over the data a round that train the body, head fixed", low=1)
    batch: int = setting(32, "examples a batch", low=1)
    momentum: float = setting(0.5, "local momentum, within a phase", low=0, high=0.999)
    weight_decay: float = setting(0.0, "local weight decay", low=0)
    clip: float = setting(0.0, "largest gradient norm in local training; 0: no limit", low=0)
    novel_epochs: int = setting(20, "passes over the data of a newcomer, which trains its head, body fixed", low=1)

    local: learn.SGD = made()

    def build(self) -> None:
        self.set(local=learn.SGD(self.lr, self.momentum, self.weight_decay, self.clip))

    # on the client

    def fit(self, home: Home, *, body: Tree) -> Tree:
        head = self.fit_head(home, body, home.epochs(self.head_epochs, self.batch, "head"))
        batches = home.epochs(self.body_epochs, self.batch, "body")
        return self.local.change(lambda body, batch: self.task.loss(body | head, batch), body, batches)

    def arrive(self, home: Home, *, body: Tree) -> Tree:
        self.fit_head(home, body, home.epochs(self.novel_epochs, self.batch, "head"))
        return {}

    def fit_head(self, home: Home, body: Tree, batches: Batches) -> Tree:
        head = self.local(lambda head, batch: self.task.loss(body | head, batch), home.memory["head"], batches)
        home.memory = {"head": head}
        return head

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
            "body": tree.add(state["body"], update.mean()),
            "met": met.index_copy(0, ids, met[ids] | update.heard),
        }

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        newcomers = clients.only(~torch.isin(clients.ids, state["met"].nonzero()[:, 0].cpu()))
        if len(newcomers):  # latecomers, and members that were never drawn
            newcomers.run(self.arrive, shared={"body": state["body"]})
        return Sending(shared={"body": state["body"]})
