"""LD-FedAvg: FedAvg in a random subspace of the weights, the baseline that FLowDUP's paper calls by this name.

One model for all, theta_0 + P v. Its place v in the subspace is averaged like FedAvg's weights and is all that travels;
theta_0 and P follow from a seed on both sides.
"""

from dataclasses import dataclass

import torch

from .. import tree
from ..method import Clients, Generator, Home, InSubspace, Sending, Tensor, Tree, asked_in, setting


@dataclass(frozen=True, kw_only=True)
class LDFedAvg(InSubspace):
    lr: float = setting(1.0, "local learning rate, of v", above=0, sweepable=True)
    batch: int = setting(50, "examples a batch", low=1)

    paper = {"cohort": 100, "rounds": 1000}
    needs_labels = False  # a latecomer takes the common model as it is

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, v: Tensor) -> Tree:
        f = self.space.on(v.device)
        return self.local.at(home.round).change(
            lambda at, batch: self.task.loss(f(at["v"]), batch), {"v": v}, home.epochs(self.epochs, self.batch)
        )

    def model(self, home: Home, *, v: Tensor) -> Tree:  # type: ignore[override]
        return self.space.on(v.device)(v)

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"v": torch.zeros(self.space.size)}  # theta_0, which the net drew like any first weights

    def round(self, state: Tree, clients: Clients) -> Tree:
        return tree.add(state, clients.mean(self.fit, shared=state, by="examples"))

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return Sending(shared=state)
