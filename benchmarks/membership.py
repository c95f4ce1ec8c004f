"""Was this example among a client's? What descriptors, updates and models give away, without noise and with it.

    python benchmarks/membership.py [--clients 2000] [--examples 20] [--rounds 200] [--seed 0]

Digits are dealt into four parts that share no example. On the first the servers are trained. Clients drawn from the
second teach an attacker what is usual, those from the third choose its score and threshold, and those from the fourth
are attacked with both as they are. A client has two classes, and the attacker knows which. Advantage is the share of
its own examples that are taken for its own, less the share of others, of the same classes, that are; the interval is a
bootstrap over clients (95 %).

Three attackers. One knows the *population*, and the example in question. One knows *all others* of the client's
examples, and two of which one is the last: the question of differential privacy. A *hostile server* knows that too and
chooses the encoder's weights. Two bounds stand below them: what (epsilon, delta) allows, and what the Gaussian noise
that keeps this promise allows. The common model is asked for the examples of any member; there, another training
chooses score and threshold.
"""

from __future__ import annotations

import argparse
import math
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import jacfwd, vmap

from attackers import (
    MEMBERS,
    Group,
    Scores,
    World,
    advantage,
    all_others,
    by_descriptor,
    by_model,
    by_update,
    population,
)
from common import where
from latecomer import Batch, Tree, tree
from latecomer.methods.fedavg import FedAvg
from latecomer.methods.fedavgplus import FedAvgPlus
from latecomer.methods.odpflhn import ODPFLHN
from latecomer.methods.pefll import PeFLL
from latecomer.privacy import delta as least_delta
from latecomer.privacy import sigma

EPSILONS, DELTA = (8.0, 2.0, 1.0, 0.5), 1e-5
PASSES = {"epochs": 5, "batch": 8}
GENERATED = {"lr": 0.05, "server_lr": 2e-3, "descriptor": 1 + MEMBERS // 4}
PRIVATE = {"pool": "mean", "bound": 3.0, "delta": DELTA, "encoder_lr": 2e-3}


class Servers:
    """Trained servers; and what clients of a group, if these rows were theirs, send them or have from them."""

    def __init__(self, world: World, rounds: int) -> None:
        self.world, self.rounds = world, rounds
        self.average, self.tuning = (world.method(kind, lr=0.3, **PASSES) for kind in (FedAvg, FedAvgPlus))
        self.pefll = world.method(PeFLL, steps=10, **GENERATED)
        self.odpflhn = [world.method(ODPFLHN, epsilon=e, **GENERATED, **PASSES, **PRIVATE) for e in (0.0, *EPSILONS)]
        self.fresh = self.average.init(torch.Generator().manual_seed(0))
        self.another, self.common = (world.trained(self.average, rounds, members) for members in world.members)
        self.labelled = world.trained(self.pefll, rounds, world.members[1])
        learned = world.trained(self.odpflhn[0], rounds, world.members[1])["learned"]
        self.encoder, self.hyper = learned["encoder"], learned["hyper"]
        self.embed = self.labelled["learned"]["embed"]

    # descriptors

    def described(self, group: Group, rows: Tensor, number: int = -1) -> Tensor:
        return self.world.ask(self.pefll.describe_fully, rows, group.seed, number, shared={"embed": self.embed})["v"]

    def requested(self, method: ODPFLHN, group: Group, rows: Tensor, number: int = -1) -> Tensor:
        return self.world.ask(method.request, rows, group.seed, number, shared={"encoder": self.encoder})["v"]

    def lured(self, method: ODPFLHN, group: Group, rows: Tensor, number: int = -1) -> Tensor:
        """By an encoder that lights one unit for the example in question and another for its neighbour."""
        one, other = (self.world.seen[some[:, 0]].flatten(1) for some in group.neighbours)
        line, middle = 1e3 * (one - other), 5e2 * ((one - other) * (one + other)).sum(1)
        made = tree.map(lambda leaf: leaf.new_zeros(len(rows), *leaf.shape), self.encoder)
        made["phi"]["1.weight"][:, :2] = torch.stack([line, -line], 1)
        made["phi"]["1.bias"][:, :2] = torch.stack([-middle, middle], 1)
        made["psi"]["0.weight"][:, 0, :2] = torch.tensor([1.0, -1.0])
        return self.world.ask(method.request, rows, group.seed, number, each={"encoder": made})["v"][:, :1]

    # updates, with the models that they start from

    def updated(self, start: Tree, group: Group, rows: Tensor, number: int = -1) -> tuple[Tree, Tree]:
        each = tree.map(lambda leaf: leaf.expand(len(rows), *leaf.shape), start)
        return each["params"], self.world.ask(self.average.fit, rows, group.seed, self.rounds, each=each)

    def updated_own(self, group: Group, rows: Tensor, number: int = -1) -> tuple[Tree, Tree]:
        params = self.generated(group, group.inside)
        return params, self.world.ask(self.pefll.fit, rows, group.seed, self.rounds, each={"params": params})

    # models

    def tuned(self, group: Group, rows: Tensor, number: int = -1) -> Tree:
        return self.world.ask(self.tuning.tune, rows, group.seed, kept=True, shared=self.common)["params"]

    def generated(self, group: Group, rows: Tensor, number: int = -1) -> Tree:
        return self.models_of(self.described(group, rows))

    def models_of(self, v: Tensor) -> Tree:
        return self.pefll.generate(self.labelled["learned"]["hyper"], v, self.labelled["standard"])

    def handed_out(self, method: ODPFLHN, group: Group, rows: Tensor, number: int = -1) -> Tree:
        return method.hyper.generate(self.hyper, self.requested(method, group, rows, number))

    def common_model(self) -> str:
        """The advantage in telling whether any member had an example."""

        def scores(group: Group, params: Tree, other: Tree) -> Scores:
            each = [tree.map(lambda leaf: leaf.expand(MEMBERS, *leaf.shape), one["params"]) for one in (params, other)]
            sure, usual = ([self.world.confidence(one, rows) for rows in group.sides] for one in each)
            return {"sure": sure, "surer than another": [a - b for a, b in zip(sure, usual, strict=True)]}

        first, second = self.world.members
        return advantage(scores(first, self.another, self.common), scores(second, self.common, self.another))

    def traced_back(self, clients: int = 200) -> float:
        """The share of PeFLL's descriptors that its hypernetwork's owner computes back from models (Gauss-Newton)."""

        def model(v: Tensor) -> Tensor:
            return tree.ravel(tree.row(self.models_of(v[None]), 0))

        def back(weights: Tensor, v: Tensor) -> Tensor:
            for _ in range(15):
                slope = jacfwd(model)(v)
                square = slope.T @ slope
                ridge = 1e-6 * square.trace() * torch.eye(len(v))
                v = v + torch.linalg.solve(square + ridge, slope.T @ (weights - model(v)))
            return v

        usual, _, group = self.world.groups
        start, true = self.described(usual, usual.inside).mean(0), self.described(group, group.inside[:clients])
        found = vmap(back, in_dims=(0, None), chunk_size=50)(vmap(model)(true), start)
        return float(((found - true).norm(dim=1) < 1e-4 * true.norm(dim=1)).double().mean())


def table(world: World, servers: Servers) -> None:
    """One line for everything that is given away and every attacker; one column for every noise."""
    single = world.seen[:, None], world.label[:, None], torch.ones(len(world.x), 1, dtype=torch.bool)
    clear, pefll = servers.odpflhn[0], servers.pefll
    labelled = vmap(lambda *one: pefll.descriptor_of(Batch(*one), servers.embed)["v"])(*single)
    unlabelled = vmap(lambda *one: clear.describer(servers.encoder, Batch(*one)))(*single)
    psi = jacfwd(lambda pooled: clear.describer.describe(servers.encoder, pooled))(torch.zeros(clear.width))  # linear
    requested, lured, handed_out = (
        [partial(release, method) for method in servers.odpflhn]
        for release in (servers.requested, servers.lured, servers.handed_out)
    )
    rows: list[tuple[str, str, list[Any], Any]] = [
        ("descriptor", "PeFLL", [servers.described], partial(by_descriptor, labelled)),
        ("descriptor", "ODPFL-HN", requested, partial(by_descriptor, unlabelled)),
        ("descriptor, hostile server", "ODPFL-HN", lured, None),
        ("update, first round", "FedAvg", [partial(servers.updated, servers.fresh)], by_update),
        ("update, last round", "FedAvg", [partial(servers.updated, servers.common)], by_update),
        ("update, last round", "PeFLL", [servers.updated_own], by_update),
        ("model", "FedAvg+", [servers.tuned], by_model),
        ("model", "PeFLL", [servers.generated], by_model),
        ("model", "ODPFL-HN", handed_out, by_model),
    ]
    line("given away", "method", "attacker knows", "no noise", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS))
    line(*["---"] * (4 + len(EPSILONS)))
    for what, name, releases, learn in rows:
        if releases is not handed_out:  # made of a descriptor with noise, but not itself Gaussian
            noise = psi @ psi.T if releases is requested else None
            line(what, name, "all others", *(all_others(world, release, releases[0], noise) for release in releases))
        if learn:
            line(what, name, "population", *(population(world, release, learn) for release in releases))
    line("common model", "FedAvg", "population", servers.common_model())
    promised = [(math.exp(epsilon) - 1 + 2 * DELTA) / (math.exp(epsilon) + 1) for epsilon in EPSILONS]
    line("bound, (epsilon, delta)", "", "anything", "1.00", *(f"{most:.2f}" for most in promised))
    gaussian = [least_delta(0.0, sigma(epsilon, DELTA)) for epsilon in EPSILONS]
    line("bound, Gaussian noise", "", "anything", "1.00", *(f"{most:.2f}" for most in gaussian))
    for what, name, releases, _ in rows:
        if what == "model":
            scores = [world.accuracy(release(world.groups[2], world.groups[2].inside)) for release in releases]
            line("accuracy", name, "", *(f"{score:.1f} %" for score in scores))


def line(*cells: str) -> None:
    print("| " + " | ".join([*cells, *[""] * (4 + len(EPSILONS) - len(cells))]) + " |", flush=True)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2000, help="in each of the three groups")
    parser.add_argument(
        "--examples", type=int, default=20, help="of a client, half of them of either class; at most 42"
    )
    parser.add_argument("--rounds", type=int, default=200, help="of every training")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    if options.examples not in range(2, 43, 2) or options.clients < 1 or options.rounds < 1:
        parser.error("--examples must be even, from 2 to 42; --clients and --rounds at least 1")
    torch.set_num_threads(1)
    print(where(), vars(options), sep="\n")
    began = time.perf_counter()
    world = World(options.clients, options.examples, options.seed)
    servers = Servers(world, options.rounds)
    table(world, servers)
    print(f"Descriptors computed back from PeFLL's models: {100 * servers.traced_back():.1f} %")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
