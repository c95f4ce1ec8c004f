"""The gate: how well the members' models cover a newcomer, told from what it sends, without a label of its.

A newcomer sends its signature: its descriptor, and one number that it works out at home, the mean entropy of its own
model's predictions on its own examples. What is usual is learned on validators, who are newcomers with labels.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from .. import tree
from ..clients import Ask, Clients
from ..data import Federation
from ..data.federation import Rows
from ..engines import make
from ..engines.loop import Loop
from ..errors import DataError, ModelError
from ..evaluate import evaluate
from ..method import Method
from ..methods.local import Local
from ..runs.files import digest
from ..sweep.lockstep import Lockstep
from ..tree import Tree

if TYPE_CHECKING:
    from .trained import Trained

Array = NDArray[np.float64]

FORMAT = 1
EVERYBODY = -1  # the round in which personalisation happens: none of training
MARGIN = 10.0  # points below the members' mean accuracy from which a client counts as one that loses
LEVEL = 0.9  # of those that are like validators, this share is called covered, and this share lies in its interval
FEWEST = 10  # validators: with fewer, a share of 0.9 cannot be promised
WEIGHT = 0.25  # of the distance, beside the entropy
RIDGE = 0.01  # of the mean variance: how far directions in which members hardly differ are stretched
NEAR = 3  # members that are named
LABELS = (10, 30, 100, 300)  # tried by validators that train alone


@dataclass(frozen=True)
class Verdict:
    """What the gate says of a newcomer."""

    covered: bool
    doubt: float  # in standard deviations of the validators'; more means less covered
    distance: float  # to the nearest member
    nearest: list[tuple[int, float]]  # ids of members, with distances
    accuracy: float  # an estimate, in percent
    low: float  # of an interval; 0 where not covered, because nothing is promised then
    high: float  # where not covered, that of the least covered
    place: tuple[float, float]  # among the members, for a plot
    advice: str


@dataclass(frozen=True, eq=False)
class Gate:
    """What was learned of members and validators. It holds what members sent: it stays on the server."""

    members: Array  # [members, d]: descriptors of the members, whitened
    centre: Array  # [d]
    whiten: Array  # [d, d]: directions in which members differ most come first
    facts: Mapping[str, Any]  # numbers and words; see `fit`

    @staticmethod
    def learn(trained: Trained, federation: Federation, seed: int | None = None) -> Gate:
        """From a run and a federation with its members and validators: of a run, its own."""
        number = trained._server(seed)
        if federation.members != trained.method.members:
            raise DataError(f"The run has {trained.method.members} members, the federation {federation.members}.")
        ids = torch.arange(federation.first_late)
        signatures, described = survey(trained.method, trained.states[number], federation, ids)
        accuracy = scored(trained.method, trained.states[number], federation, ids)
        labels = labels_needed(trained.method, federation, accuracy[: federation.members].mean() - MARGIN)
        return Gate.fit(signatures, accuracy, federation.members, described, labels)

    @staticmethod
    def fit(
        signatures: ArrayLike, accuracy: ArrayLike, members: int, described: str = "descriptor", labels: str = ""
    ) -> Gate:
        """From signatures and accuracies in percent, of members first and of validators then."""
        told, right = np.asarray(signatures, np.float64), np.asarray(accuracy, np.float64)
        validators = len(told) - members
        if validators < FEWEST:
            raise DataError(f"A gate is learned on validators, at least {FEWEST}; there are {validators}.")
        own, usual = told[:members, :-1], float(right[:members].mean())
        centre, spread = own.mean(0), np.atleast_2d(np.cov(own.T))
        variance, axes = np.linalg.eigh(spread + (RIDGE * np.trace(spread) / len(spread) + 1e-12) * np.eye(len(spread)))
        whiten = (axes / np.sqrt(variance))[:, ::-1]
        gate = Gate((own - centre) @ whiten, centre, whiten, {})
        measured = np.stack([gate._measure(row) for row in told[members:]])  # [validators, 2]
        scale = {"mean": measured.mean(0).tolist(), "std": np.maximum(measured.std(0), 0.05).tolist()}
        gate = replace(gate, facts=scale)
        doubt = np.array([gate._doubt(row) for row in told[members:]])
        scores = right[members:]
        well = doubt[scores >= usual - MARGIN]
        if not len(well):
            raise DataError(f"Every validator loses more than {MARGIN:.0f} points to members, so nobody is covered.")
        slope, start, width = _line(doubt, scores)
        facts = {
            "format": FORMAT,
            "described": described,  # what comes before the entropy: a descriptor, or mean predictions
            "size": told.shape[1],
            "members": members,
            "validators": validators,
            **scale,  # of log entropy and log distance
            "limit": _quantile(well),  # of doubt, up to which a newcomer is covered
            "usual": usual,  # accuracy of members
            "slope": slope,  # of accuracy in doubt
            "start": start,
            "width": width,
            "labels": labels,
        }
        return replace(gate, facts=facts)

    def judge(self, signature: ArrayLike) -> Verdict:
        """What to tell a newcomer. Its signature is all that is known of it."""
        told = np.asarray(signature, np.float64)
        if told.shape != (self.facts["size"],):
            raise DataError(f"A signature has {self.facts['size']} numbers; got shape {[*told.shape]}.")
        if not np.isfinite(told).all() or told[-1] < 0:
            raise DataError("A signature has finite numbers, the last of which, an entropy, is not negative.")
        place = (told[:-1] - self.centre) @ self.whiten
        away = np.linalg.norm(self.members - place, axis=1)
        nearest = [(int(k), float(away[k])) for k in away.argsort(kind="stable")[:NEAR]]
        doubt, facts = self._doubt(told), self.facts
        covered = bool(doubt <= facts["limit"])
        estimate, best = (facts["start"] + facts["slope"] * each for each in (doubt, min(doubt, facts["limit"])))
        low, accuracy, high = np.clip([estimate - facts["width"], estimate, best + facts["width"]], 0, 100).tolist()
        advice = "use it" if covered else f"unlike anyone: {facts['labels'] or NO_LABELS}"
        first, second, *_ = *place.tolist(), 0.0
        low = low if covered else 0.0
        return Verdict(covered, doubt, nearest[0][1], nearest, accuracy, low, high, (first, second), advice)

    @property
    def places(self) -> Array:
        """[members, 2]: where members stand in the plot."""
        return np.pad(self.members, ((0, 0), (0, 1)))[:, :2]

    def _measure(self, signature: Array) -> Array:
        """Log entropy and log distance to the nearest member, which is what varies evenly."""
        away = np.linalg.norm(self.members - (signature[:-1] - self.centre) @ self.whiten, axis=1)
        return np.log([signature[-1] + 0.01, away.min() + 0.01])

    def _doubt(self, signature: Array) -> float:
        standard = (self._measure(signature) - self.facts["mean"]) / self.facts["std"]
        return float(standard @ [1.0, WEIGHT])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """As gate.safetensors and gate.json, in a folder that exists."""
        place = Path(folder)
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ("members", "centre", "whiten")}
        save_file(arrays, place / "gate.safetensors")
        facts = {**self.facts, "sha256": digest(place / "gate.safetensors")}
        (place / "gate.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def open(folder: str | os.PathLike[str]) -> Gate:
        """The way back; what is damaged is refused."""
        place = Path(folder)
        try:
            facts = json.loads((place / "gate.json").read_text(encoding="utf-8"))
            if facts["format"] != FORMAT or facts.pop("sha256") != digest(place / "gate.safetensors"):
                raise ModelError(f"The gate in {place} is damaged, or of another version of latecomer.")
            gate = Gate(**load_file(place / "gate.safetensors"), facts=facts)
            gate.judge(np.zeros(int(facts["size"])))
        except (OSError, KeyError, TypeError, ValueError, AttributeError, SafetensorError, DataError) as error:
            raise ModelError(f"{place} cannot be read as a gate: {type(error).__name__}: {error}.") from error
        return gate


NO_LABELS = "fine-tune with labels of its own; how many it takes was not measured"


def signature(logits: ArrayLike, descriptor: ArrayLike | None = None) -> NDArray[np.float32]:
    """On the client: its descriptor, or its model's mean prediction where the method has none; and the mean entropy.

    `logits` are what its own model says of the examples that it was made of.
    """
    raw = np.asarray(logits, np.float64)
    shifted = raw - raw.max(1, keepdims=True)
    scores = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    entropy = -(np.exp(scores) * scores).sum(1).mean()
    first = np.exp(scores).mean(0) if descriptor is None else np.asarray(descriptor).ravel()
    return np.append(first, entropy).astype(np.float32)


class _Listening(Loop):
    """Keeps what clients answered."""

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        super().exchange(step, asks)
        self.heard = [*getattr(self, "heard", []), (step, tree.flatten(asks[0].collector.replies().each))]


@torch.no_grad()
def survey(method: Method, state: Tree, federation: Federation, ids: torch.Tensor) -> tuple[Array, str]:
    """Signatures of some clients, and what they are described by: a `descriptor`, or mean `predictions`."""
    device = next(iter(tree.flatten(state).values())).device
    loop = _Listening(method, [federation], device)
    clients = Clients(loop, ids, EVERYBODY, scratch=0)
    sendings = method.personalise(state, clients)
    heard = getattr(loop, "heard", [])
    if private := [step for step, _ in heard if method.release(step) is not None]:
        raise DataError(f"What {private[0]!r} sends is differentially private; a gate's number would not be.")
    sizes = [sum(leaf[0].numel() for leaf in reply.values()) for _, reply in heard]
    alone = len(sizes) == 1 and 0 < sizes[0] < method.task.model.size
    told = torch.cat([leaf.flatten(1) for leaf in heard[0][1].values()], 1).cpu().numpy() if alone else None
    found = []
    for sending in [sendings] if not isinstance(sendings, Sequence) else sendings:
        part = range(len(ids)) if sending.to is None else sending.to.nonzero()[:, 0].tolist()
        shared = sending.shared | {name: clients.held[name] for name in sending.recall}
        for row, k in enumerate(part):
            home = loop.home(0, int(ids[k]), EVERYBODY, 0)
            batch = home.all()
            logits = method.logits(method.model(home, **shared, **tree.row(sending.each, row)), batch.x)[batch.real]
            found.append((k, signature(logits.cpu().numpy(), None if told is None else told[k])))
    return np.stack([each for _, each in sorted(found, key=lambda pair: pair[0])]), "descriptor" if alone else "predictions"


def scored(method: Method, state: Tree, federation: Federation, ids: torch.Tensor) -> Array:
    """Accuracy of some clients in percent, on test examples, or on validation examples where there are no others."""
    device = next(iter(tree.flatten(state).values()), torch.empty(0)).device
    (scores,) = evaluate([method], [state], Lockstep(make("auto", method, [federation], device)), [ids], 1)
    test, val = scores.accuracy("test"), scores.accuracy("val")
    found: Array = torch.where(test.isnan(), val, test).double().numpy()
    return found


def labels_needed(method: Method, federation: Federation, target: float) -> str:
    """How many labels a client needs that gets no help, by what validators reach that train alone."""
    ids = torch.arange(federation.members, federation.first_late)
    ids = ids[federation.labelled[ids]]
    most = int(federation.weight[ids].min()) if len(ids) else 0
    if not most:
        return ""
    alone = Local(task=method.task, clients=len(federation), members=federation.members)
    for count in [*(k for k in LABELS if k < most), most]:
        reached = scored(alone, {}, with_labels(federation, count), ids).mean()
        if reached >= target:
            return f"needs about {count} labels; alone with so many, validators reached {reached:.0f} %"
    return f"needs more than {most} labels; alone with so many, validators reached {reached:.0f} %"


def with_labels(federation: Federation, count: int) -> Federation:
    """The same clients with so many training examples at most, drawn at random."""
    random = np.random.default_rng(federation.seed)
    rows = [random.permutation(federation.train[k])[:count] for k in range(len(federation))]
    return replace(federation, train=Rows.of(rows))


def _line(doubt: Array, scores: Array) -> tuple[float, float, float]:
    """Accuracy as a line that falls with doubt, and the half width of an interval, from residuals left out in turn."""
    apart = doubt - doubt.mean()
    slope = min(0.0, float(apart @ scores / max(apart @ apart, 1e-12)))
    start = float(scores.mean() - slope * doubt.mean())
    leverage = 1 / len(doubt) + apart**2 / max(apart @ apart, 1e-12)
    residuals = np.abs(scores - start - slope * doubt) / np.maximum(1 - leverage, 1e-6)
    return slope, start, _quantile(residuals)


def _quantile(values: Array) -> float:
    """Conformal: another value like these is at most this with probability LEVEL."""
    place = min(len(values), math.ceil(LEVEL * (len(values) + 1))) - 1
    return float(np.sort(values)[place])
