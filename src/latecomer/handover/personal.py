"""A client's own model, and the folder that it travels in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from .. import __version__, tree
from ..data import Form
from ..errors import BundleError, DataError, LatecomerError, MissingExtra, ModelError
from ..method import Method
from ..runs.files import digest
from ..tree import Tree
from . import export, recipe
from .card import card, score
from .drafts import drafted

FORMAT = 1
AT_ONCE = 1024  # examples that are predicted together


@dataclass(frozen=True, eq=False)
class Personal:
    """One client's model: it predicts, and it can be saved."""

    method: Method
    form: Form
    weights: Tree  # all that it predicts with
    recipe: Mapping[str, Any]
    facts: Mapping[str, Any]  # where it comes from, and what is known of it

    def logits(self, x: Any) -> NDArray[np.float32]:
        """A row for every example, a column for every class."""
        examples = torch.from_numpy(np.require(self.form.examples(x, "x", "your data"), requirements=("C", "W")))
        with torch.no_grad():
            parts = [self.method.logits(self.weights, self.form.prepare(some)) for some in examples.split(AT_ONCE)]
        found: NDArray[np.float32] = torch.cat(parts).float().numpy()
        return found

    def predict(self, x: Any) -> NDArray[np.int64]:
        """The class of every example."""
        guesses: NDArray[np.int64] = self.logits(x).argmax(1)
        return guesses

    def score(self, x: Any, y: Any) -> float:
        """How many percent of the labels it gets right."""
        guesses = self.predict(x)
        labels = self.form.labels(y, len(guesses), "y", "your data")
        if not (known := labels >= 0).any():
            raise DataError("There is no label to score by.")
        return float(100 * (guesses == labels)[known].mean())

    def describe(self) -> dict[str, Any]:
        """What config.json says of it."""
        return {"format": FORMAT, "latecomer": __version__, **self.facts, "recipe": dict(self.recipe)}

    def summary(self) -> str:
        """In one line: what it was made of, and how well it does."""
        return f"a model of {self.facts['examples']} examples; {score(self.facts['held_out'])}"

    def save(self, folder: str | os.PathLike[str], onnx: bool = True) -> Path:
        """A folder with config.json, model.safetensors, README.md and, where it can be had (it takes seconds),
        model.onnx, which needs neither torch nor latecomer; it appears whole or not at all.
        """
        place = Path(folder)
        with drafted(place, ModelError) as draft:
            flat = {name: leaf.detach().contiguous().clone() for name, leaf in tree.flatten(self.weights).items()}
            save_file(flat, draft / "model.safetensors")
            why = {}
            try:
                if not onnx:
                    raise BundleError("It was not asked for.")
                (draft / "model.onnx").write_bytes(export.model(self.method, self.form, self.weights))
            except (BundleError, MissingExtra) as error:
                why["model.onnx"] = str(error)
            files = {path.name: digest(path) for path in sorted(draft.iterdir())}
            config = self.describe() | {"files": files, "why": why}
            (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            (draft / "README.md").write_text(card(config), encoding="utf-8")
        return place

    @staticmethod
    def open(folder: str | os.PathLike[str]) -> Personal:
        """A model from its folder, which may come from anywhere."""
        place = Path(folder)
        try:
            config = json.loads((place / "config.json").read_text(encoding="utf-8"))
            if config["format"] != FORMAT:
                raise ModelError(f"{place} has format {config['format']}; this version of latecomer reads {FORMAT}.")
            for name in ("model.safetensors", *({"model.onnx"} & config["files"].keys())):
                if digest(place / name) != config["files"][name]:
                    raise ModelError(f"{place / name} is damaged: it is not what was saved.")
            method, form = recipe.follow(config["recipe"])
            weights = tree.unflatten(load_file(place / "model.safetensors"))
            facts = {key: config[key] for key in config.keys() - {"format", "latecomer", "recipe", "files", "why"}}
        except OSError as error:
            raise ModelError(f"{place} cannot be read as a model: {error.strerror or error}.") from error
        except (
            *(KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, MemoryError),
            *(RecursionError, SafetensorError),
        ) as error:
            raise ModelError(f"{place} cannot be read as a model: {type(error).__name__}: {error}.") from error
        model = Personal(method, form, weights, config["recipe"], facts)
        try:
            with torch.no_grad():
                answered = method.logits(weights, method.task.blank(2))
        except (LatecomerError, KeyError, TypeError, RuntimeError, IndexError) as error:
            raise ModelError(f"The weights in {place} are not those of its model: {error}.") from error
        if answered.shape != (2, form.classes):
            raise ModelError(f"The weights in {place} are not those of its model.")
        return model
