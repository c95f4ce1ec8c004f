"""FedAvg+: one model for all, then every client fine-tunes it. Jiang et al., arXiv 2019, as compared with kNN-Per."""

from __future__ import annotations

from dataclasses import dataclass

from .. import learn
from ..clients import Clients, Sending
from ..method import AveragesOneModel, KeepsOwnModel, TrainsByPasses, asked_in
from ..settings import setting
from ..task import Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class FedAvgPlus(KeepsOwnModel, AveragesOneModel, TrainsByPasses):
    tune_epochs: int = setting(5, "passes over the data in fine-tuning", low=1)
    tune_lr: float = setting(0.01, "learning rate of fine-tuning", above=0, sweepable=True)

    # on the client

    @asked_in("round")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    @asked_in("personalise")
    def tune(self, home: Home, *, params: Tree) -> Tree:
        tuning = learn.SGD(self.tune_lr, self.momentum, self.weight_decay, self.clip)
        tuned = tuning(self.task.loss, params, home.epochs(self.tune_epochs, self.batch, "tune"))
        home.memory = {"params": tuned}
        return {}

    # on the server

    by = "examples"  # rounds are FedAvg's (AveragesOneModel)

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        clients.run(self.tune, shared=state)
        return Sending()
