"""Files that appear whole or not at all, and a sentence for what a disk can do to them."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors import SafetensorError

from ..errors import RunError, SettingError

fcntl: ModuleType | None
try:
    import fcntl
except ModuleNotFoundError:  # not on Windows, where nothing keeps two processes apart
    fcntl = None


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Whatever keeps a run folder from being read is one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"The run folder {folder} cannot be read: {error.strerror or error}.") from error


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Whatever keeps a run folder from being written to, a full disk say, is one sentence that tells how to go on."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if not os.path.isdir(folder):
            raise RunError(f"The run folder {folder} was removed while the run was at work in it.") from error
        again = f"latecomer resume {shlex.quote(str(folder))}"
        raise RunError(
            f"The run folder {folder} cannot be written to: {_reason(error)}; "
            f"mend that, then go on from the last checkpoint with: {again}"
        ) from error


def _reason(error: OSError | SafetensorError) -> str:
    """In the system's words, which safetensors wraps in its own."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    number = re.search(r"os error (\d+)", str(error))
    return os.strerror(int(number[1])) if number else str(error)


class Replacing:
    """Write beside a file, then put the new one in its place in one step; on an error the old one stays."""

    def __init__(self, path: Path) -> None:
        self.path, self.draft = path, path.with_name(f".{path.name}.new")

    def __enter__(self) -> Path:
        self.draft.unlink(missing_ok=True)  # it may be a link to somewhere else
        self.draft.touch()
        self.mode = self.draft.stat().st_mode
        return self.draft

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self.draft.unlink(missing_ok=True)
            return
        try:
            self.draft.chmod(self.mode)  # safetensors would keep its files from everybody else
            with self.draft.open("rb") as file:
                os.fsync(file.fileno())
            self.draft.replace(self.path)
        except OSError:  # there is a folder of this name, say
            self.draft.unlink(missing_ok=True)
            raise


def write(path: Path, text: str) -> None:
    """A text in a file, whole or not at all; folders are made. What keeps it from being written is one sentence.

    A folder, or a file that came from somewhere, can have half a character in a name, which is written as its number.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with Replacing(path) as target:
            target.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}.") from error


def check_name(name: str) -> None:
    """A sentence where what a user calls a folder is no name alone: it could lead out of --out."""
    if name.strip() in ("", ".", "..") or not name.isprintable() or {*name} & {"/", "\\"}:
        raise SettingError(f"--name must be a plain name, without slashes and not '.' or '..'; got {name!r}.")


def locked(path: Path) -> int:
    """A file, open and locked; BlockingIOError if it is locked already. Closing it, or ending, gives the lock back."""
    file = os.open(path, os.O_RDONLY)
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file


def existing(path: str, flags: int) -> int:
    """An opener that neither makes a file nor follows a link."""
    return os.open(path, flags & ~os.O_CREAT | getattr(os, "O_NOFOLLOW", 0))


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def strict(value: Any) -> Any:
    """JSON has no NaN (the validation score of a run without validation data, say); other readers would choke on it."""
    if isinstance(value, Mapping):
        return {key: strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
