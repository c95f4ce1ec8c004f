"""A bundle ready to be served. What makes models belongs to the thread of the passes; the rest only reads."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, MissingExtra, RunError
from ..privacy import Release
from ..steps import phases_of, steps
from ..tensorfile import pack
from .ledger import Ledger
from .problems import Problem

if TYPE_CHECKING:
    from ..handover.bundle import Bundle
    from ..handover.gate import Gate

SAFETENSORS, ONNX = "application/octet-stream", "application/onnx"
MAKES_MODELS = ("describe", "fit")  # the rules by which a server turns descriptors into models
PASS_BYTES = 512 * 2**20  # of the weights that one pass may make
NO_GATE = "This bundle has no gate, so it cannot say whom it covers."
NOT_FINITE = "No model can be made of this descriptor: what comes of it is not finite."


@dataclass(frozen=True)
class Content:
    """Bytes that are handed out, and their digest as `Repr-Digest` has it (RFC 9530)."""

    body: bytes
    media: str
    digest: str

    @staticmethod
    def of(body: bytes, media: str = SAFETENSORS) -> Content:
        return Content(body, media, repr_digest(hashlib.sha256(body).digest()))


def repr_digest(sha256: bytes) -> str:
    return f"sha-256=:{base64.b64encode(sha256).decode()}:"


def media_of(name: str) -> str:
    return ONNX if name.endswith(".onnx") else SAFETENSORS


@dataclass(frozen=True)
class Wish:
    """What somebody sent: a descriptor, float32 [d], under the name of a key."""

    descriptor: NDArray[np.float32]
    who: str
    entropy: float | None = None  # for the gate


@dataclass(frozen=True)
class Turn:
    """Rule fit: an embedding, Adam's moments (none before the first turn), and how its model changed in training."""

    v: NDArray[np.float32]
    moments: Mapping[str, NDArray[np.float32]]
    change: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Edition:
    """A bundle, its public files in memory (so that they stay its own), and what an answer costs."""

    bundle: Bundle
    files: Mapping[str, Content]
    release: Release | None
    ledger: Ledger | None
    gate: Gate | None = None  # says whom the members cover

    @staticmethod
    def of(bundle: Bundle, ledger: Ledger | None) -> Edition:
        """A RunError or another LatecomerError where the bundle cannot be served."""
        release = released(bundle)
        if release is not None and ledger is None:
            raise RunError("Models of this bundle cost privacy; say with --ledger FILE where it is written down.")
        try:
            files = {name: Content.of(path.read_bytes(), media_of(name)) for name, path in bundle.public.items()}
        except OSError as error:
            raise RunError(f"{error.filename} cannot be read: {error.strerror or error}.") from error
        for name, content in files.items():
            if content.digest != repr_digest(bytes.fromhex(bundle.facts["files"][f"public/{name}"])):
                raise RunError(f"{bundle.public[name]} was changed while it was read.")
        if bundle.rule in MAKES_MODELS:  # the first pass is slow, and the operator's
            bundle.generate(np.zeros((1, bundle.descriptor), np.float32))
        return Edition(bundle, files, release, ledger, bundle.gate)

    @property
    def version(self) -> str:
        return self.bundle.version

    @property
    def at_once(self) -> int:
        """How many models one pass may make; passes make 8 or more."""
        return max(8, PASS_BYTES // (4 * max(1, self.bundle.weights)))

    # passes: a list of what was asked for, and one answer for each

    def rows(self, wishes: list[Wish]) -> list[NDArray[np.float32] | Exception]:
        """The weights for every descriptor."""
        refused = self._charge(wishes)
        granted = [wish.descriptor for wish, no in zip(wishes, refused, strict=True) if no is None]
        found: list[NDArray[np.float32]] = []
        for first in range(0, len(granted), self.at_once):
            found += [*self.bundle.generate(np.stack(granted[first : first + self.at_once]))]
        rows = iter(found)
        made = [next(rows) if no is None else no for no in refused]
        return [
            Problem(422, NOT_FINITE) if not isinstance(one, Exception) and not np.isfinite(one).all() else one
            for one in made
        ]

    def models(self, wishes: list[Wish]) -> list[Content | Exception]:
        """A weights file for every descriptor."""
        header = self.bundle.header
        return [one if isinstance(one, Exception) else Content.of(header + one.data) for one in self.rows(wishes)]

    def standalone(self, wishes: list[Wish]) -> list[Content | Exception]:
        """An .onnx of its own for every descriptor."""
        try:
            return [
                one if isinstance(one, Exception) else Content.of(self.bundle.standalone(one), ONNX)
                for one in self.rows(wishes)
            ]
        except MissingExtra as error:
            raise Problem(406, f"This server makes no {ONNX}; ask for {SAFETENSORS}.") from error

    def verdicts(self, wishes: list[Wish]) -> list[Any]:
        """How well the members cover every descriptor."""
        refused = self._charge(wishes)
        return [self._judge(wish) if no is None else no for wish, no in zip(wishes, refused, strict=True)]

    def _judge(self, wish: Wish) -> dict[str, Any] | Problem:
        if self.gate is None:
            return Problem(404, NO_GATE)
        more = [] if wish.entropy is None else [wish.entropy]
        try:
            return verdict(self.gate.judge(np.append(wish.descriptor, more)))
        except DataError as error:  # it asks for the entropy, or for none
            return Problem(422, str(error))

    def refitted(self, asked: list[Turn]) -> list[Any]:
        """Better embeddings, one after the other."""
        return [self._refit(turn) for turn in asked]

    def _refit(self, turn: Turn) -> Content | Problem:
        v, moments = self.bundle.refit(turn.v, turn.moments, turn.change)
        found = {"v": v, **moments}
        if not all(np.isfinite(one).all() for one in found.values()):
            return Problem(422, "No better embedding comes of this change: it is not finite.")
        return Content.of(pack(found))

    def _charge(self, wishes: list[Wish]) -> list[Problem | None]:
        if self.release is None or self.ledger is None:
            return [None] * len(wishes)
        return self.ledger.charge(
            self.release, self.version, [(wish.who, wish.descriptor.tobytes()) for wish in wishes]
        )


def released(bundle: Bundle) -> Release | None:
    """What a descriptor gives away, where the method promises something about it."""
    if bundle.rule not in MAKES_MODELS:  # nothing is sent to the server
        return None
    kind = type(bundle.method)
    asked = [name for name in steps(kind) if "personalise" in phases_of(kind, name)]
    found = [release for name in asked if (release := bundle.method.release(name)) is not None]
    return max(found, key=lambda one: one.loss, default=None)


def verdict(found: Any) -> dict[str, Any]:
    """A gate's verdict as JSON can hold it, with one decimal: exact distances would tell where each member stands."""
    return {key: _plain(value) for key, value in dataclasses.asdict(found).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return round(value, 1) if isinstance(value, float) else value
