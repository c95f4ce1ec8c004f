"""A run on disk. Plain text, JSON and safetensors; written so that a crash at any moment loses at most a little time.

settings.toml     every setting, versions, seed, commit: enough to repeat the run
metrics.jsonl     one object per evaluation
ledger.jsonl      one object per exchange
clients.csv       final score and traits of every client
checkpoint/       latest.json names the tensors file it belongs to; both appear whole or not at all
result.json       what the run came to
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from . import tree
from .errors import RunError
from .tree import Tree

fcntl: ModuleType | None
try:
    import fcntl
except ModuleNotFoundError:  # not on Windows, where nothing keeps two processes apart
    fcntl = None

LOGS = ("metrics.jsonl", "ledger.jsonl")
FORMAT = 1  # of the checkpoint; a newer latecomer reads older ones, never the other way round


class Folder:
    """One run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.settings = (path / "settings.toml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{path / 'settings.toml'} cannot be read: {error}.") from error

    @staticmethod
    def create(path: Path, settings: str) -> Folder:
        """A new folder. It appears with its settings inside or not at all."""
        if path.exists():
            raise RunError(f"The run folder {path} exists already; choose another --name, or latecomer resume {path}.")
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            (fresh / "checkpoint").mkdir(parents=True)
            (fresh / "settings.toml").write_text(settings, encoding="utf-8")
            for name in LOGS:
                (fresh / name).touch()
            fresh.rename(path)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            raise RunError(f"The run folder {path} cannot be made: {error.strerror}.") from error
        return Folder(path)

    @staticmethod
    def open(path: Path) -> Folder:
        if not (path / "settings.toml").is_file():
            raise RunError(f"{path} is not a run folder: it has no settings.toml.")
        return Folder(path)

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").is_file()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps a second process from writing here; the lock ends with this process, however it ends."""
        with (self.path / "settings.toml").open("rb") as file:
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RunError(f"Another process is at work in {self.path}; wait for it, or stop it first.") from error
            yield

    def append(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(_strict(line)) + "\n" for line in lines)

    def write_result(self, result: Mapping[str, Any], clients: list[dict[str, Any]]) -> None:
        """The client table first: where there is a result, there is everything."""
        with _Replacing(self.path / "clients.csv") as target, target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(clients[0]))
            writer.writeheader()
            writer.writerows(clients)
        with _Replacing(self.path / "result.json") as target:
            target.write_text(json.dumps(_strict(result), indent=2) + "\n", encoding="utf-8")

    # checkpoints

    def save(self, tensors: Tree, facts: Mapping[str, Any]) -> None:
        """A checkpoint: the tensors under a new name, then the file that names them."""
        folder = self.path / "checkpoint"
        name = f"round-{facts['round']:08d}.safetensors"
        flat = {path: leaf.detach().cpu().contiguous().clone() for path, leaf in tree.flatten(tensors).items()}
        with _Replacing(folder / name) as target:
            save_file(flat, target, {"outline": json.dumps(tensors, default=lambda leaf: None)})
        sizes = {log: (self.path / log).stat().st_size for log in LOGS}
        latest = {
            "format": FORMAT,
            "tensors": name,
            "bytes": (folder / name).stat().st_size,
            "settings": _digest(self.settings),
            "logs": sizes,
            **facts,
        }
        with _Replacing(folder / "latest.json") as target:
            target.write_text(json.dumps(latest, indent=2) + "\n", encoding="utf-8")
        for old in folder.glob("round-*.safetensors"):
            if old.name != name:
                old.unlink()

    def load(self) -> tuple[Tree, dict[str, Any]] | None:
        """The latest checkpoint, or None where the run stopped before its first one. Logs are cut back to it."""
        folder = self.path / "checkpoint"
        if not (folder / "latest.json").is_file():
            self._cut(dict.fromkeys(LOGS, 0))
            return None
        latest = self._latest(folder)
        if latest["settings"] != _digest(self.settings):
            changed = self.path / "settings.toml"
            raise RunError(f"{changed} was changed after the run began; put it back, or begin a new run.")
        tensors = self._tensors(folder / latest["tensors"], latest["bytes"])
        self._cut(latest["logs"])
        return tensors, latest

    def peek(self) -> Tree:
        """The tensors of the latest checkpoint, for somebody else's use: nothing here changes."""
        folder = self.path / "checkpoint"
        if not (folder / "latest.json").is_file():
            raise RunError(
                f"The run in {self.path} has no checkpoint yet; let it go on with: latecomer resume {self.path}"
            )
        latest = self._latest(folder)
        return self._tensors(folder / latest["tensors"], latest["bytes"])

    def _latest(self, folder: Path) -> dict[str, Any]:
        try:
            latest: dict[str, Any] = json.loads((folder / "latest.json").read_text(encoding="utf-8"))
            number = int(latest["format"])
            missing = {"tensors", "bytes", "settings", "logs", "round"} - set(latest)
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"The checkpoint in {folder} is damaged: latest.json cannot be read.") from error
        if number > FORMAT:
            raise RunError(
                f"The checkpoint in {folder} has format {number}; this latecomer reads up to {FORMAT}, so update it."
            )
        if missing:
            raise RunError(f"The checkpoint in {folder} is damaged: latest.json lacks {', '.join(sorted(missing))}.")
        return latest

    def _tensors(self, path: Path, size: int) -> Tree:
        if not path.is_file() or path.stat().st_size != size:
            have = path.stat().st_size if path.is_file() else 0
            raise RunError(f"The checkpoint {path} is truncated: it has {have} bytes, not {size}.")
        try:
            with safe_open(path, "pt") as file:
                return _filled(json.loads(file.metadata()["outline"]), file.get_tensor)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"The checkpoint {path} is damaged: {error}.") from error

    def _cut(self, sizes: Mapping[str, int]) -> None:
        for name, size in sizes.items():
            with (self.path / name).open("ab") as file:
                if file.tell() < size:
                    raise RunError(f"{self.path / name} is cut short: it has {file.tell()} bytes, not {size}.")
                file.truncate(size)


class _Replacing:
    """Write beside a file, then put the new one in its place in one step; on an error the old one stays."""

    def __init__(self, path: Path) -> None:
        self.path, self.draft = path, path.with_name(f".{path.name}.new")

    def __enter__(self) -> Path:
        return self.draft

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self.draft.unlink(missing_ok=True)
            return
        with self.draft.open("rb") as file:
            os.fsync(file.fileno())
        self.draft.replace(self.path)


def _filled(outline: Mapping[str, Any], leaf: Callable[[str], Any], prefix: str = "") -> Tree:
    """The tree as it was saved. safetensors sorts names and knows no empty branch, but optimisers go by the order."""
    return {
        key: leaf(prefix + key) if part is None else _filled(part, leaf, f"{prefix}{key}/")
        for key, part in outline.items()
    }


def _strict(value: Any) -> Any:
    """JSON has no NaN (the validation score of a run without validation data, say); other readers would choke on it."""
    if isinstance(value, Mapping):
        return {key: _strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
