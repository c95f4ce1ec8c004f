"""A run on disk. Plain text, JSON and safetensors; written so that a crash at any moment loses at most a little time.

settings.toml     every setting, versions, seed, commit: enough to repeat the run
metrics.jsonl     one object per evaluation
ledger.jsonl      one object per exchange
clients.csv       final score and traits of every client
descriptors/      what describes clients, a row each, by seed: in the selected round, and in others if asked for
checkpoint/       latest.json names the tensors file it belongs to; both appear whole or not at all
result.json       what the run came to

A folder may come from anywhere: what it says is checked, and nothing outside it is written to.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import re
import shutil
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .. import tree
from ..errors import RunError
from ..tree import Tree
from .files import Replacing, digest, existing, locked, reading, strict, writing

LOGS = ("metrics.jsonl", "ledger.jsonl")
FORMAT = 2  # of the checkpoint
NAME = r"round-\d+\.safetensors"


class Folder:
    """One run folder. Whoever writes in it holds it first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: weakref.finalize[Any, Folder] | None = None
        try:
            self.settings = (path / "settings.toml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{path / 'settings.toml'} cannot be read: {error}.") from error

    @staticmethod
    def create(path: Path, settings: str, *, another: bool = False, files: Mapping[str, str] | None = None) -> Folder:
        """A new folder, held. It appears with its settings, and further `files`, or not at all; if `another` will do,
        numbered.
        """
        fresh = path.with_name(f".new-{uuid.uuid4().hex}")
        try:
            (fresh / "checkpoint").mkdir(parents=True)
            for name, text in {"settings.toml": settings, **(files or {})}.items():
                (fresh / name).write_text(text, encoding="utf-8")
            for name in LOGS:
                (fresh / name).touch()
            folder = Folder(fresh)
            folder.hold()
            folder._write_latest(None, {"round": 0})
            folder.path = _named(fresh, path, another)
        except OSError as error:
            raise RunError(f"The run folder {path} cannot be made: {error.strerror}.") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)  # it is still there if it could not be named
        return folder

    @staticmethod
    def open(path: Path) -> Folder:
        with reading(path):
            if not (path / "settings.toml").is_file():
                raise RunError(f"{path} is not a run folder: it has no settings.toml.")
        return Folder(path)

    @property
    def finished(self) -> bool:
        with reading(self.path):
            return (self.path / "result.json").is_file()

    # one process at a time

    def hold(self) -> None:
        """Keep a second process from writing here until `release`; the lock ends with this process, however it ends."""
        if self._lock is not None and self._lock.alive:
            return
        with reading(self.path):
            try:
                file = locked(self.path / "settings.toml")
            except BlockingIOError as error:
                raise RunError(f"Another process is at work in {self.path}; wait for it, or stop it first.") from error
        self._lock = weakref.finalize(self, os.close, file)

    def release(self) -> None:
        if self._lock is not None:
            self._lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.hold()
        try:
            yield
        finally:
            self.release()

    # logs and result

    def append(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(strict(line)) + "\n" for line in lines)
        with writing(self.path), self._log(name) as file:
            file.write(text.encode())

    def _log(self, name: str) -> IO[bytes]:
        return open(self.path / name, "ab", opener=existing)

    def write_result(self, result: Mapping[str, Any], clients: list[dict[str, Any]]) -> None:
        """The client table first: where there is a result, there is everything."""
        with writing(self.path):
            with Replacing(self.path / "clients.csv") as target, _text(target) as file:
                writer = csv.DictWriter(file, list(dict.fromkeys(name for row in clients for name in row)))
                writer.writeheader()
                writer.writerows(clients)
            with Replacing(self.path / "result.json") as target:
                target.write_text(json.dumps(strict(result), indent=2) + "\n", encoding="utf-8")

    def keep(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Tensors for whoever studies the run, in a file of their own."""
        path = self.path / f"{name}.safetensors"
        with writing(self.path):
            path.parent.mkdir(exist_ok=True)
            if path.parent.is_symlink():
                raise RunError(f"{path.parent} is not a folder of the run's own; remove it, and go on.")
            with Replacing(path) as target:
                save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, target)

    # checkpoints

    def save(self, tensors: Tree, facts: Mapping[str, Any]) -> None:
        """A checkpoint: the tensors under a new name, then the file that names them."""
        name = f"round-{facts['round']:08d}.safetensors"
        flat = {path: leaf.detach().cpu().contiguous().clone() for path, leaf in tree.flatten(tensors).items()}
        with writing(self.path):
            with Replacing(self.path / "checkpoint" / name) as target:
                save_file(flat, target, {"outline": json.dumps(tensors, default=lambda leaf: None)})
            self._write_latest(name, facts)
            self._tidy(name)

    def _write_latest(self, name: str | None, facts: Mapping[str, Any]) -> None:
        """Names no tensors in a new folder, where it only tells what the run began with."""
        folder, sizes = self.path / "checkpoint", {}
        for log in LOGS:
            with self._log(log) as file:
                os.fsync(file.fileno())  # else a power cut could leave less of it than is promised here
                sizes[log] = file.tell()
        latest = {
            "format": FORMAT,
            "tensors": name,
            "bytes": (folder / name).stat().st_size if name else 0,
            "digest": digest(folder / name) if name else "",
            "settings": _digest(self.settings),
            "logs": sizes,
            **facts,
        }
        with Replacing(folder / "latest.json") as target:
            target.write_text(json.dumps(latest, indent=2) + "\n", encoding="utf-8")

    def _tidy(self, name: str | None) -> None:
        """Removes the tensors of other checkpoints, and drafts of ours or of safetensors that a killed process left."""
        folder = self.path / "checkpoint"
        old = [*folder.glob("round-*.safetensors"), *folder.glob(".tmp*"), *folder.glob(".*.new")]
        for path in (*old, *self.path.glob(".*.new")):
            if path.name != name:
                path.unlink()

    def load(self) -> tuple[Tree, dict[str, Any]] | None:
        """The latest checkpoint, or None where the run stopped before its first one. Nothing here changes."""
        latest = self._latest()
        if latest["settings"] != _digest(self.settings):
            changed = self.path / "settings.toml"
            raise RunError(f"{changed} was changed after the run began; put it back, or begin a new run.")
        return None if latest["tensors"] is None else (self._tensors(latest), latest)

    def peek(self) -> Tree:
        """The tensors of the latest checkpoint, for somebody else's use."""
        latest = self._latest()
        if latest["tensors"] is None:
            raise RunError(
                f"The run in {self.path} has no checkpoint yet; let it go on with: latecomer resume {self.path}"
            )
        return self._tensors(latest)

    def rewind(self) -> None:
        """Back to the latest checkpoint: logs are cut to what they were, and drafts removed."""
        latest = self._latest()
        with writing(self.path):
            for name, size in latest["logs"].items():
                have = (self.path / name).stat().st_size
                if have < size:
                    raise RunError(f"{self.path / name} is cut short: it has {have} bytes, not {size}.")
            for name, size in latest["logs"].items():
                with self._log(name) as file:
                    file.truncate(size)
            self._tidy(latest["tensors"])

    def _latest(self) -> dict[str, Any]:
        folder = self.path / "checkpoint"
        self._check_own()
        with reading(self.path):
            if not (folder / "latest.json").is_file():
                raise RunError(f"{folder} has no latest.json; put it back, or begin a new run.")
            content = (folder / "latest.json").read_bytes()
        try:
            latest: dict[str, Any] = json.loads(content)
            number = int(latest["format"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunError(f"The checkpoint in {folder} is damaged: latest.json cannot be read.") from error
        if number != FORMAT:
            raise RunError(
                f"The checkpoint in {folder} has format {number}; this version of latecomer reads format {FORMAT}."
            )
        if missing := sorted(PARTS.keys() - latest.keys()):
            raise RunError(f"The checkpoint in {folder} is damaged: latest.json lacks {', '.join(missing)}.")
        for name, fits in PARTS.items():
            if not fits(latest[name]):
                raise RunError(f"The checkpoint in {folder} is damaged: {name} in latest.json cannot be right.")
        return latest

    def _check_own(self) -> None:
        """A link could lead to any file of the user's, which would then be cut or written over."""
        with reading(self.path):
            for name in ("checkpoint", *LOGS):
                path, kind = self.path / name, "file" if name in LOGS else "folder"
                if path.is_symlink() or not (path.is_file() if name in LOGS else path.is_dir()):
                    raise RunError(f"{path} is not a {kind} of the run's own; put it back, or begin a new run.")

    def _tensors(self, latest: Mapping[str, Any]) -> Tree:
        path = self.path / "checkpoint" / latest["tensors"]
        with reading(self.path):
            have = path.stat().st_size if path.is_file() else 0
            if have != latest["bytes"]:
                raise RunError(f"The checkpoint {path} is truncated: it has {have} bytes, not {latest['bytes']}.")
            if latest["digest"] != digest(path):
                raise RunError(f"The checkpoint {path} is damaged: it is not what was saved.")
            try:
                with safe_open(path, "pt") as file:
                    return _filled(json.loads(file.metadata()["outline"]), file.get_tensor)
            except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
                raise RunError(f"The checkpoint {path} is damaged: {error}.") from error


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


PARTS: dict[str, Callable[[Any], bool]] = {
    "tensors": lambda name: name is None or (type(name) is str and bool(re.fullmatch(NAME, name))),
    "bytes": _count,
    "digest": lambda value: type(value) is str,
    "settings": lambda value: type(value) is str,
    "logs": lambda logs: type(logs) is dict and logs.keys() == set(LOGS) and all(map(_count, logs.values())),
    "round": _count,
}
"""What latest.json must say, and whether it can be so: names alone, so that nobody's other files are touched."""


def _text(path: Path) -> IO[str]:
    """Clients may be called what UTF-8 cannot say."""
    return path.open("w", newline="", encoding="utf-8", errors="backslashreplace")


def _named(fresh: Path, path: Path, another: bool) -> Path:
    """Moves a folder to a name that is free."""
    for number in count(1):
        place = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            if not os.path.lexists(place):
                return fresh.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # somebody was faster
                raise
        if not another:
            break
    raise RunError(f"The run folder {path} exists already; choose another --name, or latecomer resume {path}.")


def _filled(outline: Mapping[str, Any], leaf: Callable[[str], Any], prefix: str = "") -> Tree:
    """The tree as it was saved. safetensors sorts names and knows no empty branch, but optimisers go by the order."""
    return {
        key: leaf(prefix + key) if part is None else _filled(part, leaf, f"{prefix}{key}/")
        for key, part in outline.items()
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
