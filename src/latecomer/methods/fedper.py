"""FedPer: a common body, a personal head. Arivazhagan et al., 2019 (arXiv:1912.00818)."""

from dataclasses import dataclass

from .. import rounds, tree
from ..method import Clients, Generator, Home, Sending, TrainsByPasses, Tree, asked_in, setting


@dataclass(frozen=True, kw_only=True)
class FedPer(TrainsByPasses):
    head_epochs: int = setting(20, "passes over the data of a newcomer, which trains its head, body frozen", low=1)

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, body: Tree) -> Tree:
        w = self.local.at(home.round)(self.task.loss, body | home.memory["head"], home.epochs(self.epochs, self.batch))
        rounds.keep(home, head=tree.pick(w, self.task.head))  # it stays where it was trained; only the body travels
        return tree.sub(tree.without(w, self.task.head), body)

    @asked_in("personalise")
    def arrive(self, home: Home, *, body: Tree) -> Tree:
        return rounds.fit_head(self, home, body, home.epochs(self.head_epochs, self.batch))

    introduce, memory = asked_in("personalise")(rounds.introduce), rounds.head_memory

    def model(self, home: Home, *, body: Tree) -> Tree:  # type: ignore[override]
        return body | home.memory["head"]

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"body": tree.without(self.task.model.fresh(generator), self.task.head)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return rounds.average(self.fit, state, clients, by="examples")

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return rounds.welcome(self.introduce, self.arrive, state, clients, then=Sending(shared=state))
