"""kNN-Per's Figures 4 and 14: datastores under arriving data, and a shift of every client's distribution.

    python benchmarks/knnper_shift.py [--data digits] [--clients 20] [--shift 50] [--steps 100] [--seed 0]

As the paper's appendix B says: for every class two vectors of shares over the clients are drawn from a Dirichlet
distribution (alpha 0.3), so that a client has two data sets S and S'. Half of S is in the datastore at the beginning,
the rest arrives until the shift, and S' after it. Tests are on S before the shift and on S' from then on.
A client whose S is larger than its S' swaps the two (the paper only says that S is never the larger one).

The paper does not say which lambda it uses here: ours is one for all clients, the best on a fifth of S that is held out
before anything arrives; --blend fixes another. The common model is FedAvg's, trained on the rest of S.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common import where
from latecomer import Clients, Federation, Tree, make_engine, make_task
from latecomer.data.sources import Source, load
from latecomer.evaluate import Scores
from latecomer.methods.fedavg import FedAvg
from latecomer.methods.knnper import KnnPer
from latecomer.nets.models import builder
from latecomer.train import Plan, Training

RULES = ("fifo", "concatenate", "fixed")
BLENDS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def deal(y: Any, shares: Any, random: np.random.Generator) -> list[Any]:
    """For every client the places of its examples: of each class its share, in random order."""
    rows: list[list[int]] = [[] for _ in range(shares.shape[1])]
    for label, share in enumerate(shares):
        mine = random.permutation(np.flatnonzero(y == label))
        for client, part in enumerate(np.split(mine, (share.cumsum()[:-1] * len(mine)).astype(int))):
            rows[client] += part.tolist()
    return [random.permutation(row).astype(int) for row in rows]


class World:
    """All clients' streams: S, of which a part is held out for validation, then S'."""

    def __init__(self, source: Source, clients: int, alpha: float, seed: int) -> None:
        random = np.random.default_rng(seed)
        y_train, y_test = np.asarray(source.y_train), np.asarray(source.y_test)
        old, new = random.dirichlet([alpha] * clients, (2, source.classes))  # [classes, clients]
        train = [deal(y_train, shares, random) for shares in (old, new)]
        test = [[row + len(y_train) for row in deal(y_test, shares, random)] for shares in (old, new)]
        for client in range(clients):
            if len(train[0][client]) > len(train[1][client]):
                for pair in (train, test):
                    pair[0][client], pair[1][client] = pair[1][client], pair[0][client]
        whole = [k for k in range(clients) if len(train[0][k]) >= 10 and len(test[0][k]) and len(test[1][k])]
        self.dropped = clients - len(whole)
        held = [len(train[0][k]) // 5 for k in whole]
        self.val = [train[0][k][:count] for k, count in zip(whole, held, strict=True)]
        self.old = [train[0][k][count:] for k, count in zip(whole, held, strict=True)]
        self.new = [train[1][k] for k in whole]
        self.tests = [[rows[k] for k in whole] for rows in test]
        self.source, self.seed = source, seed

    def federation(self, train: Sequence[Any], test: Sequence[Any]) -> Federation:
        s = self.source
        x, y = np.concatenate((s.x_train, s.x_test)), np.concatenate((s.y_train, s.y_test))
        options: dict[str, Any] = {"classes": s.classes, "mean": s.mean, "std": s.std, "seed": self.seed}
        return Federation.from_arrays(x, y, train=train, val=self.val, test=test, **options)

    def clocks(self, time: int, shift: int, steps: int) -> Tree:
        """What share of each client's stream was there at the beginning, and is there after a time step."""
        old = torch.tensor([len(rows) for rows in self.old]).double()
        new = torch.tensor([len(rows) for rows in self.new]).double()
        half = (old / 2).ceil()
        came = half + (old - half) * min(1.0, (time + 1) / shift) + new * max(0.0, (time + 1 - shift) / (steps - shift))
        return {"first": (half / (old + new)).float(), "now": (came.floor() / (old + new)).float()}


def scored(method: KnnPer, engine: Any, run: int, params: Tree, ids: Tensor, split: str = "test") -> float:
    """Percent right, all clients' examples together."""
    replies = Clients(engine, ids, -1, run_index=run).run(method.score, shared={"params": params})
    return Scores.of(ids, replies.each, replies.heard).summary(split)["pooled"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="auto")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--alpha", type=float, default=0.3)
    parser.add_argument("--shift", type=int, default=50, help="the time step of the shift (t0)")
    parser.add_argument("--steps", type=int, default=100, help="time steps in all (T)")
    parser.add_argument("--every", type=int, default=10, help="time steps between lines")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of FedAvg")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--blend", type=float, help="lambda for all clients, instead of the best on validation data")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(where())
    torch.manual_seed(options.seed)
    world = World(load(options.data), options.clients, options.alpha, options.seed)
    base = world.federation(world.old, world.tests[0])
    stream = [np.concatenate(pair) for pair in zip(world.old, world.new, strict=True)]
    federations = [world.federation(stream, test) for test in world.tests]
    ids, count = torch.arange(len(base)), len(base)
    task = make_task(base, builder(options.model, base.examples.shape))
    common = FedAvg(task=task, clients=count, members=count, lr=options.lr)
    training = Training(
        common, [base], make_engine("vector", common, [base]), Plan(rounds=options.rounds, cohort=count)
    )
    for _ in training.go():
        pass
    params = training.best[0].state["params"]  # type: ignore[union-attr]

    def built(rule: str, blend: float) -> tuple[KnnPer, Any]:
        kind: Any = {"datastore": rule, "blends": (blend,), "neighbours": (options.k,), "sigma": (options.sigma,)}
        method = KnnPer(task=task, clients=count, members=count, **kind)
        return method, make_engine("vector", method, federations)

    def at(time: int, method: KnnPer, engine: Any, run: int) -> None:
        Clients(engine, ids, time, run_index=run).run(
            method.arrive, each=world.clocks(time, options.shift, options.steps)
        )

    held_out = {}
    for blend in BLENDS if options.blend is None else (options.blend,):
        method, engine = built("fixed", blend)
        at(-1, method, engine, 0)
        held_out[blend] = scored(method, engine, 0, params, ids, "val")
    best = max(held_out, key=lambda blend: held_out[blend])
    print(
        f"{count} clients ({world.dropped} without enough examples left out), {options.data}; shift at {options.shift}"
    )
    print(f"lambda {best}: {held_out[best]:.1f} % of the validation examples right before the shift")
    kinds = {rule: built(rule, best) for rule in RULES} | {"model alone": built("fixed", 0.0)}
    print("time  " + "  ".join(f"{name:>11}" for name in kinds))
    marks = {*range(0, options.steps, options.every), options.shift - 1, options.shift, options.steps - 1}
    for time in sorted(marks):
        run = int(time >= options.shift)
        line = []
        for method, engine in kinds.values():
            at(time, method, engine, run)
            line.append(scored(method, engine, run, params, ids))
        print(f"{time:4}  " + "  ".join(f"{value:11.1f}" for value in line))


if __name__ == "__main__":
    main()
