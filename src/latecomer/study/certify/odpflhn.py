"""ODPFL-HN, supplement A: the least error of a novel client within what a hypernetwork can make.

The error of members on their training examples, the epsilon of Baxter's Theorem 2 (equation 9), and how far the novel
client's examples are from the members' (equation 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ... import tree
from ...clients import Clients
from ...engines.loop import Loop
from ...handover.trained import EVERYBODY, Trained
from ...methods.odpflhn import ODPFLHN
from ...settings import setting
from ...task import Task
from ...tree import Tree
from . import LEAST, MORE_LIKELY, Asked, Certificate, Tell, Term, gaps, remarks
from .posterior import Posterior, squared_norm, typical_size

AT_ONCE = 4096  # examples that a model predicts together

ASSUMES = [
    "assumes that members are drawn independently from one distribution of clients, and every client's examples "
    "independently from its own",
    "assumes the 0-1 loss, and covariate shift: a novel client's examples may differ, what they mean may not",
    "neglects, as the paper does, lambda and 4 sqrt((2 d log(2 m) + log(2 / delta)) / m) of equation 11, which a model "
    "of many weights does not make small",
    "assumes that the loss changes by at most --lipschitz for every unit that the hypernetwork's weights move, and for "
    "every unit that a descriptor does, and that each lies in a ball of radius |weights|: log C(epsilon / 32) is then "
    "at most their number times log(1 + 64 |weights| lipschitz / epsilon) for H*, and with 128 for 64 for H^n, where "
    "both move. Nobody knows that constant: 0, the default, counts a single model, the least there can be",
    "takes |weights| from the trained hypernetwork, though the ball must be chosen before the data are seen",
    "takes covering numbers at epsilon / 32, as Baxter's Theorem 2 has them, where the supplement prints 32 / epsilon",
    "takes the largest difference in how often two of the members' models disagree as half the divergence of two "
    "clients, an estimate: the supremum over all pairs of models is larger, but rates on few examples differ by chance",
    "takes the error of the models that the encoder chooses for members, which is at least the infimum of equation 8",
    "speaks of the best model that the hypernetwork could make for a novel client, not of the one that it makes",
    "takes the harmonic mean of members' numbers of examples as m",
]


@dataclass(frozen=True, kw_only=True)
class Settings(Asked):
    delta: float = setting(0.05, "probability that the bound fails", low=LEAST, below=1)
    lipschitz: float = setting(
        0.0, "how fast the loss changes with weights and descriptor; 0: the best case", low=0, high=1e100
    )
    draws: int = setting(50, "members drawn, by whose models' disagreement clients are told apart", low=2)
    seed: int = setting(0, "of the draws", low=0)


def covers(epsilon: float, clients: int, weights: int, descriptor: int, reach: float) -> tuple[float, float]:
    """log C(epsilon / 32) of H*, whose sets move with the weights, and of H^n, whose models move with weights and
    descriptor, so that each may go half as far. `reach` is radius times Lipschitz constant."""
    one, both = math.log1p(64 * reach / epsilon), math.log1p(128 * reach / epsilon)
    return weights * one, (weights + clients * descriptor) * both


def epsilon(
    clients: int, examples: float, delta: float, weights: int = 0, descriptor: int = 0, reach: float = 0.0
) -> float:
    """The least epsilon for which there are clients and examples enough. Hypernetworks have so many `weights`, and n
    clients besides so many numbers each in their descriptors."""

    def enough(value: float) -> bool:
        log_c = [log + math.log(8 / delta) for log in covers(value, clients, weights, descriptor, reach)]
        n = max(256 * log_c[0], 64) / value**2
        m = max(256 * log_c[1] / clients, 64) / value**2
        return clients >= n and examples >= m

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def divergence(predictions: Tensor, owner: Tensor, members: int) -> Tensor:
    """Half the divergence of every latecomer from every member, [members, latecomers], as far as these models tell.

    `predictions` are [models, examples], `owner` says whose example each is: members count from 0, latecomers follow.
    """
    clients = int(owner.max()) + 1
    sizes = torch.bincount(owner, minlength=clients).double()
    found = torch.zeros(members, clients - members, dtype=torch.float64)
    for k in range(len(predictions) - 1):
        differ = (predictions[k] != predictions[k + 1 :]).double()
        rates = torch.zeros(len(differ), clients, dtype=torch.float64).index_add(1, owner, differ) / sizes
        for rate in rates:
            found = found.maximum((rate[:members, None] - rate[None, members:]).abs())
    return found


def terms(
    error: float,
    halves: float | None,
    clients: int,
    examples: float,
    delta: float,
    weights: int,
    descriptor: int,
    radius: float,
    lipschitz: float,
) -> list[Term]:
    """Equations 6 and 9, from numbers; the last two terms are the floor and the bound. `halves` is the mean of half the
    divergences of latecomers from members; None: there are no latecomers."""
    eps = epsilon(clients, examples, delta, weights, descriptor, radius * lipschitz)
    cover = covers(eps, clients, weights, descriptor, radius * lipschitz)
    far = 0.0 if halves is None else halves
    how = "mean over members and latecomers" if halves is not None else "no latecomers: a client like members"
    return [
        Term("n", clients, "members"),
        Term("m", examples, "training examples of a member, harmonic mean"),
        Term("delta", delta),
        Term("weights", weights, "of the hypernetwork"),
        Term("descriptor", descriptor, "numbers in a client's descriptor"),
        Term("|weights|", radius, "radius of the ball that weights and descriptors lie in"),
        Term("lipschitz", lipschitz, "not known; 0: the best case"),
        Term("log C(epsilon/32, H*)", cover[0], "weights log(1 + 64 |weights| lipschitz / epsilon)"),
        Term("log C(epsilon/32, H^n)", cover[1], "(weights + n descriptor) log(1 + 128 |weights| lipschitz / epsilon)"),
        Term("empirical error", error, "of members, with the models that they get"),
        Term(
            "epsilon", eps, "least with n >= max(256 log(8 C(H*) / delta), 64) / epsilon^2, and m alike by C(H^n) / n"
        ),
        Term("half the divergence", far, how),
        Term("floor", epsilon(clients, examples, delta), "epsilon with C = 1; the theorem's bound is no less"),
        Term("bound", error + eps + far, "empirical error + epsilon + half the divergence"),
    ]


def certificate(run: Trained, asked: Settings, tell: Tell) -> Certificate:
    """The bound for a run of ODPFL-HN, as far as it is known, and its true gap."""
    number = run.server(asked.server)
    method, state = cast(ODPFLHN, run.method), run.states[number]

    def models(learned: Tree, clients: Clients) -> tuple[Tree, Tensor]:
        v = method.described({"learned": learned}, clients)
        return method.hyper.generate(learned["hyper"], v), torch.zeros(len(clients))

    posterior = Posterior.of(run, number, asked.device, state["learned"], models, lambda made: made)
    federation, hyper = posterior.federation, state["learned"]["hyper"]
    with torch.no_grad():
        deployed = posterior.drawn(0.0, 0.0, torch.Generator())
        order = torch.randperm(federation.members, generator=torch.Generator().manual_seed(asked.seed))
        some = order[: asked.draws].sort().values
        rows, _ = models(posterior.networks, Clients(posterior.describing, some, EVERYBODY, scratch=0))
        late = len(federation) > federation.first_late
        halves = float(divergence(*_predicted(run, number, rows, tell), federation.members).mean()) if late else None
    sizes = typical_size(federation.weight[: federation.members])
    room = method.hyper.size, method.hyper.descriptor, math.sqrt(squared_norm(hyper)), asked.lipschitz
    found = terms(deployed.train, halves, federation.members, sizes, asked.delta, *room)
    holds = (
        f"With probability {1 - asked.delta:g} at least, over members and their data, the least error that a model "
        "which the hypernetwork can make has on a novel client is at most the theorem's bound; the formula stands here "
        "with the empirical error of the models that clients get, and with estimates of what is not known."
    )
    assumes = [*remarks(run, MORE_LIKELY, "the divergence is there for that, as far as it is known"), *ASSUMES]
    if run.experiment.settings.permutations > 1:
        assumes.insert(0, "assumes that an image means the same to all clients; with --permutations it does not")
    risks = gaps(deployed.train, deployed.members, deployed.latecomers)
    title = f"ODPFL-HN, supplement A, for {run.path.name}"
    return Certificate(title, found, found[-1].value, holds, assumes, risks, floor=found[-2].value)


def _predicted(run: Trained, number: int, rows: Tree, tell: Tell) -> tuple[Tensor, Tensor]:
    """What every model says of all training examples, of members and latecomers; and whose they are."""
    federation, method = run.federations[number], run.method
    late = range(federation.first_late, len(federation))
    loop, examples, owner = Loop(method, [federation]), [], []
    for place, client in enumerate([*range(federation.members), *late]):
        mine = loop.home(0, client, EVERYBODY, 0).all()
        examples.append(mine.x[mine.real])
        owner.append(torch.full((len(examples[-1]),), place))
    x, rows = torch.cat(examples), tree.to(rows, torch.device("cpu"))
    found = []
    for k in range(len(tree.leaves(rows)[0])):
        found.append(_labels(method.task, tree.row(rows, k), x))
        tell(k + 1, len(tree.leaves(rows)[0]))
    return torch.stack(found), torch.cat(owner)


def _labels(task: Task, model: Tree, x: Tensor) -> Tensor:
    return torch.cat([task.logits(model, part).argmax(-1) for part in x.split(AT_ONCE)])
