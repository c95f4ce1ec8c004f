"""Publishing: a bundle of a finished run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from .. import __version__, tree
from ..errors import BundleError, DataError
from ..runs.files import digest
from ..tree import Tree
from . import export, recipe, rule, survey
from .bundle import FORMAT, layout_of, version_of
from .drafts import drafted
from .layout import Layout
from .rule import Rule
from .trained import Trained


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


def common_model(found: Rule, state: Tree) -> Tree | None:
    """The model for all, if the server has one: a branch of its state that has a model's names and shapes."""
    if found.name == "common":
        return found.model
    shapes = {name: leaf.shape for name, leaf in tree.flatten(found.model).items()}
    branches = [branch for branch in state.values() if isinstance(branch, dict)]
    alike = [b for b in branches if {name: leaf.shape for name, leaf in tree.flatten(b).items()} == shapes]
    return alike[0] if len(alike) == 1 else None
