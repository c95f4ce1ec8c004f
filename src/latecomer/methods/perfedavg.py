"""Per-FedAvg: one model from which few steps lead to every client's own. Fallah et al., NeurIPS 2020."""

from dataclasses import dataclass
from typing import Literal

from .. import learn, rounds, tree
from ..method import Clients, Generator, Home, Method, Sending, Tree, asked_in, setting


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Method):
    variant: Literal["first", "hessian-free"] = setting(
        "first", "how the second derivative is dealt with: left out, or taken from a difference of gradients"
    )
    inner_lr: float = setting(
        0.01, "learning rate of a client that adapts the common model (alpha)", above=0, sweepable=True
    )
    outer_lr: float = setting(0.05, "learning rate of the common model (beta)", above=0, sweepable=True)
    delta: float = setting(
        1e-3, "hessian-free: how far along the gradient the differences are taken", above=0, sweepable=True
    )
    epochs: int = setting(1, "local passes over the data a round", low=1)
    batch: int = setting(32, "examples in each of the two or three batches of a local step", low=1)
    adapt_epochs: int = setting(1, "passes over the data of a client that adapts the common model for its use", low=1)
    adapt_steps: int = setting(0, "gradient steps instead of passes (the paper: 1); 0: passes", low=0)

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        gradient = learn.flat_gradient(self.task.loss, params)  # zero where a batch is nothing but padding
        start = weights = tree.ravel(params)
        rate = self.outer_lr * self.schedule.factor(home.round)
        purposes = ("inner", "outer", "curvature")  # independent batches: the paper's D, D' and D''
        drawn = [home.epochs(self.epochs, self.batch, purpose) for purpose in purposes]
        for inner, outer, curvature in zip(*drawn, strict=True):
            adapted = weights - self.inner_lr * gradient(weights, inner)
            direction = gradient(adapted, outer)
            if self.variant == "hessian-free":
                step = self.delta * direction
                bend = (gradient(weights + step, curvature) - gradient(weights - step, curvature)) / (2 * self.delta)
                direction = direction - self.inner_lr * bend
            weights = weights - rate * direction
        return tree.unravel(weights - start, params)

    @asked_in("personalise")
    def adapt(self, home: Home, *, params: Tree) -> Tree:
        if self.adapt_steps:
            batches = home.batches(self.adapt_steps, self.batch, "adapt")
        else:
            batches = home.epochs(self.adapt_epochs, self.batch, "adapt")
        home.memory = {"params": learn.SGD(self.inner_lr)(self.task.loss, params, batches)}
        return {}

    def model(self, home: Home) -> Tree:  # type: ignore[override]
        return home.memory["params"]

    def memory(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return rounds.average(self.fit, state, clients, by="clients")

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        clients.run(self.adapt, shared=state)
        return Sending()
