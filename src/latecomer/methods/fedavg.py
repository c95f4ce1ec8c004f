"""FedAvg: one model for all. McMahan et al., AISTATS 2017, Algorithm 1."""

from dataclasses import dataclass

from .. import rounds
from ..method import Clients, Generator, Home, Sending, TrainsByPasses, Tree, asked_in


@dataclass(frozen=True, kw_only=True)
class FedAvg(TrainsByPasses):
    needs_labels = False  # a latecomer takes the common model as it is

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    def model(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        return params

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return rounds.average(self.fit, state, clients, by="examples")

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return Sending(shared=state)
