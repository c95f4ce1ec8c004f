"""FedU: personal models, drawn towards each other by a graph's Laplacian. Dinh et al., 2021 (arXiv:2102.07148).

The server keeps a model for every member. Clients train their own, then the server moves the models of the round
towards each other, along the edges of a graph that says how alike two clients are.
"""

from dataclasses import dataclass
from functools import partial

import torch

from .. import rounds, tree
from ..method import Clients, Generator, Home, Sending, Tensor, TrainsByPasses, Tree, asked_in, setting
from ..ops.upload import upload


@dataclass(frozen=True, kw_only=True)
class FedU(TrainsByPasses):
    mu: float = setting(0.1, "how strongly models are drawn towards each other; 0: not at all", low=0, sweepable=True)
    novel_epochs: int = setting(5, "passes over the data of a newcomer, from the mean of the models", low=1)

    needs_labels = False  # without them a latecomer stays at the mean of the members' models

    # on the client

    @asked_in("round", answers="change")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    @asked_in("personalise")
    def arrive(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.novel_epochs, self.batch))

    def model(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        return params

    # on the server

    def similarity(self, ids: Tensor) -> Tensor:
        """How alike these clients are, each with each (a_kl). A graph that is known beforehand overrides this."""
        return torch.ones(len(ids), len(ids), device=ids.device)

    def init(self, generator: Generator) -> Tree:
        fresh = self.task.model.fresh(generator)
        return {
            "models": tree.map(lambda leaf: leaf.expand(self.members, *leaf.shape).clone(), fresh),
            "met": torch.zeros(self.members, dtype=torch.bool),  # whose model was ever trained
        }

    def carry_over(self, state: Tree, fresh: Tree, origin: Tensor) -> Tree:
        """New members begin with the mean of the models that were trained."""
        models = tree.map(partial(rounds.rows_of, origin), state["models"], self.mean_model(state))
        return {"models": models, "met": rounds.rows_of(origin, state["met"])}

    def round(self, state: Tree, clients: Clients) -> Tree:
        ids, met = clients.index, state["met"]
        before = tree.row(state["models"], ids)
        update = clients.run(self.fit, each={"params": before})
        edges = self.similarity(ids) * update.heard * update.heard[:, None]  # among those that answered
        rate = self.mu * self.lr * self.schedule.factor(clients.round)
        after = self.draw_together(tree.add(before, update.each), edges, rate)
        return {
            "models": tree.map(lambda table, rows: table.index_copy(0, ids, rows), state["models"], after),
            "met": met.index_copy(0, ids, met[ids] | update.heard),
        }

    def draw_together(self, models: Tree, edges: Tensor, most: float | Tensor) -> Tree:
        """w_k - mu eta sum_l a_kl (w_k - w_l); never further than to the mean of the neighbours."""
        degree = edges.sum(1)
        rate = (1 / degree.clamp(min=1e-12)).clamp(max=most)
        laplacian = degree.diag() - edges
        return tree.map(lambda w: w - torch.tensordot((rate[:, None] * laplacian).to(w.dtype), w, dims=1), models)

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        new = ~torch.isin(clients.ids, state["met"].nonzero()[:, 0].cpu())
        params = tree.row(state["models"], clients.index.clamp(max=self.members - 1))
        if new.any():  # latecomers, and members that were never drawn
            mean = self.mean_model(state)
            own = tree.add(mean, clients.only(new).run(self.arrive, shared={"params": mean}).each)
            rows = upload(new.nonzero()[:, 0], clients.engine.device)
            params = tree.map(lambda leaf, novel: leaf.index_copy(0, rows, novel), params, own)
        return Sending(each={"params": params})

    def mean_model(self, state: Tree) -> Tree:
        """Over the models that were trained; before any was, all are the same."""
        counts = torch.where(state["met"].any(), state["met"], True)
        return tree.map(
            lambda leaf: torch.tensordot(counts.to(leaf.dtype), leaf, dims=1) / counts.sum(), state["models"]
        )
