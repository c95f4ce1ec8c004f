"""kNN-Per, Theorem 4.1: the expected error of a member that blends the common model with its nearest example's label.

It speaks of data in expectation, so it has neither a posterior nor a delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import cast

import torch
from torch import Tensor

from ...clients import Clients
from ...data import Federation
from ...engines.loop import Loop
from ...evaluate import KNOWN, RIGHT
from ...handover.trained import EVERYBODY, Trained
from ...methods.fedavg import FedAvg
from ...methods.knnper import KnnPer
from ...settings import setting
from ...tree import Tree
from ..rescore import Scoring, rescored
from . import Asked, Certificate, Tell, Term, gaps, remarks

ASSUMES = [
    "assumes that one half of a member's examples trains the common model, as the empirical minimiser over all, and "
    "the other half is its datastore; here all of them do both, by FedAvg",
    "takes 1 - p_y as the loss, p_y being the probability that a model gives the true answer: it is convex, and 0 or 1 "
    "where a model is certain (Assumptions 2 and 3); the share of wrong answers is at most twice that",
    "assumes features within [0, 1]^p: they are moved and divided by one number each, which leaves neighbours as they "
    "are",
    "assumes that some model is right on all that a member may meet, L(h*) = 0, the case that the paper discusses",
    "takes for gamma_1, where --gamma-1 does not say it, one over the least distance of two training examples of a "
    "member with different labels, as if labels were certain; Assumption 4 wants one for all examples, so this is the "
    "least",
    "takes for the discrepancy of a member the largest that the common model's answers and the constant ones show on "
    "training examples: an estimate, which few examples make too large, and other models of the class could exceed",
    "takes for d the number of the model's weights, where --vc does not say it, though that is no VC dimension; the "
    "growth function is at most what Sauer's lemma makes of d, and at most 2^n, whichever is less",
    "takes the proof's constants: c_1 = 2, c_2 = max(12 gamma_2, 6 gamma_1), c_3 = 4, c_5 = 24 gamma_2, but c_4 = "
    "max(16 / d, 1), where the paper's example, max(4 / sqrt(d), 1), is too small for d below 16",
    "takes sqrt(p) / n_m^(1 / (p + 1)) in both terms of neighbours, as Lemma A.2 has it",
    "takes lambda as members chose it by their validation examples, 0 and 1 too, which the theorem leaves out",
    "speaks of members, and of an expectation over all their data: it has no delta, and no theorem of the paper is "
    "about latecomers",
]


@dataclass(frozen=True, kw_only=True)
class Settings(Asked):
    gamma_1: float = setting(0.0, "how fast labels may change with features (Assumption 4); 0: as measured", low=0)
    gamma_2: float = setting(0.0, "how much faster for every unit of the common model's excess error", low=0)
    vc: int = setting(0, "VC dimension of the model; 0: as many as it has weights", low=0)


@dataclass(frozen=True)
class Member:
    """What the theorem has to know of a member."""

    blend: float  # lambda_m
    examples: int  # n_m
    discrepancy: float


def model_term(total: int, vc: int) -> float:
    """sqrt(d / n) sqrt(c_4 + log(n / d)), by Sauer's lemma; or less, since the growth function is at most 2^n."""
    all_ways = (4 + math.sqrt(total * math.log(2))) / (2 * math.sqrt(total))  # equation 28, divided by c_3 / 2
    if total <= vc + 1:
        return all_ways
    return min(all_ways, math.sqrt(vc / total) * math.sqrt(max(16 / vc, 1) + math.log(total / vc)))


def neighbour_term(features: int, examples: int) -> float:
    """sqrt(p) / n_m^(1 / (p + 1)): how far the nearest example may be."""
    return math.sqrt(features) / math.pow(examples, 1 / (features + 1))


def terms(
    members: Sequence[Member], features: int, vc: int, gamma: tuple[float, float], best: float = 0.0
) -> list[Term]:
    """Equation 12, averaged over members, from numbers; the last two terms are the floor and the bound. `best` is
    L(h*)."""
    total = sum(member.examples for member in members)
    c_2, c_5 = max(12 * gamma[1], 6 * gamma[0]), 24 * gamma[1]
    learned = model_term(total, vc)
    far = [neighbour_term(features, member.examples) for member in members]
    pairs = list(zip(members, far, strict=True))
    parts = [
        Term("best model", fmean((1 + m.blend) * best for m in members), "(1 + lambda) L(h*)"),
        Term("members differ", fmean(2 * (1 - m.blend) * m.discrepancy for m in members), "2 (1 - lambda) disc"),
        Term(
            "neighbours",
            fmean(c_2 * m.blend * near * (m.discrepancy + 1) if m.blend else 0.0 for m, near in pairs),
            "c_2 lambda sqrt(p) / n_m^(1/(p+1)) (disc + 1)",
        ),
        Term("common model", fmean(4 * (1 - m.blend) * learned for m in members), "4 (1 - lambda) complexity"),
        Term(
            "neighbours in its features",
            fmean(c_5 * m.blend * learned * near for m, near in pairs),
            "c_5 lambda complexity sqrt(p) / n_m^(1/(p+1))",
        ),
    ]
    floor = fmean(c_2 * m.blend * near if m.blend else 0.0 for m, near in pairs)
    return [
        Term("M", len(members), "members"),
        Term("n", total, "training examples of all members"),
        Term("n_m", fmean(m.examples for m in members), "training examples of a member, mean"),
        Term("p", features, "features"),
        Term("d", vc, "VC dimension"),
        Term("gamma_1", gamma[0]),
        Term("gamma_2", gamma[1]),
        Term("c_2", c_2, "max(12 gamma_2, 6 gamma_1)"),
        Term("c_5", c_5, "24 gamma_2"),
        Term("lambda", fmean(m.blend for m in members), "what members chose, mean"),
        Term("disc", fmean(m.discrepancy for m in members), "mean over members, an estimate"),
        Term("sqrt(p) / n_m^(1/(p+1))", fmean(far), "mean over members"),
        Term("complexity", learned, "sqrt(d / n) sqrt(c_4 + log(n / d)), or by 2^n where that is less"),
        *parts,
        Term("floor", floor, "c_2 lambda sqrt(p) / n_m^(1/(p+1)), as if disc were 0; the theorem's bound is no less"),
        Term("bound", sum(part.value for part in parts), "sum of the five terms above, each a mean over members"),
    ]


def certificate(run: Trained, asked: Settings, tell: Tell) -> Certificate:
    """The formula for a run of kNN-Per, as far as it is known, and its true gap."""
    number = run.server(asked.server)
    method, state, federation = cast(KnnPer, run.method), run.states[number], run.federations[number]

    scoring, taught = Scoring(who="all", device=asked.device), replace(federation, test=federation.train)
    scores, training = (rescored(run, method, [state], [of], scoring)[0] for of in (federation, taught))
    features, nearest = measured(method, state["params"], federation, tell)
    sizes = federation.weight[: federation.members].tolist()
    blends = scores.report["blend"][: federation.members].nan_to_num(0.0).tolist()
    discs = discrepancies(method, state["params"], federation).tolist()
    members = [Member(*one) for one in zip(blends, sizes, discs, strict=True) if one[1]]
    gamma = asked.gamma_1 or (1 / nearest if nearest else math.inf), asked.gamma_2
    found = terms(members, features, asked.vc or method.task.model.size, gamma)
    lost = [losses(method, state["params"], federation, scores.ids, split) for split in ("train", "test")]
    wrong = [1 - one.accuracy().double() / 100 for one in (training, scores)]
    risks = []
    for what, (train, test) in (("1 - p_y", lost), ("wrong answers", wrong)):
        parts = (part[: federation.members] for part in (train, test))
        means = [float(part.nanmean()) for part in (*parts, test[federation.members :])]
        risks += [(f"{what}: {name}", value) for name, value in gaps(*means)]
    differs = _differs(method)
    holds = (
        "the error that a member can expect, averaged over members and over all the data that they might have had, is "
        "at most the theorem's bound, of which an estimate stands here."
    )
    holds = f"Were the run as the theorem asks, which it is not, {holds}" if differs else holds.capitalize()
    assumes = [*differs, *remarks(run, "of the best of them it says nothing"), *_besides(run, method), *ASSUMES]
    title = f"kNN-Per, Theorem 4.1, for {run.path.name}"
    return Certificate(title, found, found[-1].value, holds, assumes, risks, floor=found[-2].value)


def _differs(method: KnnPer) -> list[str]:
    """Where a run is not what the theorem is about."""
    found = []
    if method.task.classes != 2:
        found.append(
            f"is a theorem about two classes; the run has {method.task.classes}, so this is a formula and no guarantee"
        )
    if method.neighbours != (1,) or method.prototypes:
        found.append("is a theorem about the one nearest example; here others vote, so this is no guarantee")
    return found


def _besides(run: Trained, method: KnnPer) -> list[str]:
    """What else makes a run different from the theorem's, without a term of it."""
    found = []
    if method.store_validation:
        found.append("does not count validation examples, which join the datastore (--store-validation)")
    if method.capacity < 1 or (method.weak and method.weak_capacity < 1):
        found.append("takes all of a member's examples as n_m, though datastores are smaller (--capacity, --weak)")
    if run.experiment.settings.start:
        found.append("speaks of a common model trained on members' data alone; this one began with another (--start)")
    return found


@torch.no_grad()
def losses(method: KnnPer, params: Tree, federation: Federation, ids: Tensor, split: str) -> Tensor:
    """Of every client the mean of 1 - p_y over its examples with labels; NaN: there are none."""
    loop, found = Loop(method, [federation], "cpu"), []
    for client in ids.tolist():
        home = loop.home(0, client, EVERYBODY, 0)
        mine = home.all(split)
        likely, known = method.predict(home, mine.x, params=params).softmax(-1), mine.real & (mine.y >= 0)
        found.append(1 - likely[known].gather(1, mine.y[known, None]).double().mean())
    return torch.stack(found)


@torch.no_grad()
def measured(method: KnnPer, params: Tree, federation: Federation, tell: Tell) -> tuple[int, float]:
    """How many features there are, and the least distance of two examples of a member that have different labels."""
    loop, low, high, nearest, width = Loop(method, [federation], "cpu"), math.inf, -math.inf, math.inf, 0
    for client in range(federation.members):
        mine = loop.home(0, client, EVERYBODY, 0).all()
        keys, _ = method.task.model.features(params, mine.x[mine.real])
        low, high, width = min(low, float(keys.min())), max(high, float(keys.max())), keys.shape[1]
        nearest = min(nearest, closest(keys.double(), mine.y[mine.real]))
        tell(client + 1, federation.members)
    return width, nearest / (high - low) if high > low else 0.0


def closest(keys: Tensor, labels: Tensor) -> float:
    """The least distance of two rows with different labels, both known; without any, infinite."""
    apart = (labels[:, None] != labels) & (labels[:, None] >= 0) & (labels >= 0)
    found = torch.cdist(keys, keys, compute_mode="donot_use_mm_for_euclid_dist")[apart]
    return float(found.min()) if len(found) else math.inf


@torch.no_grad()
def discrepancies(method: KnnPer, params: Tree, federation: Federation) -> Tensor:
    """Of every member how far its error lies from all members' together, under the common model or a constant."""
    scorer = FedAvg(task=method.task, clients=method.clients, members=method.members)
    loop, ids = Loop(scorer, [replace(federation, val=federation.train)], "cpu"), torch.arange(federation.members)
    found = Clients(loop, ids, EVERYBODY, scratch=1).run(scorer.score, shared={"params": params})
    wrong = [found.each["val"][:, KNOWN] - found.each["val"][:, RIGHT]]
    counts = torch.stack([loop.home(0, k, EVERYBODY, 0).counts(method.task.classes) for k in ids.tolist()])
    total = counts.sum(1)
    wrong += [total - column for column in counts.unbind(1)]
    errors = torch.stack(wrong, 1).double()
    together = errors.sum(0) / total.sum().clamp(min=1)
    return (errors / total.clamp(min=1)[:, None] - together).abs().amax(1)
