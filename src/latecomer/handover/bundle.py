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

from .. import __version__, tree
from ..clients import Ask, Clients, Sending
from ..data import Form
from ..errors import BundleError, DataError, LatecomerError
from ..method import Method
from ..runs.files import digest
from ..tree import Tree
from . import export, recipe, rule, survey
from .drafts import drafted
from .gate import Gate
from .layout import Layout
from .rule import Forgetful, Guest, Rule
from .trained import EVERYBODY, Trained

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


def publish(trained: Trained, folder: str | os.PathLike[str], seed: int | None = None, *, gate: bool = True) -> Path:
    """A bundle of one of a finished run's servers; it appears whole or not at all.

    With a `gate`, which needs the run's data and validators among its clients; where it cannot be had, `why` says so.
    """
    place, number = Path(folder), trained.server(seed)
    state, chosen = trained.states[number], trained.seeds[number]
    with drafted(place, BundleError) as draft:
        found = rule.find(trained.method, trained.form, state, chosen)
        (draft / "public").mkdir()
        (draft / "private").mkdir(mode=0o700)
        found, why = write(found, state, draft, chosen)
        if lacking := write_gate(trained, number, found, draft / "private") if gate else "It was not asked for.":
            why["gate"] = lacking
        files = {f"{path.parent.name}/{path.name}": digest(path) for path in sorted(draft.glob("*/*"))}
        facts: dict[str, Any] = {
            "format": FORMAT,
            "latecomer": __version__,
            "method": trained.name,
            "rule": found.name,
            "why": why,
            "run": trained.path.name,
            "checkpoint": trained.digest,
            "seed": chosen,
            "round": trained.rounds[number],
            "descriptor": found.descriptor,
            "inputs": list(found.inputs),
            "noise": found.noise,
            "weights": layout_of(found).count,
            "header": layout_of(found).header[8:].decode(),  # behind its length, the beginning of a model.safetensors
            "recipe": recipe.of(trained.experiment, trained.method, trained.form),
            "files": files,
        }
        if found.name == "fit":
            facts["start"] = found.reply["v"].tolist()
        facts["version"] = version_of(facts)
        (draft / "bundle.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return place


def write(found: Rule, state: Tree, draft: Path, seed: int) -> tuple[Rule, dict[str, str]]:
    """All files of a bundle but bundle.json; returns the rule that they follow, and why some are missing, by name."""
    why: dict[str, str] = {}
    public, example = draft / "public", found.model
    if found.name not in ("describe", "generate"):
        why["encoder.onnx"] = f"By the rule {found.name!r} no graph makes anything of a client's data."
    else:
        try:
            example = write_encoder(found, public) or example
        except BundleError as error:
            if found.name == "describe":
                raise
            why["encoder.onnx"] = str(error)
            found = rule.find(found.method, found.form, state, seed, graphs=False)
    kept = draft / ("public" if found.name == "train" else "private")
    try:
        (public / "model.onnx").write_bytes(model_graph(found, example).SerializeToString(deterministic=True))
    except BundleError as error:
        why["model.onnx"] = str(error)
    if (common := common_model(found, state)) is None:
        why["common.safetensors"] = "The server has no model for all."
    else:
        (public / "common.safetensors").write_bytes(layout_of(found).file(tree.flatten(common)))
    numbers = tree.flatten(state)
    (kept / "state.safetensors").write_bytes(Layout(numbers).file(numbers))
    return found, why


def write_gate(trained: Trained, number: int, found: Rule, private: Path) -> str:
    """Says whom the members cover; else the reason why there is none."""
    if found.name != "describe":
        return f"By the rule {found.name!r} a newcomer sends no descriptor that the server could judge."
    try:
        gate = survey.learn(trained.method, trained.states[number], trained.federations[number])
        if gate.facts["described"] != "descriptor":
            return "What describes a client is as large as its model, which a gate does not judge by."
        gate.save(private)
    except DataError as error:  # no data any more, too few validators, descriptors that are private
        return str(error)
    return ""


def write_encoder(found: Rule, public: Path) -> Tree | None:
    """The graph that runs on the client, and its weights; returns the model that it makes, where it makes one."""
    sent, data = tree.flatten({"sent": found.sent}), found.example()  # a name of its own: a leaf may also be made
    free = {name: {0: "held" if name in rule.HELD else "n"} for name in data if name != "noise"}
    graph = export.graph(
        lambda x, w: tree.flatten(found.encode(x, tree.unflatten(w).get("sent", {}))), data, sent, free, {}
    )
    numbers = {name: leaf for name, leaf in (sent | export.constants(graph)).items() if name in export.used(graph)}
    layout = Layout(numbers)
    export.beside(graph, layout, "encoder.safetensors")
    (public / "encoder.onnx").write_bytes(graph.SerializeToString(deterministic=True))
    if numbers:
        (public / "encoder.safetensors").write_bytes(layout.file(numbers))
    with torch.no_grad():
        return found.encode(data, found.sent) if found.name == "generate" else None


def model_graph(found: Rule, example: Tree) -> Any:
    """The graph of every client's model: its weights lie beside it, and what grows with a client's data is an input."""
    flat = tree.flatten(example)
    data = {"x": rule.stored(found.form, *rule.FIRST)["x"]} | {name: flat[name] for name in found.free}
    free = {"x": {0: "n"}} | {name: dict.fromkeys(places, "stored") for name, places in found.free.items()}
    graph = export.graph(
        lambda given, w: {"logits": found.logits(tree.unflatten(w | tree.without(given, ["x"])), given["x"])},
        data,
        {name: leaf for name, leaf in flat.items() if name not in found.free},
        free,
        {"stored": found.pad},
    )
    export.beside(graph, layout_of(found), "model.safetensors")
    return graph


def layout_of(found: Rule) -> Layout:
    """Of a client's model.safetensors."""
    return Layout({name: leaf for name, leaf in tree.flatten(found.model).items() if name not in found.free})


def common_model(found: Rule, state: Tree) -> Tree | None:
    """The model for all, if the server has one: a branch of its state that has a model's names and shapes."""
    if found.name == "common":
        return found.model
    shapes = {name: leaf.shape for name, leaf in tree.flatten(found.model).items()}
    branches = [branch for branch in state.values() if isinstance(branch, dict)]
    alike = [b for b in branches if {name: leaf.shape for name, leaf in tree.flatten(b).items()} == shapes]
    return alike[0] if len(alike) == 1 else None


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
