"""APFL: every client mixes the weights of a personal model with the common ones. Deng et al., arXiv 2020, Algorithm 1.

The mixture, alpha times the personal weights plus 1 - alpha times the common ones, is what the personal weights are
trained for and what predicts. Personal weights and alpha never leave their client.
"""

from dataclasses import dataclass

import torch

from .. import learn, rounds, tree
from ..method import Batch, Clients, Generator, Home, Sending, Tensor, TrainsByPasses, Tree, asked_in, setting


@dataclass(frozen=True, kw_only=True)
class APFL(TrainsByPasses):
    mix: float = setting(
        0.5,
        "share of the personal weights in the mixture (alpha); where it begins, if adaptive",
        low=0,
        high=1,
        sweepable=True,
    )
    adaptive: bool = setting(False, "let every client learn its own share, by one gradient step a round")
    arrive_epochs: int = setting(20, "passes over the data of a client that has no personal weights yet", low=1)

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        own = tree.where(home.memory["met"] > 0, home.memory["params"], params)
        share = home.memory["mix"]
        if self.adaptive:
            share = self.better_share(own, params, share, home.batch(self.batch, "mix"), self.local.at(home.round).lr)

        def loss(parts: list[Tree], batch: Batch) -> Tensor:
            common, own = parts
            fixed = tree.detach(common)  # the mixture trains the personal weights only
            return self.task.loss(common, batch) + self.task.loss(mixture(own, fixed, share), batch)

        local = self.local.at(home.round)
        begin = [learn.Part(local, params), learn.Part(local, own)]
        common, personal = learn.jointly(loss, begin, home.epochs(self.epochs, self.batch))
        rounds.keep(home, params=personal.params, mix=share)
        return tree.sub(common.params, params)

    @asked_in("personalise")
    def arrive(self, home: Home, *, params: Tree) -> Tree:
        share = home.memory["mix"]

        def loss(own: Tree, batch: Batch) -> Tensor:
            return self.task.loss(mixture(own, params, share), batch)

        own = self.local.at(home.round)(loss, params, home.epochs(self.arrive_epochs, self.batch, "arrive"))
        rounds.keep(home, params=own, mix=share)
        return {}

    introduce = asked_in("personalise")(rounds.introduce)

    def model(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        return mixture(home.memory["params"], params, home.memory["mix"])

    def better_share(self, own: Tree, params: Tree, share: Tensor, batch: Batch, lr: float | Tensor) -> Tensor:
        """A gradient step of the share, which stays between 0 and 1."""
        _, back = learn.pullback(lambda share: self.task.loss(mixture(own, params, share), batch), share)
        (gradient,) = back(torch.ones_like(share))
        better: Tensor = (share - lr * gradient).clamp(0, 1)
        return better

    def memory(self, generator: Generator) -> Tree:
        params = self.task.model.fresh(generator)
        return {"params": params, "mix": torch.tensor(self.mix), "met": torch.zeros(())}

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return rounds.average(self.fit, state, clients, by="clients")

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return rounds.welcome(self.introduce, self.arrive, state, clients, then=Sending(shared=state))


def mixture(own: Tree, common: Tree, share: Tensor) -> Tree:
    return tree.map(lambda v, w: share * v + (1 - share) * w, own, common)
