"""kNN-Per: one model for all, and at every client a vote of its own nearest examples. Marfoq et al., ICML 2022.

Algorithm 1. The model is trained by FedAvg. Then a client keeps the features of its own examples in a datastore; to
predict, it blends the model's probabilities with a vote of the nearest neighbours there. Only FedAvg's model travels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..method import AveragesOneModel, TrainsByPasses
from ..nets.neighbours import Datastore
from ..settings import setting
from ..task import Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class KnnPer(AveragesOneModel, TrainsByPasses):
    neighbours: int = setting(10, "nearest examples that vote (k)", low=1)
    sigma: float = setting(1.0, "scale of distances: the nearer an example, the more its vote counts", above=0)
    blends: tuple[float, ...] = setting(
        (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0),
        "weights of the vote (lambda) that a client tries on validation data",
        low=0,
        high=1,
    )
    capacity: float = setting(
        1.0, "share of its training examples that a client keeps in the datastore", above=0, high=1
    )

    # on the client

    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    def predict(self, home: Home, x: Tensor, *, params: Tree) -> Tensor:  # type: ignore[override]
        store = self.datastore(home, params)
        return self.blended(store, params, x, self.best_blend(home, store, params)).clamp(min=1e-12).log()

    def datastore(self, home: Home, params: Tree) -> Datastore:
        """Equation 3: the features of the client's examples, and their labels."""
        mine = home.batch(len(home.all().y), "datastore")  # all of them, in random order
        kept = torch.arange(len(mine.y), device=mine.y.device) < self.capacity * mine.real.sum()
        features, _ = self.task.model.features(params, mine.x)
        return Datastore(features, mine.y, (mine.weight > 0) & kept, self.task.classes)

    def blended(self, store: Datastore, params: Tree, x: Tensor, blend: Tensor) -> Tensor:
        """Equation 7: probabilities, not logits, are blended; one row of `blend` is one answer."""
        features, logits = self.task.model.features(params, x)
        vote = store.vote(features, self.neighbours, self.sigma)
        return blend * vote + (1 - blend) * logits.softmax(-1)

    def best_blend(self, home: Home, store: Datastore, params: Tree) -> Tensor:
        """The weight of the vote that gets most validation examples right; the smallest of equals."""
        held = home.all("val")
        tried = torch.tensor(self.blends, device=held.x.device, dtype=held.x.dtype)
        answers = self.blended(store, params, held.x, tried[:, None, None]).argmax(-1)  # [blends, examples]
        right = ((answers == held.y) * held.weight).sum(-1)
        return torch.where(store.known.any(), tried[right.argmax(0, keepdim=True)][0], 0.0)

    # on the server

    by = "examples"  # rounds are FedAvg's (AveragesOneModel); a client is sent the common model
