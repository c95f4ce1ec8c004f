"""FedAvg+: one model for all, then every client fine-tunes it. Jiang et al., arXiv 2019, as compared with kNN-Per."""

from dataclasses import dataclass

from .. import learn, rounds
from ..method import Clients, Generator, Home, Sending, TrainsByPasses, Tree, asked_in, setting


@dataclass(frozen=True, kw_only=True)
class FedAvgPlus(TrainsByPasses):
    tune_epochs: int = setting(5, "passes over the data in fine-tuning", low=1)
    tune_lr: float = setting(0.01, "learning rate of fine-tuning", above=0, sweepable=True)

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    @asked_in("personalise")
    def tune(self, home: Home, *, params: Tree) -> Tree:
        tuning = learn.SGD(self.tune_lr, self.momentum, self.weight_decay, self.clip)
        home.memory = {"params": tuning(self.task.loss, params, home.epochs(self.tune_epochs, self.batch, "tune"))}
        return {}

    def model(self, home: Home) -> Tree:  # type: ignore[override]
        return home.memory["params"]

    def memory(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return rounds.average(self.fit, state, clients, by="examples")

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        clients.run(self.tune, shared=state)
        return Sending()
