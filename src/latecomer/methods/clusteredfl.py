"""ClusteredFL: one model for each cluster of like-minded clients. Sattler et al., 2020 (arXiv:1910.01991).

All begin in one cluster. Where a cluster as a whole stands still while single clients still pull, it is parted in two
by the directions in which they pull.
"""

from dataclasses import dataclass

import torch
from sklearn.cluster import AgglomerativeClustering

from .. import rounds, tree
from ..method import Clients, Generator, Home, Sending, Tensor, TrainsByPasses, Tree, asked_in, setting
from ..ops.upload import upload
from ..replies import Replies
from ..task import one_hot


@dataclass(frozen=True, kw_only=True)
class ClusteredFL(TrainsByPasses):
    eps1: float = setting(0.05, "a cluster whose mean update is shorter than this stands still", low=0, sweepable=True)
    eps2: float = setting(0.1, "a client whose update is longer than this still pulls", low=0, sweepable=True)
    clusters: int = setting(8, "largest number of clusters", low=1)

    needs_labels = False  # a latecomer without labels takes the model of the largest cluster

    # on the client

    @asked_in("round", answers="change")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    @asked_in("personalise")
    def judge(self, home: Home, *, models: Tree) -> Tree:
        """How well each model fits, and whether the client has a label to tell by."""
        batch = home.all()
        losses = [self.task.loss(tree.row(models, k), batch) for k in range(self.clusters)]
        return {"loss": torch.stack(losses), "labelled": batch.weight.sum().clamp(max=1)}

    def model(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        return params

    # on the server

    def init(self, generator: Generator) -> Tree:
        fresh = self.task.model.fresh(generator)
        return {
            "models": tree.map(lambda leaf: leaf.expand(self.clusters, *leaf.shape).clone(), fresh),
            "cluster": torch.zeros(self.members, dtype=torch.long),
            "update": torch.zeros(self.members, self.task.model.size),  # every member's last one
            "weight": torch.zeros(self.members),  # its labelled examples
            "heard": torch.zeros(self.members, dtype=torch.bool),  # since its cluster began
        }

    def carry_over(self, state: Tree, fresh: Tree, origin: Tensor) -> Tree:
        """New members begin in the largest cluster, which is not parted before they were heard."""
        largest = self.belong(state["cluster"]).sum(1).argmax()
        heard = {name: rounds.rows_of(origin, state[name]) for name in ("update", "weight", "heard")}
        return state | heard | {"cluster": rounds.rows_of(origin, state["cluster"], largest)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        cluster = state["cluster"][clients.index]
        replies = clients.run(self.fit, each={"params": tree.row(state["models"], cluster)})
        weight = self.belong(cluster) * replies.weight  # [clusters, cohort]

        def step(models: Tensor, update: Tensor) -> Tensor:
            share = weight.to(update.dtype) / weight.sum(1, keepdim=True).clamp(min=1)
            mean: Tensor = torch.tensordot(share, update, dims=1)
            return models + mean

        state = self.note(state, clients.index, replies)
        state["models"] = tree.map(step, state["models"], replies.each)
        for parent, ready in enumerate(self.ready(state).tolist()):  # the host waits here for the device, once a round
            if ready and int(state["cluster"].max()) + 1 < self.clusters:
                state = self.split(state, parent)
        return state

    def note(self, state: Tree, ids: Tensor, replies: Replies) -> Tree:
        """The state with what was heard from these clients written down."""
        flat = torch.cat([leaf.flatten(1) for leaf in tree.leaves(replies.each)], 1)
        news = {"update": flat, "weight": replies.weight.to(state["weight"].dtype), "heard": replies.heard}
        old = tree.pick(state, news)
        new = tree.where(replies.heard, news, tree.row(old, ids))
        return state | tree.map(lambda table, rows: table.index_copy(0, ids, rows), old, new)

    def ready(self, state: Tree) -> Tensor:
        """Clusters that are to be parted: they stand still, somebody pulls, and all members were heard."""
        belongs, length = self.belong(state["cluster"]), state["update"].norm(dim=1)
        weight = (belongs * state["weight"]).to(length.dtype)
        mean = weight @ state["update"] / weight.sum(1, keepdim=True).clamp(min=1)
        still, pulls = mean.norm(dim=1) < self.eps1, (belongs * length).amax(1) > self.eps2
        partible = (belongs * (length > 0)).sum(1) >= 2
        ready: Tensor = still & pulls & partible & ((belongs * ~state["heard"]).sum(1) == 0)
        return ready

    def split(self, state: Tree, parent: int) -> Tree:
        """Part the cluster so that the greatest cosine between the updates of one half and the other is smallest."""
        inside = (state["cluster"] == parent).nonzero()[:, 0]
        pulling = inside[state["update"][inside].norm(dim=1) > 0]  # those without labels stay
        unit = torch.nn.functional.normalize(state["update"][pulling])
        halves = AgglomerativeClustering(2, metric="precomputed", linkage="single")  # merges the most similar first
        side = torch.from_numpy(halves.fit_predict((1 - unit @ unit.T).cpu().numpy())).to(inside.device)
        child = int(state["cluster"].max()) + 1
        rows = torch.arange(self.clusters).index_fill(0, torch.tensor([child]), parent)  # both go on with one model
        return state | {
            "models": tree.row(state["models"], rows.to(inside.device)),
            "cluster": state["cluster"].index_fill(0, pulling[side != side[0]], child),
            "heard": state["heard"].index_fill(0, inside, False),
        }

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        cluster = state["cluster"][clients.index.clamp(max=self.members - 1)]
        late = clients.ids >= self.members
        if late.any():
            judged = clients.only(late).run(self.judge, shared={"models": state["models"]})
            size = self.belong(state["cluster"]).sum(1)
            best = torch.where(size > 0, judged.each["loss"], torch.inf).argmin(1)
            best = torch.where(judged.each["labelled"] > 0, best, size.argmax())
            cluster = cluster.index_copy(0, upload(late.nonzero()[:, 0], cluster.device), best)
        return Sending(each={"params": tree.row(state["models"], cluster)})

    def belong(self, cluster: Tensor) -> Tensor:
        """Ones where a client (column) is in a cluster (row)."""
        return one_hot(cluster, self.clusters).T
