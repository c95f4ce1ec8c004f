"""pFedHN: a hypernetwork on the server, an embedding for every client. Shamsian et al., ICML 2021, Algorithm 1.

The server turns client i's embedding into a model, the client trains that model for K steps and returns the change,
and the server moves hypernetwork and embedding along it. The hypernetwork never travels. With `personal_head`
(pFedHN-PC, section 3.3) the last layer is the client's own: trained along, it stays there and keeps its momentum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import learn, optim, tree
from ..clients import Clients, Sending
from ..method import Method, made
from ..nets.hyper import Hypernetwork
from ..settings import setting
from ..task import Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class PFedHN(Method):
    lr: float = setting(5e-3, "local learning rate", above=0)
    steps: int = setting(50, "local batches a round (K)", low=1)
    batch: int = setting(64, "examples a batch", low=1)
    momentum: float = setting(0.9, "local momentum", low=0, high=0.999)
    weight_decay: float = setting(5e-5, "local weight decay", low=0)
    clip: float = setting(50.0, "largest gradient norm, local and on the server; 0: no limit", low=0)
    server_lr: float = setting(1e-2, "learning rate of hypernetwork and embeddings", above=0)
    server_momentum: float = setting(0.9, "momentum of hypernetwork and embeddings", low=0, high=0.999)
    server_decay: float = setting(1e-3, "weight decay of hypernetwork and embeddings", low=0)
    embedding: int = setting(0, "size of a client's embedding; 0: 1 + a quarter of the number of clients", low=0)
    hidden: int = setting(100, "width of the hypernetwork", low=1)
    depth: int = setting(3, "hidden layers of the hypernetwork after its first", low=0)
    personal_head: bool = setting(False, "pFedHN-PC: the last layer stays at the client (its paper: server-lr 0.05)")
    novel_rounds: int = setting(20, "exchanges that fit a latecomer's embedding, hypernetwork frozen", low=1)
    novel_lr: float = setting(1e-2, "learning rate of a latecomer's embedding", above=0)

    paper = {"split": "pfedhn", "cohort": 1, "rounds": 5000, "select": "pooled"}

    width: int = made()
    hyper: Hypernetwork = made()
    head: tuple[str, ...] = made()
    local: learn.SGD = made()
    own: learn.SGD = made()
    optimiser: optim.SGD = made()

    def build(self) -> None:
        width = self.embedding or 1 + self.clients // 4
        head = self.task.head if self.personal_head else ()
        target = tree.without(self.task.model.shapes, head)
        self.set(width=width, head=head, hyper=Hypernetwork(width, target, self.hidden, self.depth))
        self.set(local=learn.SGD(self.lr, self.momentum, self.weight_decay, self.clip))
        self.set(own=learn.SGD(self.lr, self.momentum, self.weight_decay))  # the personal layer is not clipped
        self.set(optimiser=optim.SGD(self.server_lr, self.server_momentum, self.server_decay, self.clip))

    # on the client

    def fit(self, home: Home, *, params: Tree) -> Tree:
        batches = home.batches(self.steps, self.batch)
        if not self.head:
            return self.local.change(self.task.loss, params, batches)
        mine = learn.Part(self.own, home.memory["head"], home.memory["velocity"])
        body, mine = learn.jointly(
            lambda parts, batch: self.task.loss(parts[0] | parts[1], batch),
            [learn.Part(self.local, params), mine],
            batches,
        )
        home.memory = {"head": mine.params, "velocity": mine.velocity}
        return tree.sub(body.params, params)

    def predict(self, home: Home, x: Tensor, *, params: Tree) -> Tensor:  # type: ignore[override]
        return self.task.logits(params | home.memory.get("head", {}), x)

    def memory(self, generator: torch.Generator) -> Tree:
        if not self.head:
            return {}
        head = tree.pick(self.task.model.fresh(generator), self.head)
        return {"head": head, "velocity": torch.zeros_like(tree.ravel(head))}

    # on the server

    def init(self, generator: torch.Generator) -> Tree:
        learned = {
            "hyper": self.hyper.fresh(generator),
            "embedding": torch.randn(self.members, self.width, generator=generator),
        }
        return {"ids": torch.arange(self.members), "learned": learned, "optimiser": self.optimiser.init(learned)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        rows = torch.searchsorted(state["ids"], clients.index)
        params, pull = learn.pullback(
            lambda learned: self.generate(learned, learned["embedding"][rows]), state["learned"]
        )
        update = clients.run(self.fit, each={"params": params})
        (gradient,) = pull(tree.scale(update.each, -1 / update.heard.sum().clamp(min=1)))  # silent rows are zero
        learned, optimiser = self.optimiser.step(state["learned"], gradient, state["optimiser"])
        return {"ids": state["ids"], "learned": learned, "optimiser": optimiser}

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        ids, learned = state["ids"], state["learned"]
        rows = torch.searchsorted(ids, clients.index).clamp(max=len(ids) - 1)
        embedding = learned["embedding"][rows]
        late = ~torch.isin(clients.ids, ids.cpu())
        if late.any():
            novel = self.novel_embeddings(learned, clients.only(late))
            embedding = embedding.index_copy(0, late.nonzero()[:, 0].to(ids.device), novel)
        return Sending(each={"params": self.generate(learned, embedding)})

    def novel_embeddings(self, learned: Tree, clients: Clients) -> Tensor:
        """Section 5.3: new embeddings are fitted over a few exchanges, while the hypernetwork stays as it is."""
        optimiser = optim.SGD(self.novel_lr, self.server_momentum)  # no clipping: latecomers must not affect each other
        novel: Tree = {"embedding": learned["embedding"].mean(0).repeat(len(clients), 1)}
        memory = optimiser.init(novel)
        for turn in clients.turns(self.novel_rounds):
            params, pull = learn.pullback(lambda embedding: self.generate(learned, embedding), novel["embedding"])
            update = turn.run(self.fit, each={"params": params})
            (gradient,) = pull(tree.scale(update.each, -1))
            novel, memory = optimiser.step(novel, {"embedding": gradient}, memory)
        embedding: Tensor = novel["embedding"]
        return embedding

    def generate(self, learned: Tree, embedding: Tensor) -> Tree:
        return self.hyper.generate(learned["hyper"], embedding)
