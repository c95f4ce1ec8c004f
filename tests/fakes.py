"""A bundle that is quickly made: a hypernetwork of random weights, and files with a few bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from latecomer.errors import DataError, RunError
from latecomer.privacy import Release
from latecomer.steps import asked_in


class FakeMethod:
    """Whose descriptors cost epsilon, if it is said how much."""

    needs_labels = False

    def __init__(self, epsilon: float, budget: float) -> None:
        self.epsilon, self.budget = epsilon, budget

    @asked_in("personalise")
    def request(self, home: Any) -> Any:
        raise NotImplementedError

    def release(self, step: str) -> Release | None:
        return Release.gaussian(self.epsilon, 1e-5, self.budget) if self.epsilon else None


@dataclass(frozen=True)
class Verdict:
    covered: bool
    distance: float


class FakeGate:
    places = np.zeros((4, 2), np.float32)

    def judge(self, signature: NDArray[np.float32]) -> Verdict:
        if len(signature) > 4:
            raise DataError("A signature has 3 or 4 numbers.")
        return Verdict(bool(signature.sum() < 3), float(signature.sum()))


class FakeBundle:
    """As `handover.bundle.Bundle` is used by a server."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.facts, self.version, self.rule = facts, facts["version"], facts["rule"]
        self.descriptor, self.weights = facts["descriptor"], facts["weights"]
        self.method = FakeMethod(facts["epsilon"], facts["budget"])
        self.gate = FakeGate() if facts["gate"] else None
        self.public = {name: path / "public" / name for name in facts["graphs"]}
        generator = torch.Generator().manual_seed(facts["seed"])
        self.first, self.second = (
            torch.randn(size, generator=generator) for size in ((self.descriptor, 100), (100, self.weights))
        )
        table = {"w": {"dtype": "F32", "shape": [self.weights], "data_offsets": [0, 4 * self.weights]}}
        text = json.dumps(table).encode()
        text += b" " * (-len(text) % 8)
        self.header = len(text).to_bytes(8, "little") + text

    def generate(self, v: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = torch.from_numpy(np.concatenate([v, np.repeat(v[-1:], -len(v) % 8, 0)]))
        made: NDArray[np.float32] = (torch.relu(rows @ self.first) @ self.second)[: len(v)].numpy()
        return made

    def standalone(self, row: NDArray[np.float32]) -> bytes:
        return b"onnx" + row.tobytes()

    def refit(self, v: Any, moments: Any, change: Any) -> Any:
        before = moments or {"first": 0 * v, "second": 0 * v, "step": np.float32(0)}
        return v + change[: len(v)], before | {"step": np.asarray(before["step"] + np.float32(1))}

    @staticmethod
    def make(path: Path, seed: int = 0, **facts: Any) -> Path:
        """A folder of one, in the place of whatever was there."""
        (path / "public").mkdir(parents=True, exist_ok=True)
        content = f"graph {seed}".encode()
        graphs = facts.setdefault("graphs", ["encoder.onnx", "model.onnx"])
        for name in graphs:
            (path / "public" / name).write_bytes(content)
        digests = {f"public/{name}": hashlib.sha256(content).hexdigest() for name in graphs}
        files = digests | {"private/state.safetensors": "00"}
        told = {"rule": "describe", "descriptor": 3, "weights": 50, "gate": False, "epsilon": 0.0, "budget": 0.0}
        told |= {"seed": seed, "version": f"version-{seed}", "files": files} | facts
        draft = path / ".bundle.json"
        draft.write_text(json.dumps(told))
        draft.replace(path / "bundle.json")
        return path

    @staticmethod
    def open(path: Path) -> FakeBundle:
        try:
            return FakeBundle(path, json.loads((path / "bundle.json").read_text()))
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"{path} is damaged.") from error
