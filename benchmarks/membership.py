"""Was this example among a client's? What descriptors, updates and models give away, without noise and with it.

    python benchmarks/membership.py [--clients 2000] [--examples 20] [--rounds 200] [--seed 0]

Digits are dealt into four parts that share no example. On the first the servers are trained. Clients drawn from the
second teach an attacker what is usual, those from the third choose its score and threshold, and those from the fourth
are attacked with both as they are. A client has two classes, and the attacker knows which. Advantage is the share of
its own examples that are taken for its own, less the share of others, of the same classes, that are; the interval is a
bootstrap over clients (95 %).

Three attackers. One knows the *population*, and the example in question. One knows *all others* of the client's
examples, and two of which one is the last: the question of differential privacy. The third, a *hostile server*, knows
that too and chooses the encoder's weights. Two bounds stand beside them: what (epsilon, delta) allows, and what the
Gaussian noise that keeps this promise allows.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap
from torch.nn.functional import cosine_similarity

from common import where
from latecomer import Batch, Clients, Federation, Method, Tree, make_engine, make_task, tree
from latecomer.data.sources import load
from latecomer.engines.home import Homes
from latecomer.methods.fedavg import FedAvg
from latecomer.methods.fedavgplus import FedAvgPlus
from latecomer.methods.odpflhn import ODPFLHN
from latecomer.methods.pefll import PeFLL
from latecomer.nets.models import builder
from latecomer.privacy import delta as smallest_delta
from latecomer.privacy import sigma
from latecomer.train import Plan, Training

EPSILONS, DELTA, MEMBERS = (8.0, 2.0, 1.0, 0.5), 1e-5, 40
AVERAGED = {"lr": 0.3, "epochs": 5, "batch": 8}
GENERATED = {"lr": 0.05, "server_lr": 2e-3, "descriptor": 1 + MEMBERS // 4}
SET = {"epochs": 5, "batch": 8, "encoder_lr": 2e-3, "pool": "mean", "bound": 3.0, "delta": DELTA}
Scores = dict[str, tuple[Tensor, Tensor]]  # of several ways to score: [clients, of its own], [clients, of others]


@dataclass(frozen=True)
class Group:
    """Clients whose examples are from one part: the rows that are theirs, and as many of their classes that are not."""

    inside: Tensor  # [clients, examples]; one class, then the other
    outside: Tensor
    pair: Tensor  # [clients]: both classes as one number
    seed: int

    @staticmethod
    def drawn(part: list[Any], clients: int, examples: int, seed: int) -> Group:
        random, half = np.random.default_rng(seed), examples // 2
        pairs = np.sort([random.permutation(len(part))[:2] for _ in range(clients)])
        rows = np.array([[random.permutation(part[label])[: 2 * half] for label in pair] for pair in pairs])
        inside, outside = (torch.from_numpy(some.reshape(clients, -1)) for some in np.split(rows, 2, axis=2))
        return Group(inside, outside, torch.from_numpy(pairs @ [len(part), 1]), seed)

    @property
    def neighbours(self) -> Tensor:
        """The same clients with their first example replaced by one of their other class."""
        return torch.cat([self.outside[:, -1:], self.inside[:, 1:]], 1)


class World:
    """The examples, who is there, and what a client with given rows would send or keep."""

    def __init__(self, clients: int, examples: int, seed: int) -> None:
        source = load("digits")
        self.x, self.y = (np.concatenate(two) for two in ((source.x_train, source.x_test), (source.y_train, source.y_test)))
        self.options: dict[str, Any] = {"classes": source.classes, "mean": source.mean, "std": source.std}
        random = np.random.default_rng(seed)
        dealt = [np.array_split(random.permutation(np.flatnonzero(self.y == c)), 4) for c in range(source.classes)]
        parts = list(zip(*dealt, strict=True))
        self.members = Group.drawn(parts[0], MEMBERS, examples, 10 * seed)
        self.reference, self.shadow, self.trial = (
            Group.drawn(parts[k], clients, examples, 10 * seed + k) for k in (1, 2, 3)
        )
        self.usual = torch.from_numpy(np.array([rows[:20] for rows in parts[1]]))  # [classes, 20], the attacker's own
        federation = self.federation(self.members.inside, 0)
        homes = Homes([federation], torch.device("cpu"), torch.float32)
        self.seen = homes.take(torch.arange(len(self.x)), homes.client_rows(0, torch.tensor([0]))[0])
        self.label = federation.examples.y
        self.task = make_task(federation, builder("auto", federation.examples.shape))

    def federation(self, rows: Tensor, seed: int) -> Federation:
        own = [row.numpy() for row in rows]
        return Federation.from_arrays(self.x, self.y, train=own, val=own, test=own, seed=seed, **self.options)

    def method(self, kind: type[Method], **settings: Any) -> Any:
        return kind(task=self.task, clients=MEMBERS, members=MEMBERS, **settings)

    def trained(self, method: Method, rounds: int) -> Tree:
        federation = self.federation(self.members.inside, self.members.seed)
        plan = Plan(rounds=rounds, cohort=10, evaluate_every=rounds)
        training = Training(method, [federation], make_engine("vector", method, [federation], "cpu"), plan)
        for _ in training.go():
            pass
        return training.states[0]

    def ask(self, step: Any, rows: Tensor, seed: int, number: int, kept: bool = False, **sent: Tree) -> Tree:
        """What clients with these rows answer, or keep; noise follows from seed and number."""
        engine = make_engine("vector", step.__self__, [self.federation(rows, seed)], "cpu", graphs=False)
        replies = Clients(engine, torch.arange(len(rows)), number).run(step, **sent).each
        return engine.memories(0)["rows"] if kept else replies

    def confidence(self, params: Tree, rows: Tensor) -> Tensor:
        """Log odds of the right label, of every client's model for its rows of examples."""

        def one(own: Tree, some: Tensor) -> Tensor:
            chances = self.task.logits(own, self.seen[some]).log_softmax(-1)
            right = chances.gather(1, self.label[some][:, None])[:, 0]
            return right - torch.log(-torch.expm1(right.clamp(max=-1e-6)))

        return vmap(one, chunk_size=100)(params, rows)

    def accuracy(self, params: Tree, rows: Tensor) -> float:
        right = vmap(lambda own, some: self.task.logits(own, self.seen[some]).argmax(-1) == self.label[some])
        return 100 * float(right(params, rows).double().mean())


# what attackers make of what they see: learned from the reference clients, asked about any others


def by_descriptor(world: World, embedded: Tensor, v: Tensor) -> Callable[[Group, Tensor], Scores]:
    """The likelihood ratio, were descriptors Gaussian: with the example in question as one of many, or without."""
    means = embedded[world.usual].mean(1)  # [classes, size]
    gap = v - means[world.label[world.reference.inside]].mean(1)
    spread = gap.T @ gap / len(gap)
    precision = torch.linalg.pinv(spread, hermitian=True)

    def scores(group: Group, v: Tensor) -> Scores:
        aim = (v - means[world.label[group.inside]].mean(1)) @ precision
        count = group.inside.shape[1]

        def ratio(rows: Tensor) -> Tensor:
            moved = (embedded[rows] - means[world.label[rows]]) / count  # [clients, examples, size]
            return (moved @ aim[..., None])[..., 0] - ((moved @ precision) * moved).sum(-1) / 2

        return {"likelihood": (ratio(group.inside), ratio(group.outside))}

    return scores


def by_pair(world: World, values: Tensor) -> Tensor:
    """The mean of the reference clients' values for every pair of classes."""
    table = values.new_zeros(len(world.usual) ** 2, *values.shape[1:]).index_add(0, world.reference.pair, values)
    return table / torch.bincount(world.reference.pair, minlength=len(table)).clamp(min=1).view(-1, *[1] * (values.ndim - 1))


def by_model(world: World, params: Tree) -> Callable[[Group, Tree], Scores]:
    """How sure a model is of its label; and how much surer than models of others with the same classes."""
    everything = torch.arange(len(world.label)).expand(len(world.reference.pair), -1)
    usual = by_pair(world, world.confidence(params, everything))

    def scores(group: Group, params: Tree) -> Scores:
        sides = group.inside, group.outside
        sure = [world.confidence(params, rows) for rows in sides]
        surer = [own - usual[group.pair[:, None], rows] for own, rows in zip(sure, sides, strict=True)]
        return {"confidence": (sure[0], sure[1]), "surer than others": (surer[0], surer[1])}

    return scores


def by_update(world: World, sent: tuple[Tree, Tree]) -> Callable[[Group, tuple[Tree, Tree]], Scores]:
    """Whether an update goes where the example's gradient would have it go; and as `by_model`, after the update."""
    flat = vmap(tree.ravel)
    usual, models = by_pair(world, flat(sent[1])), by_model(world, tree.add(*sent))

    def downhill(params: Tree, rows: Tensor) -> Tensor:
        batch = Batch(world.seen[rows], world.label[rows], torch.ones_like(rows, dtype=torch.bool))
        return -tree.ravel(grad(world.task.loss)(params, batch))

    def one(params: Tree, change: Tensor, gap: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        own = vmap(partial(downhill, params))(rows[:, None])
        means = vmap(partial(downhill, params))(world.usual[world.label[rows[[0, -1]]]])  # of both classes
        rest = own - means.repeat_interleave(len(rows) // 2, 0)
        return cosine_similarity(own, change[None]), cosine_similarity(rest, gap[None])

    def scores(group: Group, sent: tuple[Tree, Tree]) -> Scores:
        change = flat(sent[1])
        given = sent[0], change, change - usual[group.pair]
        found = [vmap(one, chunk_size=50)(*given, rows) for rows in (group.inside, group.outside)]
        cosines = {name: (found[0][k], found[1][k]) for k, name in enumerate(("cosine", "cosine of what is left"))}
        return cosines | models(group, tree.add(*sent))

    return scores


def by_all_others(seen: list[Tensor], clear: list[Tensor], precision: Tensor | None = None) -> Scores:
    """The likelihood ratio of both neighbours; without noise, which of them is nearer."""
    aim = clear[0] - clear[1] if precision is None else (clear[0] - clear[1]) @ precision
    return {"": tuple(((one - sum(clear) / 2) * aim).sum(-1, keepdim=True) for one in seen)}  # type: ignore[dict-item]


# how well they do


def best_threshold(inside: Tensor, outside: Tensor) -> tuple[float, float]:
    """The largest advantage that any threshold has, and that threshold."""
    places = torch.cat([inside.flatten(), outside.flatten()]).double().sort().values
    above = [1 - torch.searchsorted(some.double().flatten().sort().values, places, right=True) / some.numel() for some in (inside, outside)]
    best = int((above[0] - above[1]).argmax())
    return float(above[0][best] - above[1][best]), float(places[best : best + 2].mean())


def advantage(shadow: Scores, trial: Scores) -> str:
    """Of the score and threshold that the shadow clients choose, on the trial clients, with its interval."""
    chosen = {name: best_threshold(*sides) for name, sides in shadow.items()}
    name = max(chosen, key=lambda name: chosen[name][0])
    hits, alarms = (side.double().gt(chosen[name][1]).double().mean(1) for side in trial[name])
    gain = (hits - alarms).numpy()  # one number a client
    draws = np.random.default_rng(0).choice(gain, (2000, len(gain))).mean(1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return f"{gain.mean():.2f} [{low:.2f}, {high:.2f}]" + f" {name}" * (len(chosen) > 1)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2000, help="of each of the three groups")
    parser.add_argument("--examples", type=int, default=20, help="of a client; an even number up to 42")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    print(where())
    began, world = time.perf_counter(), World(options.clients, options.examples, options.seed)
    groups = world.reference, world.shadow, world.trial

    def line(*cells: str) -> None:
        print("| " + " | ".join(cells) + " |", flush=True)

    def population(release: Callable[[Group], Any], attack: Callable[[Any], Callable[[Group, Any], Scores]]) -> str:
        scores = attack(release(groups[0]))
        return advantage(*(scores(group, release(group)) for group in groups[1:]))

    def all_others(release: Callable[..., Tensor], clear: Callable[..., Tensor], precision: Tensor | None = None) -> str:
        """`release(group, rows, number)`; each of both neighbours has noise of its own."""
        found = []
        for group in groups[1:]:
            sides = (group.inside, -1), (group.neighbours, -2)
            found.append(by_all_others([release(group, *side) for side in sides], [clear(group, *side) for side in sides], precision))
        return advantage(*found)

    average, tuning = world.method(FedAvg, **AVERAGED), world.method(FedAvgPlus, **AVERAGED)
    pefll, sets = world.method(PeFLL, steps=10, **GENERATED), world.method(ODPFLHN, **GENERATED, **SET)
    common = world.trained(average, options.rounds)
    labelled, unlabelled = (world.trained(method, options.rounds) for method in (pefll, sets))
    embed, encoder = labelled["learned"]["embed"], unlabelled["learned"]["encoder"]
    private = [world.method(ODPFLHN, epsilon=epsilon, **GENERATED, **SET) for epsilon in EPSILONS]
    print(f"Three servers trained in {time.perf_counter() - began:.0f} s.")

    def described(group: Group, rows: Tensor, number: int = -1) -> Tensor:
        return world.ask(pefll.describe_fully, rows, group.seed, number, shared={"embed": embed})["v"]

    def requested(method: ODPFLHN, group: Group, rows: Tensor, number: int = -1) -> Tensor:
        return world.ask(method.request, rows, group.seed, number, shared={"encoder": encoder})["v"]

    def answered(method: ODPFLHN, group: Group, rows: Tensor, number: int) -> Tensor:
        """To a server whose encoder lights one unit for the example in question, and another for its neighbour."""
        one, other = (world.seen[some[:, 0]].flatten(1) for some in (group.inside, group.neighbours))
        line, middle = 1e3 * (one - other), 1e3 * ((one - other) * (one + other)).sum(1) / 2
        made = tree.map(lambda leaf: leaf.new_zeros(len(rows), *leaf.shape), encoder)
        made["phi"]["1.weight"][:, 0], made["phi"]["1.bias"][:, 0] = line, -middle
        made["phi"]["1.weight"][:, 1], made["phi"]["1.bias"][:, 1] = -line, middle
        made["psi"]["0.weight"][:, 0, 0], made["psi"]["0.weight"][:, 0, 1] = 1.0, -1.0
        return world.ask(method.request, rows, group.seed, number, each={"encoder": made})["v"][:, :1]

    def updated(group: Group, rows: Tensor, number: int = 0) -> tuple[Tree, Tree]:
        each = tree.map(lambda leaf: leaf.expand(len(rows), *leaf.shape), common)
        return each["params"], world.ask(average.fit, rows, group.seed, options.rounds, each=each)

    def generated(group: Group, rows: Tensor) -> Tree:
        return pefll.generate(labelled["learned"]["hyper"], described(group, rows), labelled["standard"])

    def updated_from_own(group: Group, rows: Tensor, number: int = 0) -> tuple[Tree, Tree]:
        each = {"params": generated(group, group.inside)}
        return each["params"], world.ask(pefll.fit, rows, group.seed, options.rounds, each=each)

    def tuned(group: Group, rows: Tensor) -> Tree:
        return world.ask(tuning.tune, rows, group.seed, -1, kept=True, shared=common)["params"]

    def requested_model(method: ODPFLHN, group: Group) -> Tree:
        return sets.hyper.generate(unlabelled["learned"]["hyper"], requested(method, group, group.inside))

    def of_inside(release: Callable[..., Any]) -> Callable[[Group], Any]:
        return lambda group: release(group, group.inside)

    def change(release: Callable[..., tuple[Tree, Tree]]) -> Callable[..., Tensor]:
        return lambda *given: vmap(tree.ravel)(release(*given)[1])

    every = Batch(world.seen[:, None], world.label[:, None], torch.ones(len(world.x), 1, dtype=torch.bool))
    by_label = vmap(lambda x, y, real: pefll.descriptor_of(Batch(x, y, real), embed)["v"])(every.x, every.y, every.real)
    by_image = vmap(lambda x, y, real: sets.describer(encoder, Batch(x, y, real)))(every.x, every.y, every.real)
    reach = jacrev(lambda pooled: sets.describer.describe(encoder, pooled))(torch.zeros(sets.width))
    precision = torch.linalg.inv(reach @ reach.T)  # of noise on what is pooled, seen through psi
    none = [""] * len(EPSILONS)

    line("given away", "method", "attacker knows", "no noise", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS))
    line(*["---"] * (4 + len(EPSILONS)))
    for name, release, scores in (("PeFLL", described, by_label),):
        line("descriptor", name, "all others", all_others(release, release), *none)
        line("descriptor", name, "population", population(of_inside(release), partial(by_descriptor, world, scores)), *none)
    for words_, release in (("all others", requested), ("all others; hostile server", answered)):
        clear = partial(release, sets)
        found = [all_others(partial(release, method), clear, precision if release is requested else None) for method in (sets, *private)]
        line("descriptor", "ODPFL-HN", words_, *found)
    attack = partial(by_descriptor, world, by_image)
    line("descriptor", "ODPFL-HN", "population", *(population(of_inside(partial(requested, method)), attack) for method in (sets, *private)))
    for name, release in (("FedAvg", updated), ("PeFLL", updated_from_own)):
        line("update", name, "all others", all_others(change(release), change(release)), *none)
        line("update", name, "population", population(of_inside(release), partial(by_update, world)), *none)
    for name, release in (("FedAvg+", tuned), ("PeFLL", generated)):
        line("model", name, "population", population(of_inside(release), partial(by_model, world)), *none)
    models = [partial(requested_model, method) for method in (sets, *private)]
    line("model", "ODPFL-HN", "population", *(population(model, partial(by_model, world)) for model in models))
    line("accuracy", "ODPFL-HN", "", *(f"{world.accuracy(model(world.trial), world.trial.outside):.1f} %" for model in models))
    promised = [(math.exp(epsilon) - 1 + 2 * DELTA) / (math.exp(epsilon) + 1) for epsilon in EPSILONS]
    line("bound", "(epsilon, delta)", "anything", "1", *(f"{most:.2f}" for most in promised))
    line("bound", "Gaussian noise", "anything", "1", *(f"{smallest_delta(0.0, sigma(epsilon, DELTA)):.2f}" for epsilon in EPSILONS))
    for name, params in (("FedAvg", updated(world.trial, world.trial.inside)[0]), ("FedAvg+", tuned(world.trial, world.trial.inside)), ("PeFLL", generated(world.trial, world.trial.inside))):
        print(f"Accuracy of the attacked clients' models on others' examples, {name}: {world.accuracy(params, world.trial.outside):.1f} %")
    print(f"{time.perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main()
