"""A bundle: all that it takes to hand models to newcomers, in a folder whose public part anybody may have."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from .. import tree
from ..clients import Ask, Clients, Sending
from ..data import Form
from ..errors import BundleError, LatecomerError
from ..method import Method
from ..tree import Tree
from . import export, recipe, rule
from .gate import Gate
from .layout import Layout
from .rule import Forgetful, Guest, Rule
from .trained import EVERYBODY

FORMAT = 1
PUBLIC = ("encoder.onnx", "encoder.safetensors", "model.onnx", "common.safetensors", "state.safetensors")
PRIVATE = ("state.safetensors", "gate.safetensors", "gate.json")
FILES = {*(f"public/{name}" for name in PUBLIC), *(f"private/{name}" for name in PRIVATE)}
TOGETHER = 8  # rows are padded to a multiple of this, so that a row's bits do not depend on how many others there are
LONGEST = 2**20  # bytes of bundle.json


@dataclass
class Answers(Forgetful):
    """An engine whose clients have answered already: one step, a row each."""

    step: str
    each: Tree

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        (ask,) = asks
        count = len(ask.ids)
        each = self.each if step == self.step else {}
        ask.take(slice(0, count), each, torch.ones(count), torch.ones(count, dtype=torch.bool))


@dataclass(frozen=True, eq=False)
class Bundle:
    """What a server needs to hand out models, and what its clients may fetch."""

    path: Path
    facts: Mapping[str, Any]  # of bundle.json
    state: Tree
    found: Rule
    public: Mapping[str, Path] = field(default_factory=dict)  # by name
    drawing: bytes = b""  # model.onnx, as it was when its digest was checked

    @property
    def version(self) -> str:
        return str(self.facts["version"])

    @property
    def rule(self) -> str:
        return self.found.name

    @property
    def method(self) -> Method:
        return self.found.method

    @property
    def form(self) -> Form:
        return self.found.form

    @property
    def descriptor(self) -> int:
        """How many numbers describe a client."""
        return self.found.descriptor

    @property
    def weights(self) -> int:
        """How many numbers a client's model has."""
        return self.layout.count

    @cached_property
    def layout(self) -> Layout:
        """Of a client's model.safetensors."""
        return layout_of(self.found)

    @property
    def header(self) -> bytes:
        """Of a client's model.safetensors: with the bytes of a row behind it, it is the file."""
        return self.layout.header

    @cached_property
    def gate(self) -> Gate | None:
        """Says whom the members cover, where it was published."""
        return Gate.open(self.path / "private") if "private/gate.json" in self.facts["files"] else None

    @property
    def start(self) -> NDArray[np.float32]:
        """Rule fit: where the descriptor of a newcomer begins."""
        return _numpy(self.found.reply["v"])

    def generate(self, v: NDArray[np.float32]) -> NDArray[np.float32]:
        """The weights of as many models as there are descriptors, in one pass by the method's own rule."""
        if self.rule not in ("describe", "fit"):
            raise BundleError(f"The rule of this bundle is {self.rule!r}: no descriptor is sent.")
        rows = torch.from_numpy(np.ascontiguousarray(v, dtype=np.float32))
        if rows.ndim != 2 or rows.shape[1] != self.descriptor or not len(rows):
            raise BundleError(f"Descriptors must have shape [n, {self.descriptor}]; got {[*rows.shape]}.")
        count = len(rows)
        padded = torch.cat([rows, rows[-1:].expand(-count % TOGETHER, -1)])
        with torch.no_grad():
            leaves = tree.flatten(self._models(padded))
            made = torch.cat([leaves[name][:count].flatten(1) for name in self.layout.leaves], 1)
        return _numpy(made)

    def _models(self, rows: Tensor) -> Tree:
        """One model a row."""
        if self.rule == "fit":
            generated: Tree = self.method.fitting(self.state).generate(rows)  # type: ignore[attr-defined]
            return generated
        reply, start = {}, 0
        for path, leaf in tree.flatten(self.found.reply).items():
            reply[path] = rows[:, start : start + leaf.numel()].reshape(-1, *leaf.shape).to(leaf.dtype)
            start += leaf.numel()
        ids = torch.full((len(rows),), max(self.method.clients - 1, self.method.members))
        clients = Clients(Answers(self.found.step, tree.unflatten(reply)), ids, EVERYBODY, scratch=0)
        sendings = self.method.personalise(self.state, clients)
        (sending,) = [sendings] if isinstance(sendings, Sending) else sendings
        shared = sending.shared | {name: clients.held[name] for name in sending.recall}
        home = Guest({}, self.found.memory, self.found.lots)
        models: Tree = torch.vmap(lambda each: self.method.model(home, **shared, **each))(sending.each)
        return models

    def standalone(self, row: bytes | NDArray[np.float32]) -> bytes:
        """A stand-alone .onnx with these weights."""
        if "model.onnx" not in self.public:
            raise BundleError(f"This bundle has no graph of a client's model: {self.facts['why']['model.onnx']}")
        numbers = row if isinstance(row, bytes) else np.ascontiguousarray(row, np.float32).tobytes()
        return export.alone(self._graph, self.header + numbers)

    @cached_property
    def _graph(self) -> Any:
        return export.read(self.drawing)

    def refit(
        self, v: NDArray[np.float32], moments: Mapping[str, NDArray[np.float32]], change: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
        """Rule fit, one turn: a client's better descriptor, and Adam's moments (first, second, step; none before the
        first turn), after the model of this one changed so in the client's training.
        """
        if self.rule != "fit":
            raise BundleError(f"The rule of this bundle is {self.rule!r}: no descriptor is fitted.")
        size = (self.descriptor,)
        wanted: dict[str, tuple[int, ...]] = {"v": size, "change": (self.weights,)}
        wanted |= {"first": size, "second": size, "step": ()} if moments else {}
        given = {name: np.asarray(value, np.float32) for name, value in {"v": v, "change": change, **moments}.items()}
        if {name: value.shape for name, value in given.items()} != wanted:
            raise BundleError(
                f"A turn takes v, first and second of {self.descriptor} numbers, step, and a change of {self.weights}."
            )
        told = {name: torch.from_numpy(value.copy()) for name, value in given.items()}
        fitting, row = self.method.fitting(self.state), told["v"][None]  # type: ignore[attr-defined]
        before = {"first": told["first"], "second": told["second"], "count": told["step"]} if moments else None
        like = tree.flatten(self.found.model)
        leaves = tree.unravel(told["change"], {path: like[path][None] for path in self.layout.leaves})
        changed = tree.unflatten({path: leaves[path] for path in like})  # in the order in which they are generated
        with torch.no_grad():
            after, now = fitting.turn(row, before or fitting.begin(row), changed)
        return _numpy(after[0]), {name.replace("count", "step"): _numpy(moment) for name, moment in now.items()}

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Bundle:
        """A bundle from its folder, which may come from anywhere: everything in it is checked."""
        place = Path(path)
        try:
            facts = json.loads(_read(place / "bundle.json", LONGEST))
            if facts["format"] != FORMAT:
                raise BundleError(f"{place} has format {facts['format']!r}; this version of latecomer reads {FORMAT}.")
            if facts["version"] != version_of(facts):
                raise BundleError(f"{place / 'bundle.json'} is damaged: its facts are not those that it was made with.")
            if strange := sorted(facts["files"].keys() - FILES):
                raise BundleError(f"{place} lists the file {strange[0]!r}, which is no part of a bundle.")
            texts = {name: _read(place / name) for name in facts["files"]}
            for name, text in texts.items():
                if hashlib.sha256(text).hexdigest() != facts["files"][name]:
                    raise BundleError(f"{place / name} is damaged: it is not what was published.")
            (kept,) = [name for name in ("public/state.safetensors", "private/state.safetensors") if name in texts]
            method, form = recipe.follow(facts["recipe"])
            state = tree.unflatten(load(texts[kept]))
            found = rule.find(method, form, state, int(facts["seed"]), graphs=facts["rule"] != "train")
        except OSError as error:
            raise BundleError(f"{place} cannot be read as a bundle: {error.strerror or error}.") from error
        except BundleError:
            raise
        except (
            *(KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, MemoryError),
            *(RecursionError, SafetensorError, LatecomerError),
        ) as error:
            raise BundleError(f"{place} cannot be read as a bundle: {type(error).__name__}: {error}.") from error
        public = {name: place / "public" / name for name in PUBLIC if f"public/{name}" in texts}
        bundle = Bundle(place, facts, state, found, public, texts.get("public/model.onnx", b""))
        try:
            judged = 0 if bundle.gate is None else bundle.gate.facts["size"] - 1
        except LatecomerError as error:
            raise BundleError(f"{place} cannot be read as a bundle: {error}") from error
        if judged not in (0, bundle.descriptor):
            raise BundleError(f"The gate of {place} does not judge descriptors of {bundle.descriptor} numbers.")
        told = {name: facts.get(name) for name in ("rule", "descriptor", "weights")}
        if told != {name: getattr(bundle, name) for name in told}:
            raise BundleError(f"{place / 'bundle.json'} does not say what its server does.")
        return bundle


def layout_of(found: Rule) -> Layout:
    """Of a client's model.safetensors."""
    return Layout({name: leaf for name, leaf in tree.flatten(found.model).items() if name not in found.free})


def version_of(facts: Mapping[str, Any]) -> str:
    """The digest of everything else: of all files by way of theirs."""
    rest = {name: value for name, value in facts.items() if name != "version"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _read(path: Path, most: int = 2**40) -> bytes:
    """A file that is one, in a folder that is one: a bundle has no links."""
    if not stat.S_ISDIR(path.parent.lstat().st_mode) and path.name != "bundle.json":
        raise BundleError(f"{path.parent} is not a folder.")
    if not stat.S_ISREG(path.lstat().st_mode) or path.stat().st_size > most:
        raise BundleError(f"{path} is not a plain file of a bundle.")
    return path.read_bytes()


def _numpy(tensor: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = tensor.detach().float().contiguous().numpy()
    return found
