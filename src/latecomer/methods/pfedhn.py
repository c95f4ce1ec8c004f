"""pFedHN: a hypernetwork on the server, an embedding for every client. Shamsian et al., ICML 2021, Algorithm 1.

The server turns client i's embedding into a model, the client trains that model for K steps and returns the change,
and the server moves hypernetwork and embedding along it. The hypernetwork never travels. With `personal_head`
(pFedHN-PC, section 3.3) the last layer is the client's own: trained along, it stays there and keeps its momentum.
With `--budgets` (section 5.2) the hypernetwork emits models of several sizes, and a client gets the one it can afford.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from .. import learn, rounds, tree
from ..errors import SettingError
from ..method import Clients, Generator, Home, Sending, Tensor, TrainsBySteps, Tree, asked_in, made, setting
from ..nets.hyper import Hypernetwork


@dataclass(frozen=True, kw_only=True)
class PFedHN(TrainsBySteps):
    server_lr: float = setting(1e-2, "learning rate of hypernetwork and embeddings", above=0, sweepable=True)
    server_momentum: float = setting(0.9, "momentum of hypernetwork and embeddings", low=0, high=0.999, sweepable=True)
    server_decay: float = setting(1e-3, "weight decay of hypernetwork and embeddings", low=0, sweepable=True)
    representation: Literal["learned", "class-shares"] = setting(
        "learned", "what stands for a client: an embedding that is learned, or its class shares, fixed (appendix C.6)"
    )
    embedding: int = setting(0, "size of a learned embedding; 0: 1 + a quarter of the number of clients", low=0)
    hidden: int = setting(100, "width of the hypernetwork", low=1)
    depth: int = setting(3, "hidden layers of the hypernetwork after its first", low=0)
    spectral: bool = setting(False, "divide every layer of the hypernetwork by its spectral norm (appendix C.4)")
    personal_head: bool = setting(False, "pFedHN-PC: the last layer stays at the client (its paper: server-lr 0.05)")
    novel_rounds: int = setting(20, "exchanges that fit a latecomer's embedding, hypernetwork frozen", low=1)
    novel_lr: float = setting(0.1, "Adam's learning rate for a latecomer's embedding", above=0, sweepable=True)
    novel_start: Literal["mean", "random"] = setting("mean", "where it begins: the members' mean, or drawn as theirs")

    paper = {"split": "pfedhn", "cohort": 1, "rounds": 5000}
    serves_sizes = True

    fixed: bool = made()
    head: tuple[str, ...] = made()
    hyper: Hypernetwork = made()
    optimiser: learn.SGD = made()

    def build(self) -> None:
        fixed, head = self.representation == "class-shares", self.task.head if self.personal_head else ()
        if fixed and self.embedding not in (0, self.task.classes):
            raise SettingError(f"--embedding is {self.task.classes} with class shares, one a class; leave it out.")
        width = self.task.classes if fixed else self.embedding or 1 + self.clients // 4
        hyper = Hypernetwork(width, self.task.target(without=head), self.hidden, self.depth, self.spectral)
        optimiser = learn.SGD(self.server_lr, self.server_momentum, self.server_decay, self.clip, self.schedule)
        self.set(fixed=fixed, head=head, hyper=hyper, optimiser=optimiser)

    # on the client

    @asked_in("round", "personalise")
    def introduce(self, home: Home) -> Tree:
        """What the server has to know of a client: its size, and the shares of its classes, as far as it matters."""
        told: Tree = {"budget": home.budget.float()} if self.task.sizes else {}
        if self.fixed:
            counts = home.counts(self.task.classes)
            told["v"] = counts / counts.sum().clamp(min=1)
        return told

    @asked_in("round", "personalise", answers="change")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        batches, local = home.batches(self.steps, self.batch), self.local.at(home.round)
        if not self.head:
            return local.change(self.task.loss, params, batches)
        own = replace(local, clip=0.0)  # the personal layer is not clipped
        parts = [learn.Part(local, params), learn.Part(own, home.memory["head"], home.memory["velocity"])]
        body, mine = learn.jointly(lambda both, batch: self.task.loss(both[0] | both[1], batch), parts, batches)
        home.memory = {"head": mine.params, "velocity": mine.velocity}
        return tree.sub(body.params, params)

    def model(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        return params | home.memory.get("head", {})

    def memory(self, generator: Generator) -> Tree:
        head = tree.pick(self.task.model.fresh(generator), self.head)
        return {"head": head, "velocity": torch.zeros_like(tree.ravel(head))} if head else {}

    # on the server

    def init(self, generator: Generator) -> Tree:
        learned: Tree = {"hyper": self.hyper.fresh(generator)}
        width = self.hyper.descriptor
        if not self.fixed:
            learned["embedding"] = torch.randn(self.members, width, generator=generator)
        state = {"ids": torch.arange(self.members), "learned": learned, "optimiser": self.optimiser.init(learned)}
        if self.novel_start == "random" and not self.fixed:
            state["novel"] = torch.randn(max(1, self.clients - self.members), width, generator=generator)
        return state

    def carry_over(self, state: Tree, fresh: Tree, origin: Tensor) -> Tree:
        """The table grows: new members begin where latecomers do."""
        start = fresh["learned"]["embedding"] if "novel" in fresh else None
        return rounds.embeddings_of(origin, self.optimiser, state, fresh, start)

    def round(self, state: Tree, clients: Clients) -> Tree:
        groups = self.meet(clients)
        params, pull = learn.pullback(lambda learned: self.models(learned, state["ids"], groups), state["learned"])
        updates = {group.size: group.clients.run(self.fit, each={"params": params[group.size]}) for group in groups}
        heard = torch.stack([update.heard.sum() for update in updates.values()]).sum().clamp(min=1)
        (gradient,) = pull({size: tree.scale(update.each, -1 / heard) for size, update in updates.items()})
        learned, optimiser = self.optimiser.at(clients.round).step(state["learned"], gradient, state["optimiser"])
        return state | {"learned": learned, "optimiser": optimiser}

    def models(self, learned: Tree, ids: Tensor, groups: list[rounds.Group]) -> Tree:
        known = {group.size: self.known(learned, ids, group) for group in groups}
        return {size: self.hyper.generate(learned["hyper"], v, size) for size, v in known.items()}

    def personalise(self, state: Tree, clients: Clients) -> list[Sending]:
        hyper, groups = state["learned"]["hyper"], self.meet(clients)
        params = [self.hyper.generate(hyper, self.placed(state, group), group.size) for group in groups]
        return [Sending(each={"params": each}, to=group.which) for group, each in zip(groups, params, strict=True)]

    def described(self, state: Tree, clients: Clients) -> Tensor:
        return rounds.in_order(self.meet(clients), partial(self.placed, state))

    def placed(self, state: Tree, group: rounds.Group) -> Tensor:
        """What stands for these clients. Section 5.3: latecomers' embeddings are fitted over a few exchanges."""
        known = self.known(state["learned"], state["ids"], group)
        late = ~torch.isin(group.clients.ids, state["ids"].cpu())
        if self.fixed or not late.any():
            return known
        new = group.clients.only(late)
        turns, start = new.turns(self.novel_rounds), self.start(state, new.index)
        fitted = self.fitting(state, group.size).over(turns, self.fit, start)
        return known.index_copy(0, late.nonzero()[:, 0].to(known.device), fitted)

    def start(self, state: Tree, ids: Tensor) -> Tensor:
        """Where the embeddings of latecomers begin."""
        if "novel" in state:
            return state["novel"][(ids - self.members) % len(state["novel"])]
        return state["learned"]["embedding"].mean(0).repeat(len(ids), 1)

    def fitting(self, state: Tree, size: str = "") -> rounds.Fitting:
        return rounds.Fitting(partial(self.hyper.generate, state["learned"]["hyper"], branch=size), self.novel_lr)

    def meet(self, clients: Clients) -> list[rounds.Group]:
        """The cohort in groups of one size, after the clients have introduced themselves where that matters."""
        told = clients.run(self.introduce) if self.fixed or self.task.sizes else None
        return rounds.by_size(clients, told, self.task.sizes)

    def known(self, learned: Tree, ids: Tensor, group: rounds.Group) -> Tensor:
        """What describes these clients: what they told, or their rows of the table (a latecomer's is not its own)."""
        rows = torch.searchsorted(ids, group.clients.index).clamp(max=len(ids) - 1)
        return group.told["v"] if self.fixed else learned["embedding"][rows]
