"""FedAvg: one model for all. McMahan et al., AISTATS 2017, Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..method import AveragesOneModel, TrainsByPasses, asked_in
from ..task import Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class FedAvg(AveragesOneModel, TrainsByPasses):
    needs_labels = False  # a latecomer takes the common model as it is

    # on the client

    @asked_in("round")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    def predict(self, home: Home, x: Tensor, *, params: Tree) -> Tensor:  # type: ignore[override]
        return self.task.logits(params, x)

    # on the server

    by = "examples"  # a round adds the mean of the changes to the common model, so weighed (AveragesOneModel)
