"""FedRep: learn the head first, then the common body for it. Collins et al., ICML 2021, Algorithm 1.

Many cheap steps fit a client's own head to the common body, then a few fit the body to it. Only the body travels.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..method import SharesBody, asked_in
from ..settings import setting
from ..task import Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class FedRep(SharesBody):
    head_epochs: int = setting(5, "local passes over the data a round that train the head, body fixed", low=1)
    body_epochs: int = setting(1, "local passes over the data a round that train the body, head fixed", low=1)
    momentum: float = setting(0.5, "local momentum, within a phase", low=0, high=0.999, sweepable=True)
    novel_epochs: int = setting(20, "passes over the data of a newcomer, which trains its head, body fixed", low=1)

    # on the client

    @asked_in("round")
    def fit(self, home: Home, *, body: Tree) -> Tree:
        head = self.fit_head(home, body, home.epochs(self.head_epochs, self.batch, "head"))
        batches = home.epochs(self.body_epochs, self.batch, "body")
        return self.local.at(home.round).change(lambda body, batch: self.task.loss(body | head, batch), body, batches)

    @asked_in("personalise")
    def arrive(self, home: Home, *, body: Tree) -> Tree:
        self.fit_head(home, body, home.epochs(self.novel_epochs, self.batch, "head"))
        return {}

    # on the server

    by = "clients"  # a round adds the mean of the changes to the common body, so weighed (SharesBody)
