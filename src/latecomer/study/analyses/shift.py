"""kNN-Per, Fig. 4, 14: datastores under arriving data, and a shift of every client's distribution.

As the paper's appendix B says: for every class two vectors of shares over the clients are drawn from a Dirichlet
distribution, so that a client has two data sets S and S'. Half of S is in the datastore at the beginning, the rest
arrives until the shift, and S' after it. Tests are on S before the shift and on S' from then on. A client whose S is
larger than its S' swaps the two (the paper only says that S is never the larger one).

The paper does not say which lambda it uses here. Ours is one for all clients, the best on a fifth of S that is held out
before anything arrives, unless --blend gives another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ... import tree
from ...clients import Clients
from ...data import Federation, Source, load
from ...engines import at_hand, make
from ...errors import SettingError
from ...evaluate import Scores
from ...handover.meet import unused
from ...handover.trained import Trained
from ...methods.knnper import KnnPer
from ...settings import setting
from ...tree import Tree
from ..figure import AXES, Figure, Panels, Series
from ..rescore import Scoring, Voting
from . import Analysis, labels

read = Trained.load
Rule = Literal["fifo", "concatenate", "fixed"]
RULES: tuple[Rule, ...] = ("fifo", "concatenate", "fixed")
ALONE = "model alone"
FEWEST = 10  # examples in S, with which a client can take part


@dataclass(frozen=True, kw_only=True)
class Settings:
    clients: int = setting(20, "clients that the data are dealt to", low=1)
    dealt: float = setting(1.0, "share of each class's examples that is dealt to them", above=0, high=1)
    alpha: float = setting(0.3, "of the Dirichlet distributions that S and S' are drawn from", above=0)
    shift: int = setting(50, "the time step of the shift (t0)", low=1)
    steps: int = setting(100, "time steps in all (T)", low=2)
    every: int = setting(10, "time steps between scores", low=1)
    blend: float | None = setting(None, "lambda for all clients; not given: the best on held-out data", low=0, high=1)
    fresh: bool = setting(True, "deal only what no member and no validator of the run had to train or select by")
    device: str = setting("auto", "cpu, cuda, or auto: cuda where there is one")

    def __post_init__(self) -> None:
        if self.shift >= self.steps:
            raise SettingError(f"--shift must come before the last of {self.steps} time steps; got {self.shift}.")


def analyse(runs: Sequence[Trained], asked: Settings) -> Analysis:
    kinds, marks = (*RULES, ALONE), {*range(0, asked.steps, asked.every), asked.shift - 1, asked.shift, asked.steps - 1}
    rows, figures, notes = [], [], []
    for run, name in zip(runs, labels(runs), strict=True):
        voting, source = Voting.of(run, Scoring(device=asked.device)), load(run.experiment.settings.data)
        courses = []
        for number, seed in enumerate(run.seeds):
            mine = unused(run, source, number) if asked.fresh else source
            world = World(mine, asked, seed)
            play = Play(world, voting.method, voting.states[number]["params"], asked)
            blend, right = play.best((0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if asked.blend is None else (asked.blend,))
            notes.append(
                f"{name}, seed {seed}: {len(world.old)} clients ({world.dropped} had too few examples); lambda "
                f"{blend:g}, with which {right:.1f} % of what is held out of S are right before anything arrives."
            )
            courses.append(play.course(blend, sorted(marks)))
        mean = {kind: [fmean(course[kind][k] for course in courses) for k in range(len(marks))] for kind in kinds}
        rows += [[name, time, *(mean[kind][k] for kind in kinds)] for k, time in enumerate(sorted(marks))]
        series = [Series(kind, [float(time) for time in sorted(marks)], mean[kind]) for kind in kinds]
        figures.append(Figure(name, "lines", "time", AXES["pooled"], series))
    title = f"Accuracy over time, with a shift at {asked.shift}"
    return Analysis(title, ["run", "time", *kinds], rows, Panels(title, figures), notes)


class World:
    """All clients' streams: S, of which a part is held out for validation, then S'."""

    def __init__(self, source: Source, asked: Settings, seed: int) -> None:
        random, clients = np.random.default_rng(seed), asked.clients
        y_train, y_test = np.asarray(source.y_train), np.asarray(source.y_test)
        old, new = asked.dealt * random.dirichlet([asked.alpha] * clients, (2, source.classes))  # [classes, clients]
        train = [deal(y_train, shares, random) for shares in (old, new)]
        test = [[row + len(y_train) for row in deal(y_test, shares, random)] for shares in (old, new)]
        for client in range(clients):
            if len(train[0][client]) > len(train[1][client]):
                for pair in (train, test):
                    pair[0][client], pair[1][client] = pair[1][client], pair[0][client]
        whole = [k for k in range(clients) if len(train[0][k]) >= FEWEST and len(test[0][k]) and len(test[1][k])]
        if not whole:
            raise SettingError(
                f"None of {clients} clients has {FEWEST} examples before the shift and some to test on; "
                "take fewer --clients, more --dealt, or --no-fresh to deal members' examples once more."
            )
        self.dropped = clients - len(whole)
        held = [len(train[0][k]) // 5 for k in whole]
        self.val = [train[0][k][:count] for k, count in zip(whole, held, strict=True)]
        self.old = [train[0][k][count:] for k, count in zip(whole, held, strict=True)]
        self.new = [train[1][k] for k in whole]
        self.tests = [[rows[k] for k in whole] for rows in test]
        self.source, self.seed = source, seed

    def federation(self, test: Sequence[Any], val: Sequence[Any] | None) -> Federation:
        """The clients with their streams, tested on S or on S'."""
        s, stream = self.source, [np.concatenate(pair) for pair in zip(self.old, self.new, strict=True)]
        known: dict[str, Any] = {"classes": s.classes, "mean": s.mean, "std": s.std, "seed": self.seed}
        return Federation.from_arrays(s.x, s.y, train=stream, val=val, test=test, **known)

    def clocks(self, time: int, shift: int, steps: int) -> Tree:
        """What share of each client's stream was there at the beginning, and is there after a time step."""
        old = torch.tensor([len(rows) for rows in self.old]).double()
        new = torch.tensor([len(rows) for rows in self.new]).double()
        half = (old / 2).ceil()
        came = half + (old - half) * min(1.0, (time + 1) / shift) + new * max(0.0, (time + 1 - shift) / (steps - shift))
        return {"first": (half / (old + new)).float(), "now": (came.floor() / (old + new)).float()}


def deal(y: NDArray[Any], shares: NDArray[Any], random: np.random.Generator) -> list[NDArray[Any]]:
    """For every client the places of its examples: of each class its share, rounded, in random order.

    Where shares come to less than one, the others are nobody's.
    """
    rows: list[list[int]] = [[] for _ in range(shares.shape[1])]
    for label, share in enumerate(shares):
        mine = random.permutation(np.flatnonzero(y == label))
        for client, part in enumerate(np.split(mine, np.rint(share.cumsum() * len(mine)).astype(int))[: len(share)]):
            rows[client] += part.tolist()
    return [random.permutation(row).astype(int) for row in rows]


class Play:
    """A world in which clients vote with the datastores of several rules."""

    def __init__(self, world: World, method: KnnPer, params: Tree, asked: Settings) -> None:
        self.world, self.params, self.asked = world, params, asked
        several = len(method.neighbours) * len(method.sigma) > 1
        held_out = world.val if several else None  # else clients choose nothing: votes on it would be for nothing
        self.federations = [world.federation(test, held_out) for test in world.tests]
        self.judging = [world.federation(world.tests[0], world.val)]
        self.ids = torch.arange(len(world.old))
        self.method = replace(method, clients=len(self.ids), members=len(self.ids))

    def best(self, blends: Sequence[float]) -> tuple[float, float]:
        """The lambda with which most held-out examples of S are right, and how many percent they are."""
        right = {}
        for blend in blends:
            actor = self.actor("fixed", blend, self.judging)
            self.at(-1, *actor, 0)
            right[blend] = self.scored(*actor, 0, "val")
        found = max(right, key=lambda blend: right[blend])
        return found, right[found]

    def course(self, blend: float, times: Sequence[int]) -> dict[str, list[float]]:
        """Of every rule, and of the model alone, how many percent of the test examples are right at these times."""
        rules: dict[str, tuple[Rule, float]] = {rule: (rule, blend) for rule in RULES} | {ALONE: ("fixed", 0.0)}
        actors = {name: self.actor(*rule, self.federations) for name, rule in rules.items()}
        found: dict[str, list[float]] = {name: [] for name in actors}
        for time in times:
            now = int(time >= self.asked.shift)
            for name, actor in actors.items():
                self.at(time, *actor, now)
                found[name].append(self.scored(*actor, now))
        return found

    def actor(self, rule: Rule, blend: float, federations: Sequence[Federation]) -> tuple[KnnPer, Any]:
        method = replace(self.method, datastore=rule, blends=(blend,))
        return method, make("vector", method, federations, at_hand(self.asked.device), graphs=False)

    def at(self, time: int, method: KnnPer, engine: Any, now: int) -> None:
        """Tell all clients what has come by a time step."""
        clocks = tree.to(self.world.clocks(time, self.asked.shift, self.asked.steps), engine.device)
        Clients(engine, self.ids, time, run_index=now).run(method.arrive, each=clocks)

    def scored(self, method: KnnPer, engine: Any, now: int, split: str = "test") -> float:
        """Percent right, all clients' examples together."""
        sent = {"params": tree.to(self.params, engine.device)}
        replies = Clients(engine, self.ids, -1, run_index=now).run(method.score, shared=sent)
        told = tree.to(replies.each, torch.device("cpu"))
        return Scores.of(self.ids, told, replies.heard.cpu()).summary(split)["pooled"]
