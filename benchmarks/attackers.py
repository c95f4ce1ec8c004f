"""Who tries to tell a client's examples from others: clients drawn at random, attackers, and how well they do.

`membership.py` has the table. An attacker that knows the population is a function that learns from what the reference
clients gave away; what it returns scores the examples of any other group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cosine_similarity

from latecomer import Batch, Clients, Federation, Method, Tree, make_engine, make_task, tree
from latecomer.data.sources import load
from latecomer.engines.home import Homes
from latecomer.nets.models import builder
from latecomer.train import Plan, Training

MEMBERS = 40
Scores = dict[str, list[Tensor]]  # by the ways to score: [clients, examples] of a client's own, and of others
Attack = Callable[["Group", Any], Scores]


@dataclass(frozen=True)
class Group:
    """Clients whose examples are from one part: the rows that are theirs, and as many of their classes that are not."""

    inside: Tensor  # [clients, examples]; one class, then the other
    outside: Tensor
    pair: Tensor  # [clients]: both classes as one number
    seed: int

    @staticmethod
    def drawn(part: Any, others: Any, clients: int, examples: int, seed: int) -> Group:
        """Of every client's two classes some rows of `part`, and as many of `others`, which may be the same part."""
        random, half = np.random.default_rng(seed), examples // 2
        pairs = np.sort([random.permutation(len(part))[:2] for _ in range(clients)])
        inside = np.array([[random.permutation(part[label])[:half] for label in pair] for pair in pairs])
        outside = np.empty_like(inside)
        for client, place in np.ndindex(clients, 2):
            free = np.setdiff1d(others[pairs[client, place]], inside[client, place])
            outside[client, place] = random.permutation(free)[:half]
        sides = [torch.from_numpy(rows.reshape(clients, -1)) for rows in (inside, outside)]
        return Group(*sides, torch.from_numpy(pairs @ [len(part), 1]), seed)

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        return self.inside, self.outside

    @property
    def neighbours(self) -> tuple[Tensor, Tensor]:
        """The clients as they are, and with the first example replaced by one of the other class."""
        return self.inside, torch.cat([self.outside[:, -1:], self.inside[:, 1:]], 1)


class World:
    """The examples, who has them, and what clients with given rows answer."""

    def __init__(self, clients: int, examples: int, seed: int) -> None:
        source = load("digits")
        self.x, y = np.concatenate((source.x_train, source.x_test)), np.concatenate((source.y_train, source.y_test))
        self.options: dict[str, Any] = {"classes": source.classes, "mean": source.mean, "std": source.std}
        self.label, random = torch.from_numpy(y).long(), np.random.default_rng(seed)
        dealt = [np.array_split(random.permutation(np.flatnonzero(y == c)), 4) for c in range(source.classes)]
        parts = list(zip(*dealt, strict=True))
        self.groups = [Group.drawn(parts[k], parts[k], clients, examples, 10 * seed + k) for k in (1, 2, 3)]
        self.members = [Group.drawn(parts[k], parts[k + 1], MEMBERS, examples, 10 * seed + 4 + k) for k in (2, 0)]
        self.usual = torch.from_numpy(np.array([rows[:40] for rows in parts[1]]))  # [classes, 40]: to learn from
        federation = self.federation(self.members[1].inside, 0)
        homes = Homes([federation], torch.device("cpu"), torch.float32)
        self.seen = homes.take(torch.arange(len(self.x)), homes.client_rows(0, torch.tensor([0]))[0])
        self.task = make_task(federation, builder("auto", federation.examples.shape))

    def federation(self, rows: Tensor, seed: int) -> Federation:
        own = [row.numpy() for row in rows]
        return Federation.from_arrays(self.x, self.label, train=own, val=own, test=own, seed=seed, **self.options)

    def method(self, kind: type[Method], **settings: Any) -> Any:
        return kind(task=self.task, clients=MEMBERS, members=MEMBERS, **settings)

    def trained(self, method: Method, rounds: int, members: Group) -> Tree:
        federation = self.federation(members.inside, members.seed)
        plan = Plan(rounds=rounds, cohort=10, evaluate_every=rounds)
        training = Training(method, [federation], make_engine("vector", method, [federation], "cpu"), plan)
        training.complete()
        return training.states[0]

    def ask(self, step: Any, rows: Tensor, seed: int, number: int = -1, kept: bool = False, **sent: Tree) -> Tree:
        """What clients with these rows answer, or keep; noise follows from seed and number."""
        engine = make_engine("vector", step.__self__, [self.federation(rows, seed)], "cpu", graphs=False)
        replies = Clients(engine, torch.arange(len(rows)), number).run(step, **sent).each
        return engine.memories(0)["rows"] if kept else replies

    def confidence(self, params: Tree, rows: Tensor) -> Tensor:
        """Log odds of the right label, of every client's model for its rows of examples."""

        def one(own: Tree, some: Tensor) -> Tensor:
            logits, right = self.task.logits(own, self.seen[some]), self.label[some][:, None]
            return (logits.gather(1, right)[:, 0] - logits.scatter(1, right, -math.inf).logsumexp(1)).double()

        return vmap(one, chunk_size=100)(params, rows)

    def accuracy(self, params: Tree) -> float:
        """Of the attacked clients' models, in percent, on examples of their classes that are not theirs."""
        rows = self.groups[2].outside
        logits = vmap(lambda own, some: self.task.logits(own, self.seen[some]))(params, rows)
        return 100 * float((logits.argmax(-1) == self.label[rows]).double().mean())

    def by_pair(self, values: Tensor) -> Tensor:
        """The mean of the reference clients' values for every pair of classes."""
        pair = self.groups[0].pair
        sums = values.new_zeros(len(self.usual) ** 2, *values.shape[1:]).index_add(0, pair, values)
        return sums / torch.bincount(pair, minlength=len(sums)).clamp(min=1)[:, None]


# attackers that know the population: what they learn from the reference clients scores any others


def by_descriptor(embedded: Tensor, world: World, v: Tensor) -> Attack:
    """The likelihood ratio, were descriptors Gaussian: with the example in question as one of many, or without."""
    means = embedded[world.usual].mean(1)  # [classes, size]
    gap = v - means[world.label[world.groups[0].inside]].mean(1)
    precision = torch.linalg.pinv(gap.T @ gap / len(gap), hermitian=True)

    def scores(group: Group, v: Tensor) -> Scores:
        aim = (v - means[world.label[group.inside]].mean(1)) @ precision
        shifts = [(embedded[rows] - means[world.label[rows]]) / rows.shape[1] for rows in group.sides]
        return {"likelihood": [((aim[:, None] - shift @ precision / 2) * shift).sum(-1) for shift in shifts]}

    return scores


def by_model(world: World, params: Tree) -> Attack:
    """How sure a model is of the label; and how much surer than models of others with the same classes."""
    everything = torch.arange(len(world.label)).expand(len(world.groups[0].pair), -1)
    usual = world.by_pair(world.confidence(params, everything))

    def scores(group: Group, params: Tree) -> Scores:
        sure = [world.confidence(params, rows) for rows in group.sides]
        surer = [own - usual[group.pair[:, None], rows] for own, rows in zip(sure, group.sides, strict=True)]
        return {"confidence": sure, "surer than others": surer}

    return scores


def by_update(world: World, sent: tuple[Tree, Tree]) -> Attack:
    """Whether an update goes where the example's gradient points, when what others send is taken off; and the model."""
    usual, after = world.by_pair(vectors(sent)), by_model(world, tree.add(*sent))

    def downhill(params: Tree, rows: Tensor) -> Tensor:
        batch = Batch(world.seen[rows], world.label[rows], torch.ones_like(rows, dtype=torch.bool))
        return -tree.ravel(grad(world.task.loss)(params, batch))

    def one(params: Tree, change: Tensor, rows: Tensor) -> Tensor:
        both = vmap(partial(downhill, params))(world.usual[world.label[rows[[0, -1]]]])  # of either class
        own = vmap(partial(downhill, params))(rows[:, None]) - both.repeat_interleave(len(rows) // 2, 0)
        return cosine_similarity(own, change[None])

    def scores(group: Group, sent: tuple[Tree, Tree]) -> Scores:
        rest = vectors(sent) - usual[group.pair]
        cosines = [vmap(one, chunk_size=50)(sent[0], rest, rows) for rows in group.sides]
        return {"cosine": cosines} | after(group, tree.add(*sent))

    return scores


# how well they do


def best_threshold(inside: Tensor, outside: Tensor) -> tuple[float, float]:
    """The largest advantage that any threshold has, and that threshold."""
    sides = [side.double().flatten().sort().values for side in (inside, outside)]
    places = torch.cat(sides).sort().values
    hits, alarms = (1 - torch.searchsorted(side, places, right=True) / len(side) for side in sides)
    best = int((hits - alarms).argmax())
    return float(hits[best] - alarms[best]), float(places[best : best + 2].mean())


def advantage(shadow: Scores, trial: Scores) -> str:
    """Of the score and threshold that the shadow clients choose, on the trial clients, with its interval."""
    chosen = {name: best_threshold(*sides) for name, sides in shadow.items()}
    name = max(chosen, key=lambda name: chosen[name][0])
    hits, alarms = (side.double().gt(chosen[name][1]).double().mean(1) for side in trial[name])
    gain = (hits - alarms).numpy()  # one number a client
    again = np.random.default_rng(0).choice(gain, (2000, len(gain))).mean(1)
    mean, low, high = (round(float(value), 2) + 0.0 for value in (gain.mean(), *np.quantile(again, (0.025, 0.975))))
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def population(world: World, release: Callable[..., Any], learn: Callable[[World, Any], Attack]) -> str:
    """The advantage of an attacker that knows the population; `release(group, rows)` is what it sees."""
    reference, *others = world.groups
    scores = learn(world, release(reference, reference.inside))
    return advantage(*(scores(group, release(group, group.inside)) for group in others))


def all_others(world: World, release: Callable[..., Any], clear: Callable[..., Any], noise: Tensor | None) -> str:
    """The advantage of the likelihood ratio of two neighbours under noise of this covariance (None: the same for all
    numbers, or no noise, where the nearer one is meant). Each of them has noise of its own, by the number of its round.
    """
    found = []
    for group in world.groups[1:]:
        both = list(zip(group.neighbours, (-1, -2), strict=True))
        seen, (one, other) = ([vectors(what(group, *side)) for side in both] for what in (release, clear))
        aim = one - other if noise is None else torch.linalg.solve(noise, (one - other).T).T
        found.append({"ratio": [((vector - (one + other) / 2) * aim).sum(1, keepdim=True) for vector in seen]})
    return advantage(*found)


def vectors(released: Any) -> Tensor:
    """What was given away, a row a client: a descriptor, a model, or an update and what it started from."""
    if isinstance(released, tuple):
        return vectors(released[1])
    return released if isinstance(released, Tensor) else vmap(tree.ravel)(released)
