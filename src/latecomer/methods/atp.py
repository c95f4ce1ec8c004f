"""ATP: a common model, and learned rates at which a client without labels adapts each of its tensors.

Bao, Wei, Wang, He, NeurIPS 2023. To adapt is to step down the entropy of one's own predictions; labelled members learn
how far each tensor should go (or back: rates may be negative). A latecomer needs no labels.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from .. import learn, rounds, tree
from ..method import Batch, Clients, Generator, Home, Sending, TrainsByPasses, Tree, asked_in, setting


@dataclass(frozen=True, kw_only=True)
class ATP(TrainsByPasses):
    warmup: int = setting(
        200, "first rounds of plain FedAvg; then the model is left alone and rates are learned", low=0
    )
    rate_lr: float = setting(0.1, "learning rate of the adaptation rates", above=0, sweepable=True)
    learn_on: Literal["train", "val"] = setting(
        "train", "members learn rates on batches of their training data, or on their validation data (authors' code)"
    )
    adapt_to: Literal["online", "batch"] = setting(
        "online", "a client adapts to all its batches and keeps the mean of the models, or to one batch"
    )

    needs_labels = False
    paper = {"rounds": 600}
    opening = {"warmup": "plain FedAvg"}

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    @asked_in("round", answers="change")
    def refine(self, home: Home, *, params: Tree, rates: Tree) -> Tree:
        """What this client would add to the rates; nothing, if it has no labels."""
        start = rates
        passes: Iterable[Batch] = home.epochs(1, self.batch, "refine")
        for batch in passes if self.learn_on == "train" else [home.all("val")]:
            direction = learn.gradient(self.task.entropy, params, batch)  # always from the common model
            gradient = learn.gradient(self.task.loss, moved(params, rates, direction), batch)
            # -d loss / d rate, scaled
            gain = tree.map(lambda g, h: (g * h).sum() / g.numel() ** 0.5, gradient, direction)
            rates = tree.add(rates, tree.scale(gain, self.rate_lr * self.schedule.factor(home.round)))
        return tree.sub(rates, start)

    @asked_in("personalise")
    def adapt(self, home: Home, *, params: Tree, rates: Tree) -> Tree:
        passes: Iterable[Batch] = home.epochs(1, self.batch, "adapt")
        batches = passes if self.adapt_to == "online" else [home.batch(self.batch, "adapt")]
        direction = learn.mean_gradient(self.task.entropy, params, batches)  # mean of models: model of the mean
        home.memory = {"params": moved(params, rates, direction)}
        return {}

    def model(self, home: Home) -> Tree:  # type: ignore[override]
        return home.memory["params"]

    def memory(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    # on the server

    def init(self, generator: Generator) -> Tree:
        params = self.task.model.fresh(generator)
        return {"params": params, "rates": tree.map(lambda _: torch.zeros(()), params)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        if clients.round < self.warmup:
            return state | rounds.average(self.fit, {"params": state["params"]}, clients, by="examples")
        learned = clients.run(self.refine, shared=state)
        teachers = (learned.weight > 0).sum().clamp(min=1)  # the mean is over those that have labels
        return state | {"rates": tree.map(lambda r, total: r + total / teachers, state["rates"], learned.sum())}

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        clients.run(self.adapt, shared=state)
        return Sending()


def moved(params: Tree, rates: Tree, direction: Tree) -> Tree:
    """Every tensor, one step of its own rate against the direction."""
    return tree.map(lambda w, rate, d: w - rate * d, params, rates, direction)
