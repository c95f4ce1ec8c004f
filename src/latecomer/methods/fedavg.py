"""FedAvg: one model for all. McMahan et al., AISTATS 2017, Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import tree
from ..clients import Clients, Sending
from ..method import TrainsByPasses
from ..task import Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class FedAvg(TrainsByPasses):
    needs_labels = False  # a latecomer takes the common model as it is

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
