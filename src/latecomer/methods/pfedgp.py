"""pFedGP: one network embeds everybody's examples, a Gaussian process of each client's own classifies them.

Achituve, Shamsian, Navon, Chechik, Fetaya, NeurIPS 2021. The network is the shared part of a deep kernel and is
averaged as in FedAvg. A client's classifier is a tree of binary Gaussian processes over the classes it has. It has no
weights, it is made of the client's labelled examples: a latecomer needs the network and no training.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from .. import learn, rounds, tree
from ..errors import ModelError
from ..method import Batch, Clients, Generator, Home, Sending, Tensor, TrainsBySteps, Tree, asked_in, made, setting
from ..nets.gp import Kernel
from ..nets.gptree import GPTree, Labelled
from ..nets.net import Net


@dataclass(frozen=True, kw_only=True)
class PFedGP(TrainsBySteps):
    lr: float = setting(5e-2, "local learning rate", above=0, sweepable=True)
    steps: int = setting(1, "local steps a round", low=1)
    batch: int = setting(512, "at most so many examples a step; prediction takes all of a client's", low=2)
    weight_decay: float = setting(1e-3, "local weight decay", low=0, sweepable=True)
    clip: float = setting(50.0, "largest gradient norm; 0: no limit", low=0, sweepable=True)
    embedding: int = setting(84, "size of an embedding: the outputs of the model's last layer", low=1)
    objective: Literal["predictive", "marginal"] = setting(
        "predictive", "what a step raises: the likelihood of held-out labels given the others, or of all labels"
    )
    held_out: float = setting(0.5, "share of each class that is predicted from the rest in a step", above=0, high=0.99)
    gibbs_steps: int = setting(5, "steps of Gibbs sampling", low=1)
    draws: int = setting(20, "chains of Gibbs sampling in training", low=1)
    predict_draws: int = setting(30, "chains of Gibbs sampling when predicting", low=1)
    scale: float = setting(8.0, "variance of the latent function", above=0, sweepable=True)
    length: float = setting(1.0, "length scale of the kernel", above=0, sweepable=True)
    latent_mean: Literal["probability", "log"] = setting(
        "probability", "over the latent value: mean of the probability, or exp of the mean of its log (authors' code)"
    )

    paper = {"split": "pfedhn", "cohort": 5, "rounds": 1000}

    embed: Net = made()
    shapes: Mapping[str, torch.Size] = made()

    def build(self) -> None:
        layer = self.task.model.skeleton.get_submodule(self.task.head[0].rpartition(".")[0])
        if not isinstance(layer, nn.Linear):
            raise ModelError(f"pFedGP needs a model whose last layer is linear; this one's is {type(layer).__name__}.")
        width, bias = layer.in_features, layer.bias is not None
        self.set(embed=Net(lambda: nn.Linear(width, self.embedding, bias=bias)))
        widened = {name: self.embed.shapes[name.rpartition(".")[2]] for name in self.task.head}
        self.set(shapes=self.task.model.shapes | widened)

    @property
    def classifier(self) -> GPTree:
        return GPTree(Kernel(self.scale, self.length), self.task.classes, self.gibbs_steps, self.latent_mean == "log")

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        part = learn.Part(self.local.at(home.round), params)
        size = min(self.batch, len(home.all().y))
        for step in range(self.steps):
            loss = partial(self.loss, home, step)
            (part,) = learn.jointly(loss, [part], home.batches(1, size, f"examples {step}"))
        return tree.sub(part.params, params)

    def loss(self, home: Home, step: int, parts: list[Tree], batch: Batch) -> Tensor:
        mine = self.embedded(parts[0], batch)
        noise = partial(_noise, home, f"step {step}")
        if self.objective == "marginal":
            return self.classifier.marginal_loss(mine, self.draws, noise)
        return self.classifier.predictive_loss(mine, self.held_out, self.draws, noise)

    def model(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        mine = self.embedded(params, home.all())
        return {"params": params} | self.classifier.fit(mine, self.predict_draws, partial(_noise, home, "predict"))

    def logits(self, model: Tree, x: Tensor) -> Tensor:
        new = self.task.model(model["params"], x, also=[self.shapes])
        return self.classifier.log_probability(model, new).to(new.dtype)

    def workspace(self, examples: int) -> int:
        """A covariance in double precision for every chain, and what a step's gradient needs again."""
        return 8 * 8 * max(self.draws, self.predict_draws) * examples**2

    def embedded(self, params: Tree, batch: Batch) -> Labelled:
        return Labelled(self.task.model(params, batch.x, also=[self.shapes]), batch.y.clamp(min=0), batch.weight > 0)

    # on the server

    def init(self, generator: Generator) -> Tree:
        params = self.task.model.fresh(generator)
        fresh = self.embed.fresh(generator)  # instead of the last layer, one that embeds
        return {"params": params | {name: fresh[name.rpartition(".")[2]] for name in self.task.head}}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return rounds.average(self.fit, state, clients, by="clients")

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return Sending(shared=state)


def _noise(home: Home, use: str, size: int, purpose: str) -> Tensor:
    return home.noise(size, f"{use} {purpose}")
