"""LG-FedAvg: a personal body, a common head. Liang et al., 2020 (arXiv:2001.01523).

Local and global: after some rounds of FedAvg every client keeps a body of its own and only the head is averaged.
"""

from dataclasses import dataclass

import torch

from .. import tree
from ..method import Clients, Generator, Home, Sending, TrainsByPasses, Tree, asked_in, setting


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(TrainsByPasses):
    warmup: int = setting(1000, "first rounds of plain FedAvg, before bodies become personal", low=0)
    body_epochs: int = setting(5, "passes over the data of a latecomer, which trains its body, head fixed", low=1)

    opening = {"warmup": "plain FedAvg"}

    # on the client

    @asked_in("round", answers="averaged")
    def warm(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        before = self.model(home, params=params)
        after = self.local.at(home.round)(self.task.loss, before, home.epochs(self.epochs, self.batch))
        self.keep(home, tree.without(after, self.task.head))
        return tree.pick(tree.sub(after, before), self.task.head)

    @asked_in("personalise")
    def arrive(self, home: Home, *, params: Tree) -> Tree:
        body, head = tree.without(params, self.task.head), tree.pick(params, self.task.head)
        batches = home.epochs(self.body_epochs, self.batch)
        self.keep(
            home, self.local.at(home.round)(lambda body, batch: self.task.loss(body | head, batch), body, batches)
        )
        return {}

    def model(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        """The common head with the client's own body; with the common body, as long as it has none."""
        common = tree.without(params, self.task.head)
        return params | tree.where(home.memory["has"] > 0, home.memory["body"], common)

    def keep(self, home: Home, body: Tree) -> None:
        home.memory = {"body": body, "has": torch.ones_like(home.memory["has"])}

    def memory(self, generator: Generator) -> Tree:
        body = tree.without(self.task.model.fresh(generator), self.task.head)
        return {"body": body, "has": torch.zeros(())}  # has: whether this body is one that the client has trained

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        step = self.warm if clients.round < self.warmup else self.fit
        update = clients.mean(step, shared=state, by="examples")  # of the whole model; then of the head alone
        return {"params": state["params"] | tree.add(tree.pick(state["params"], update), update)}

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        late = clients.only(clients.ids >= self.members)
        if len(late):
            late.run(self.arrive, shared=state)
        return Sending(shared=state)
