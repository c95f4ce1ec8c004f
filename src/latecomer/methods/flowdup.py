"""FLowDUP: a hypernetwork on the client turns unlabelled data into a model in a random subspace.

Algorithms 1 and 2 of "Federated learning with unlabeled clients: personalization can happen in low dimensions".
psi = (psi_h, psi_r) is all that travels: the hypernetwork h(X) = h2(mean of h1(x)), which emits the place v of a model
theta_0 + P v, and the place psi_r that all models are pulled to. A latecomer needs its data and psi, and no labels.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import nn

from .. import learn, optim, tree
from ..errors import UnknownName
from ..method import Batch, Clients, Generator, Home, InSubspace, Sending, Task, Tensor, Tree, asked_in, made, setting
from ..nets.models import MODELS
from ..nets.net import Net
from ..nets.subspace import Subspace


@dataclass(frozen=True, kw_only=True)
class FLowDUP(InSubspace):
    lr: float = setting(0.1, "local learning rate (eta_l)", above=0, sweepable=True)
    batch: int = setting(50, "examples a batch (B); one half generates a model, the other scores it", low=2)
    clip: float = setting(1.0, "largest gradient norm in local training; 0: no limit", low=0, sweepable=True)
    loss: Literal["mean", "sum"] = setting("mean", "over the scored half of a batch: the mean loss, or (paper) the sum")
    lambda_reg: float = setting(
        1e-4, "strength of the pull on a client's place to psi_r (lambda)", low=0, sweepable=True
    )
    learned_regulariser: bool = setting(True, "psi_r is learned; else it is 0 (equation 31)")
    encoder: str = setting(
        "model", "h1: the client model (model), or one of `latecomer list models`, with another last layer"
    )
    embedding: int = setting(256, "outputs of h1", low=1)
    hidden: int = setting(256, "width of the hidden layer of h2", low=1)
    server: Literal["adam", "sgd"] = setting("adam", "how the server follows the mean change")
    server_lr: float = setting(
        1e-3, "the server's learning rate (eta_g); with sgd, 1 adds the mean change", above=0, sweepable=True
    )
    server_beta: float = setting(
        0.99, "Adam's memory of squared gradients on the server (beta 2)", low=0, high=0.9999, sweepable=True
    )

    paper = {"cohort": 100, "rounds": 1000, "cohort_labelled": 0.9}
    needs_labels = False  # equation 3: h sees examples only

    h1: Net = made()
    h2: Net = made()
    optimiser: optim.Adam | learn.SGD = made()

    def build(self) -> None:
        super().build()
        layers = ((self.embedding, self.hidden), (self.hidden, self.space.size))
        h2 = Net(lambda: nn.Sequential(nn.Linear(*layers[0]), nn.ReLU(), nn.Linear(*layers[1])))
        self.set(h1=self.encoding_task().widened(self.embedding), h2=h2)
        adam = optim.Adam(self.server_lr, (0.9, self.server_beta), schedule=self.schedule)
        sgd = learn.SGD(self.server_lr, schedule=self.schedule)
        self.set(optimiser=adam if self.server == "adam" else sgd)

    def encoding_task(self) -> Task:
        """The task with the model that h1 is made of, which may differ from the clients' (Table 3)."""
        if self.encoder == "model":
            return self.task
        if self.encoder not in MODELS:
            raise UnknownName("value for --encoder", self.encoder, ["model", *MODELS])
        return replace(self.task, model=Net(partial(MODELS[self.encoder], self.task.shape, self.task.classes)))

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, psi: Tree) -> Tree:
        """Algorithm 2. Unlabelled batches move psi, too: by the regulariser alone."""
        f = self.space.on(psi["h2"]["0.weight"].device)
        batches = home.epochs(self.epochs, self.batch)  # lines 3 to 5
        return self.local.at(home.round).change(
            lambda psi, batch: self.objective(f, psi, batch), psi, batches, learn.inhabited
        )

    def objective(self, f: Subspace, psi: Tree, batch: Batch) -> Tensor:
        generating, scored = batch.halves()  # lines 6 and 7
        v = self.h(psi, generating)  # 8
        omega = (v - psi["r"] if "r" in psi else v).square().sum()  # 9
        loss = self.task.loss(f(v), scored)  # 10 and 11; nothing is labelled: 0
        if self.loss == "sum":
            loss = loss * scored.weight.sum()
        return loss + self.lambda_reg * omega  # 12

    def h(self, psi: Tree, batch: Batch) -> Tensor:
        """Equation 3, of a batch or of all that a client has."""
        return self.h2(psi["h2"], batch.mean(self.h1(psi["h1"], batch.x)))

    @asked_in("study")
    def represent(self, home: Home, *, psi: Tree) -> Tree:
        """Equation 9: r(X), the mean features by which h tells clients apart."""
        mine = home.all()
        return {"r": mine.mean(self.h1(psi["h1"], mine.x))}

    def model(self, home: Home, *, psi: Tree) -> Tree:  # type: ignore[override]
        v = self.h(psi, home.all())
        return self.space.on(v.device)(v)

    # on the server

    def init(self, generator: Generator) -> Tree:
        psi: Tree = {"h1": self.h1.fresh(generator), "h2": self.h2.fresh(generator)}
        if self.learned_regulariser:
            psi["r"] = torch.zeros(self.space.size)
        return {"psi": psi, "optimiser": self.optimiser.init(psi)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        """Algorithm 1, lines 5 to 11; the cohort's share of labelled clients, alpha, is a setting of the run."""
        psi = state["psi"]
        change = clients.mean(self.fit, shared={"psi": psi})
        psi, optimiser = self.optimiser.at(clients.round).step(psi, tree.scale(change, -1), state["optimiser"])
        return {"psi": psi, "optimiser": optimiser}

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return Sending(shared={"psi": state["psi"]})

    def described(self, state: Tree, clients: Clients) -> Tensor:
        return clients.run(self.represent, shared={"psi": state["psi"]}).each["r"]
