"""FedProx: FedAvg whose clients are held near the common model. Li et al., MLSys 2020, Algorithm 2."""

from dataclasses import dataclass

import torch

from .. import learn, tree
from ..method import Clients, Generator, Home, Sending, Tensor, TrainsByPasses, Tree, asked_in, setting

STEP, PATIENCE = 0.1, 5  # the paper's: mu grows or shrinks by 0.1, and shrinks after 5 rounds of falling loss


@dataclass(frozen=True, kw_only=True)
class FedProx(TrainsByPasses):
    mu: float = setting(
        1.0, "strength of the proximal term mu/2 |w - w_t|^2; where it begins, if adaptive", low=0, sweepable=True
    )
    adaptive: bool = setting(True, "let mu grow when the training loss rises and shrink when it keeps falling")

    needs_labels = False  # a latecomer takes the common model as it is

    # on the client

    @asked_in("round", answers="change")
    def fit(self, home: Home, *, params: Tree, mu: Tensor) -> Tree:
        near = learn.proximal(self.task.loss, params, mu)
        change = self.local.at(home.round).change(near, params, home.epochs(self.epochs, self.batch))
        return {"change": change, "loss": self.task.loss(params, home.all())}

    def model(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        return params

    # on the server

    def init(self, generator: Generator) -> Tree:
        history = {"loss": torch.zeros(()), "falls": torch.zeros(())}
        return {"params": self.task.model.fresh(generator), "mu": torch.tensor(self.mu), "history": history}

    def round(self, state: Tree, clients: Clients) -> Tree:
        params, mu = state["params"], state["mu"]
        update = clients.run(self.fit, shared={"params": params, "mu": mu}).mean(by="examples")
        history = state["history"]
        if self.adaptive:
            mu, history = self.adapt(mu, history, update["loss"])
        return {"params": tree.add(params, update["change"]), "mu": mu, "history": history}

    def adapt(self, mu: Tensor, history: Tree, loss: Tensor) -> tuple[Tensor, Tree]:
        """The heuristic of section 5.3.2. A loss of zero is none: there was no round before, or nobody answered."""
        before, falls = history["loss"], history["falls"]
        comparable = (before > 0) & (loss > 0)
        rises, sinks = comparable & (loss > before), comparable & (loss < before)
        falls = torch.where(sinks, falls + 1, torch.where(rises, 0.0, falls))
        enough = falls >= PATIENCE
        mu = (mu + STEP * (rises.to(mu.dtype) - enough.to(mu.dtype))).clamp(min=0)
        return mu, {"loss": torch.where(loss > 0, loss, before), "falls": torch.where(enough, 0.0, falls)}

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return Sending(shared={"params": state["params"]})
