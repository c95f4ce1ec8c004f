"""PeFLL: an embedding network describes a client, a hypernetwork turns the description into its model.

Scott, Zakerinia, Lampert, ICLR 2024, Algorithms 1 and 2. The embedding network travels to the client, the descriptor
back, the personal model down. The hypernetwork never leaves the server, and a latecomer needs no training at all.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from .. import learn, optim, rounds, tree
from ..errors import SettingError
from ..method import Batch, Clients, Generator, Home, Method, Sending, Tensor, Tree, asked_in, made, setting
from ..nets.embed import ExampleAndLabel, LabelOnly
from ..nets.hyper import Hypernetwork
from ..replies import Replies


@dataclass(frozen=True, kw_only=True)
class PeFLL(Method):
    lr: float = setting(2e-3, "local learning rate", above=0, sweepable=True)
    steps: int = setting(50, "local batches a round (k)", low=1)
    batch: int = setting(32, "examples a batch", low=1)
    describe_batch: int = setting(0, "examples in the batch that describes a client in training; 0: as --batch", low=0)
    momentum: float = setting(0.9, "local momentum", low=0, high=0.999, sweepable=True)
    clip: float = setting(50.0, "largest gradient norm, local and on the server; 0: no limit", low=0, sweepable=True)
    server_lr: float = setting(
        2e-4, "Adam's learning rate for embedding network and hypernetwork (beta)", above=0, sweepable=True
    )
    lambda_h: float = setting(1e-3, "regulariser of the hypernetwork", low=0, sweepable=True)
    lambda_v: float = setting(1e-3, "regulariser of the embedding network", low=0, sweepable=True)
    lambda_theta: float = setting(5e-5, "regulariser of the personal model", low=0, sweepable=True)
    regularise: Literal["step", "gradient"] = setting(
        "step", "lambda-h and lambda-v shrink the weights before a step (lines 17 and 18), or enter Adam's gradient"
    )
    descriptor: int = setting(0, "size of a descriptor (at least 2); 0: 1 + a quarter of the number of clients", low=0)
    embed: Literal["example", "label"] = setting(
        "example", "embedding network: LeNet with label planes, or linear on labels"
    )
    hypernetwork: Literal["code", "paper"] = setting(
        "code",
        "two linear layers in a row at its end (authors' code), or a ReLU after each layer but the last (Table 4)",
    )
    hidden: int = setting(100, "width of the hypernetwork", low=1)
    depth: int = setting(-1, "hidden layers of the hypernetwork after its first; -1: code 3, paper 1", low=-1)

    paper = {"split": "pefll", "cohort": 5, "rounds": 5000}

    describer: ExampleAndLabel | LabelOnly = made()
    hyper: Hypernetwork = made()
    optimiser: optim.Adam = made()

    def build(self) -> None:
        if self.descriptor == 1:  # a descriptor's standard deviation is what standardises it
            raise SettingError(
                "--descriptor must be at least 2, or 0 for 1 + a quarter of the number of clients; got 1."
            )
        size = self.descriptor or max(2, 1 + self.clients // 4)
        shape, classes = self.task.shape, self.task.classes
        describer = ExampleAndLabel(shape, classes, size) if self.embed == "example" else LabelOnly(classes, size)
        depth = {"code": 3, "paper": 1}[self.hypernetwork] if self.depth < 0 else self.depth
        hyper = Hypernetwork(
            size, self.task.model.shapes, self.hidden, depth, relu_before_head=self.hypernetwork == "paper"
        )
        self.set(describer=describer, hyper=hyper)
        self.set(optimiser=optim.Adam(self.server_lr, clip=self.clip, schedule=self.schedule))

    @property
    def local(self) -> learn.SGD:
        decay = 2 * self.lambda_theta  # the gradient of lambda_theta * |theta|^2 is weight decay
        return learn.SGD(self.lr, self.momentum, decay, self.clip, self.schedule)

    # on the client

    @asked_in("round")
    def describe(self, home: Home, *, embed: Tree) -> Tree:
        return self.descriptor_of(home.batch(self.describe_batch or self.batch, "describe"), embed)

    @asked_in("personalise")
    def describe_fully(self, home: Home, *, embed: Tree) -> Tree:
        return self.descriptor_of(home.all(), embed)

    @asked_in("round", answers="change")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.batches(self.steps, self.batch))

    @asked_in("round", answers="averaged")
    def backprop(self, home: Home, *, embed: Tree, dv: Tensor) -> Tree:
        _, pull = learn.pullback(lambda weights: self.describe(home, embed=weights)["v"], embed)
        (gradient,) = pull(dv)
        return {"embed": gradient}

    def model(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        return params

    def descriptor_of(self, batch: Batch, embed: Tree) -> Tree:
        return {"v": batch.mean(self.describer.embed(embed, batch))}

    # on the server

    def init(self, generator: Generator) -> Tree:
        learned = {"embed": self.describer.fresh(generator), "hyper": self.hyper.fresh(generator)}
        unknown = {"mean": torch.zeros(()), "std": torch.ones(()), "known": torch.zeros(())}
        return {"learned": learned, "optimiser": self.optimiser.init(learned), "standard": unknown}

    def round(self, state: Tree, clients: Clients) -> Tree:
        embed, hyper = state["learned"]["embed"], state["learned"]["hyper"]
        described = clients.run(self.describe, shared={"embed": embed})  # lines 3 to 7
        standard = self.first_seen(state["standard"], described)
        update, pull = rounds.fitted(
            clients, self.fit, lambda h, v: self.generate(h, v, standard), hyper, described.each["v"]
        )  # 8 to 11
        heard = update.heard.sum().clamp(min=1)
        dh, dv = pull(tree.scale(update.each, 1 / heard))  # 12; divided here, where it is small, for dh is a sum
        de = clients.mean(self.backprop, each={"dv": dv * heard}, recall=["embed"])  # 13 to 15
        gradient, shrink = self.regularised(state["learned"], de | {"hyper": dh})
        learned, optimiser = self.optimiser.at(clients.round).step(
            state["learned"], gradient, state["optimiser"], shrink
        )  # 17 and 18
        return {"learned": learned, "optimiser": optimiser, "standard": standard}

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        v = self.described(state, clients)
        return Sending(each={"params": self.generate(state["learned"]["hyper"], v, state["standard"])})

    def described(self, state: Tree, clients: Clients) -> Tensor:
        return clients.run(self.describe_fully, shared={"embed": state["learned"]["embed"]}).each["v"]

    def generate(self, hyper: Tree, v: Tensor, standard: Tree) -> Tree:
        return self.hyper.generate(hyper, (v - standard["mean"]) / standard["std"])

    def first_seen(self, standard: Tree, described: Replies) -> Tree:
        """The scalars that standardise descriptors: taken from the first cohort's, then frozen."""
        v = described.each["v"]
        share = described.share().to(v.dtype)
        heard = described.heard.any()
        now = {"mean": share @ v.mean(1), "std": share @ v.std(1), "known": torch.ones_like(standard["known"])}
        return tree.where((standard["known"] > 0) | ~heard, standard, now)

    def regularised(self, learned: Tree, gradient: Tree) -> tuple[Tree, dict[str, float] | None]:
        """The server objective, lambda |eta|^2: as part of what Adam descends, or as lines 17 and 18 write it."""
        twice = {"embed": 2 * self.lambda_v, "hyper": 2 * self.lambda_h}
        if self.regularise == "gradient":
            return {name: tree.add(gradient[name], tree.scale(learned[name], twice[name])) for name in twice}, None
        return gradient, {name: 1 - self.server_lr * twice[name] for name in twice}
