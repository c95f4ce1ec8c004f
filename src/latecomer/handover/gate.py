"""The gate: how well the members' models cover a newcomer, told from what it sends, without a label of its.

A newcomer sends its signature: its descriptor, and one number that it works out at home, the mean entropy of its own
model's predictions on its own examples. What is usual is learned on validators, who are newcomers with labels.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ..errors import DataError, ModelError
from ..runs.files import digest

Array = NDArray[np.float64]

FORMAT = 1
MARGIN = 10.0  # points below the members' mean accuracy from which a client counts as one that loses
LEVEL = 0.9  # of those that are like validators, this share is called covered, and this share lies in its interval
FEWEST = 10  # validators: with fewer, a share of 0.9 cannot be promised
WEIGHT = 0.25  # of the distance, beside the entropy
RIDGE = 0.01  # of the mean variance: how far directions in which members hardly differ are stretched
NEAR = 3  # members that are named
NO_LABELS = "fine-tune with labels of its own; how many it takes was not measured"


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
    def fit(signatures: ArrayLike, accuracy: ArrayLike, members: int, described: str = "descriptor") -> Gate:
        """From signatures and accuracies in percent, of members first and of validators then."""
        told, right = np.asarray(signatures, np.float64), np.asarray(accuracy, np.float64)
        validators = len(told) - members
        if validators < FEWEST:
            raise DataError(f"A gate is learned on validators, at least {FEWEST}; there are {validators}.")
        if members < 2:
            raise DataError("A gate tells newcomers from members by how these differ; there is one member.")
        if not np.isfinite(told).all() or not np.isfinite(right[members:]).all():
            raise DataError("A gate needs finite signatures, and validators with labelled examples held out.")
        own, known = told[:members, :-1], right[:members][np.isfinite(right[:members])]
        usual = float((known if len(known) else right[members:]).mean())  # members may have nothing held out
        centre, spread = own.mean(0), np.atleast_2d(np.cov(own.T))
        variance, axes = np.linalg.eigh(spread + (RIDGE * np.trace(spread) / len(spread) + 1e-12) * np.eye(len(spread)))
        whiten = np.ascontiguousarray((axes / np.sqrt(variance))[:, ::-1])
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
            "labels": "",  # what a stranger needs, in words, where it was measured
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
        shown = float(place[0]), float(place[1]) if len(place) > 1 else 0.0
        return Verdict(covered, doubt, nearest[0][1], nearest, accuracy, low if covered else 0.0, high, shown, advice)

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
        arrays = {name: getattr(self, name) for name in ("members", "centre", "whiten")}
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
