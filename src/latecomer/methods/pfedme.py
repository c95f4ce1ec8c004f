"""pFedMe: personal models by Moreau envelopes around a common one. Dinh et al., NeurIPS 2020, Algorithm 1.

For every batch a client finds the personal model theta that minimises its loss plus lambda/2 |theta - w|^2, and draws
its copy w of the common model towards it. The copy goes back to the server; the personal model never leaves.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from .. import learn, rounds, tree
from ..method import Batches, Clients, Generator, Home, Method, Sending, Tensor, Tree, asked_in, setting


@dataclass(frozen=True, kw_only=True)
class PFedMe(Method):
    lambda_prox: float = setting(
        15.0, "strength of the pull on a personal model to the common one (lambda)", above=0, sweepable=True
    )
    lr: float = setting(0.05, "learning rate of a client's copy of the common model (eta)", above=0, sweepable=True)
    inner_lr: float = setting(0.05, "learning rate of the personal model", above=0, sweepable=True)
    inner_steps: int = setting(3, "gradient steps of the personal model on every batch (K)", low=1)
    steps: int = setting(20, "local batches a round (R)", low=1)
    batch: int = setting(32, "examples a batch", low=1)
    beta: float = setting(1.0, "how far the server goes towards the mean of the clients", above=0, sweepable=True)
    arrive_epochs: int = setting(20, "passes over the data of a client that has no personal model yet", low=1)
    arrive_around: Literal["copy", "common"] = setting(
        "copy",
        "what holds that client's model: a copy of the common one, drawn along as in training, or the common one",
    )

    @property
    def inner(self) -> learn.SGD:
        return learn.SGD(self.inner_lr)

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        rate = self.lr * self.schedule.factor(home.round)
        copy, theta = self.drawn(params, home.batches(self.steps, self.batch), rate)
        rounds.keep(home, params=theta)
        return tree.sub(copy, params)

    @asked_in("personalise")
    def arrive(self, home: Home, *, params: Tree) -> Tree:
        passes = home.epochs(self.arrive_epochs, self.batch, "arrive")
        alone = self.arrive_around == "common"
        theta = self.inner(self.near(params), params, passes) if alone else self.drawn(params, passes, self.lr)[1]
        rounds.keep(home, params=theta)
        return {}

    introduce = asked_in("personalise")(rounds.introduce)

    def model(self, home: Home) -> Tree:  # type: ignore[override]
        return home.memory["params"]

    def memory(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator), "met": torch.zeros(())}

    def drawn(self, params: Tree, batches: Batches, rate: float | Tensor) -> tuple[Tree, Tree]:
        """A copy of the common model, drawn along by the personal models theta of its batches, and the last theta."""
        copy = theta = params
        for batch in batches:
            theta = self.inner(self.near(copy), theta, [batch] * self.inner_steps)
            after = tree.map(lambda w, t: w - rate * self.lambda_prox * (w - t), copy, theta)
            copy = tree.where(batch.weight.any(), after, copy)  # without labels there is no theta to go to
        return copy, theta

    def near(self, params: Tree) -> learn.Loss:
        return learn.proximal(self.task.loss, params, self.lambda_prox)

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        update = clients.mean(self.fit, shared=state)  # (1 - beta) w + beta times the mean of the clients' copies
        return {"params": tree.add(state["params"], tree.scale(update, self.beta))}

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return rounds.welcome(self.introduce, self.arrive, state, clients, then=Sending())
