"""Ditto: a common model, and for every client a personal one that is pulled to it. Li et al., ICML 2021.

The common model is FedAvg's and knows nothing of the personal ones. A personal model never leaves its client.
"""

from dataclasses import dataclass

import torch

from .. import learn, rounds, tree
from ..method import Clients, Generator, Home, Sending, TrainsByPasses, Tree, asked_in, setting


@dataclass(frozen=True, kw_only=True)
class Ditto(TrainsByPasses):
    lambda_prox: float = setting(
        1.0, "strength of the pull on a personal model to the common one (lambda)", low=0, sweepable=True
    )
    personal_epochs: int = setting(1, "local passes over the data a round for the personal model", low=1)
    arrive_epochs: int = setting(20, "passes over the data of a client that has no personal model yet", low=1)

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        self.follow(home, params, self.personal_epochs)
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    @asked_in("personalise")
    def arrive(self, home: Home, *, params: Tree) -> Tree:
        self.follow(home, params, self.arrive_epochs)
        return {}

    def follow(self, home: Home, params: Tree, passes: int) -> None:
        """Train the personal model, which begins as the common one, with its pull to the common one as it is now."""
        start = tree.where(home.memory["met"] > 0, home.memory["params"], params)
        near = learn.proximal(self.task.loss, params, self.lambda_prox)
        rounds.keep(home, params=self.local.at(home.round)(near, start, home.epochs(passes, self.batch, "personal")))

    introduce = asked_in("personalise")(rounds.introduce)

    def model(self, home: Home) -> Tree:  # type: ignore[override]
        return home.memory["params"]

    def memory(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator), "met": torch.zeros(())}

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return rounds.average(self.fit, state, clients, by="examples")

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return rounds.welcome(self.introduce, self.arrive, state, clients, then=Sending())
