"""A method of your own: FedAvg whose clients fine-tune the common model before they use it.

    python examples/own_method.py

A method is one class. Client steps see `home` (private data) and their keywords (the message); the server calls them
through `clients`, and `asked_in` says when it may. This file runs unchanged on every engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from latecomer import Method, Sending, asked_in, federate, make_task, rounds, setting, train
from latecomer.learn import SGD
from latecomer.nets.models import MLP


@dataclass(frozen=True, kw_only=True)
class TunedFedAvg(Method):
    lr: float = setting(0.1, "local learning rate", above=0)

    @property
    def local(self):
        return SGD(self.lr)

    # on the client

    @asked_in("round")
    def fit(self, home, *, params):
        return self.local.change(self.task.loss, params, home.epochs(3, size=8))

    def model(self, home, *, params):
        return self.local(self.task.loss, params, home.epochs(5, size=8, purpose="tune"))

    # on the server

    def init(self, generator):
        return {"params": self.task.model.fresh(generator)}

    def round(self, state, clients):
        return rounds.average(self.fit, state, clients, by="examples")

    def personalise(self, state, clients):
        return Sending(shared=state)


def main(rounds: int = 40) -> dict:
    federation = federate("digits", partition="classes", clients=20, unseen=0.2, rotations=(0, 90, 180, 270))
    method = TunedFedAvg(task=make_task(federation, MLP), clients=len(federation), members=federation.members)
    return train.run(method, federation, rounds=rounds, cohort=8, evaluate_every=10)


if __name__ == "__main__":
    result = main()
    print(f"seen {result['seen']['accuracy']:.1f} %, unseen {result['unseen']['accuracy']:.1f} %")
