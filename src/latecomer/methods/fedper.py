"""FedPer: a common body, a personal head. Arivazhagan et al., 2019 (arXiv:1912.00818).

Body and head are trained together on the client. Only the body travels; the head stays where it was trained.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import tree
from ..method import SharesBody, TrainsByPasses, asked_in
from ..settings import setting
from ..task import Home
from ..tree import Tree


@dataclass(frozen=True, kw_only=True)
class FedPer(SharesBody, TrainsByPasses):
    head_epochs: int = setting(20, "passes over the data of a newcomer, which trains its head, body frozen", low=1)

    # on the client

    @asked_in("round")
    def fit(self, home: Home, *, body: Tree) -> Tree:
        before = body | home.memory["head"]
        after = self.local.at(home.round)(self.task.loss, before, home.epochs(self.epochs, self.batch))
        self.keep(home, {"head": tree.pick(after, self.task.head)})
        return tree.without(tree.sub(after, before), self.task.head)

    @asked_in("personalise")
    def arrive(self, home: Home, *, body: Tree) -> Tree:
        self.fit_head(home, body, home.epochs(self.head_epochs, self.batch))
        return {}

    # on the server

    by = "examples"  # a round adds the mean of the changes to the common body, so weighed (SharesBody)
