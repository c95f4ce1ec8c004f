"""FedRep: learn the head first, then the common body for it. Collins et al., ICML 2021, Algorithm 1.

Many cheap steps fit a client's own head to the common body, then a few fit the body to it. Only the body travels.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import learn
from ..method import SharesBody
from ..settings import setting
from ..task import Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class FedRep(SharesBody):
    lr: float = setting(0.05, "local learning rate, of head and body", above=0)
    head_epochs: int = setting(5, "local passes over the data a round that train the head, body fixed", low=1)
    body_epochs: int = setting(1, "local passes over the data a round that train the body, head fixed", low=1)
    batch: int = setting(32, "examples a batch", low=1)
    momentum: float = setting(0.5, "local momentum, within a phase", low=0, high=0.999)
    weight_decay: float = setting(0.0, "local weight decay", low=0)
    clip: float = setting(0.0, "largest gradient norm in local training; 0: no limit", low=0)
    novel_epochs: int = setting(20, "passes over the data of a newcomer, which trains its head, body fixed", low=1)

    def build(self) -> None:
        self.set(local=learn.SGD(self.lr, self.momentum, self.weight_decay, self.clip))

    # on the client

    def fit(self, home: Home, *, body: Tree) -> Tree:
        head = self.fit_head(home, body, home.epochs(self.head_epochs, self.batch, "head"))
        batches = home.epochs(self.body_epochs, self.batch, "body")
        return self.local.change(lambda body, batch: self.task.loss(body | head, batch), body, batches)

    def arrive(self, home: Home, *, body: Tree) -> Tree:
        self.fit_head(home, body, home.epochs(self.novel_epochs, self.batch, "head"))
        return {}

    # on the server

    by = "clients"  # a round adds the mean of the changes to the common body, so weighed (SharesBody)
