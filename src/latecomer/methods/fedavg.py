"""FedAvg: one model for all. McMahan et al., AISTATS 2017, Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import learn, tree
from ..clients import Clients, Sending
from ..method import Method, made
from ..settings import setting
from ..task import Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    lr: float = setting(0.05, "local learning rate", above=0)
    epochs: int = setting(1, "local passes over the data a round", low=1)
    batch: int = setting(32, "examples a batch", low=1)
    momentum: float = setting(0.0, "local momentum", low=0, high=0.999)
    weight_decay: float = setting(0.0, "local weight decay", low=0)
    clip: float = setting(0.0, "largest gradient norm in local training; 0: no limit", low=0)

    needs_labels = False  # a latecomer takes the common model as it is

    local: learn.SGD = made()

    def build(self) -> None:
        self.set(local=learn.SGD(self.lr, self.momentum, self.weight_decay, self.clip))

    # on the client

    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    def predict(self, home: Home, x: Tensor, *, params: Tree) -> Tensor:  # type: ignore[override]
        return self.task.logits(params, x)

    # on the server

    def init(self, generator: torch.Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        update = clients.mean(self.fit, shared=state, by="examples")
        return {"params": tree.add(state["params"], update)}

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return Sending(shared=state)
