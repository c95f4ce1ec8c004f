"""Methods whose rounds look at their number: on the host, to decide something, or in arithmetic."""

from __future__ import annotations

import torch

from latecomer import tree
from latecomer.clients import Clients
from latecomer.methods.fedavg import FedAvg
from latecomer.task import Home
from latecomer.tree import Tree


class Stops(FedAvg):
    """Stops after six rounds, by a decision of the host."""

    def goes_on(self, clients: Clients) -> bool:
        return bool(clients.round < 6)

    def round(self, state: Tree, clients: Clients) -> Tree:
        rate = 1.0 if self.goes_on(clients) else 0.0
        return tree.add(state, tree.scale({"params": clients.mean(self.fit, shared=state)}, rate))


class Lists(Stops):
    def goes_on(self, clients: Clients) -> bool:
        return bool(clients.round.tolist() < 6)


class Prints(Stops):
    def goes_on(self, clients: Clients) -> bool:
        return repr(clients.round) < "tensor(6"


class Splits(Stops):
    def goes_on(self, clients: Clients) -> bool:
        return len(torch.arange(6).tensor_split(clients.round.cpu()[None])[1]) > 0


class Counts(Stops):
    def goes_on(self, clients: Clients) -> bool:
        return clients.number < 6


class Decays(FedAvg):
    """Rates that fall with the round, on the server and in a client's step."""

    def fit(self, home: Home, *, params: Tree) -> Tree:
        return tree.map(lambda leaf: leaf / (1 + home.round), super().fit(home, params=params))

    def round(self, state: Tree, clients: Clients) -> Tree:
        change = clients.mean(self.fit, shared=state)
        return tree.map(lambda leaf, new: leaf + new * 0.9**clients.round, state, {"params": change})
