"""FedRep: learn the head first, then the common body for it. Collins et al., ICML 2021, Algorithm 1.

Many cheap steps fit a client's own head to the common body, then a few fit the body to it. Only the body travels.
"""

from dataclasses import dataclass

from .. import rounds, tree
from ..method import Clients, Generator, Home, Sending, TrainsBySGD, Tree, asked_in, setting


@dataclass(frozen=True, kw_only=True)
class FedRep(TrainsBySGD):
    head_epochs: int = setting(5, "local passes over the data a round that train the head, body fixed", low=1)
    body_epochs: int = setting(1, "local passes over the data a round that train the body, head fixed", low=1)
    momentum: float = setting(0.5, "local momentum, within a phase", low=0, high=0.999, sweepable=True)
    novel_epochs: int = setting(20, "passes over the data of a newcomer, which trains its head, body fixed", low=1)

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, body: Tree) -> Tree:
        rounds.fit_head(self, home, body, home.epochs(self.head_epochs, self.batch, "head"))
        head, batches = home.memory["head"], home.epochs(self.body_epochs, self.batch, "body")
        return self.local.at(home.round).change(lambda body, batch: self.task.loss(body | head, batch), body, batches)

    @asked_in("personalise")
    def arrive(self, home: Home, *, body: Tree) -> Tree:
        return rounds.fit_head(self, home, body, home.epochs(self.novel_epochs, self.batch, "head"))

    introduce, memory = asked_in("personalise")(rounds.introduce), rounds.head_memory

    def model(self, home: Home, *, body: Tree) -> Tree:  # type: ignore[override]
        return body | home.memory["head"]

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"body": tree.without(self.task.model.fresh(generator), self.task.head)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return rounds.average(self.fit, state, clients, by="clients")

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return rounds.welcome(self.introduce, self.arrive, state, clients, then=Sending(shared=state))
