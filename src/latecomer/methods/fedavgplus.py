"""FedAvg+: one model for all, then every client fine-tunes it. Jiang et al., arXiv 2019, as compared with kNN-Per."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import learn, tree
from ..clients import Clients, Sending
from ..method import TrainsByPasses, made
from ..settings import setting
from ..task import Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class FedAvgPlus(TrainsByPasses):
    tune_epochs: int = setting(5, "passes over the data in fine-tuning", low=1)
    tune_lr: float = setting(0.01, "learning rate of fine-tuning", above=0)

    tuning: learn.SGD = made()

    def build(self) -> None:
        super().build()
        self.set(tuning=learn.SGD(self.tune_lr, self.momentum, self.weight_decay, self.clip))

    # on the client

    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    def tune(self, home: Home, *, params: Tree) -> Tree:
        tuned = self.tuning(self.task.loss, params, home.epochs(self.tune_epochs, self.batch, "tune"))
        home.memory = {"params": tuned}
        return {}

    def predict(self, home: Home, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.task.logits(home.memory["params"], x)

    def memory(self, generator: torch.Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}  # a place for tuned weights; never used as it is

    # on the server

    def init(self, generator: torch.Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        update = clients.mean(self.fit, shared=state, by="examples")
        return {"params": tree.add(state["params"], update)}

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        clients.run(self.tune, shared=state)
        return Sending()
