"""Local: every client trains alone and nothing is sent. The baseline that federation has to beat."""

from dataclasses import dataclass

from ..method import Batches, Clients, Generator, Home, Sending, TrainsBySteps, Tree, asked_in, setting


@dataclass(frozen=True, kw_only=True)
class Local(TrainsBySteps):
    lr: float = setting(0.01, "learning rate", above=0, sweepable=True)
    batch: int = setting(32, "examples a batch", low=1)
    clip: float = setting(50.0, "largest gradient norm; 0: no limit", low=0, sweepable=True)
    alone: int = setting(40, "passes over the data of a latecomer, which trains when it arrives", low=1)

    # on the client

    @asked_in("round")
    def fit(self, home: Home) -> Tree:
        return self.train(home, home.batches(self.steps, self.batch))

    @asked_in("personalise")
    def arrive(self, home: Home) -> Tree:
        return self.train(home, home.epochs(self.alone, self.batch))

    def train(self, home: Home, batches: Batches) -> Tree:
        params = self.local.at(home.round)(self.task.loss, home.memory["params"], batches)
        home.memory = {"params": params}
        return {}

    def model(self, home: Home) -> Tree:  # type: ignore[override]
        return home.memory["params"]

    def memory(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {}

    def round(self, state: Tree, clients: Clients) -> Tree:
        clients.run(self.fit)
        return state

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        late = clients.only(clients.ids >= self.members)
        if len(late):
            late.run(self.arrive)
        return Sending()
