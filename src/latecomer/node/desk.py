"""The folder of a node. A process that is killed between any two writes comes back to one that is whole.

lock              held while a process is at work here
key               the node's own key, where it was given none
node.json         the place that it has at the SuperLink
letter            the message that is not answered yet: first the names of its parts, then all of it
trainings/NAME    what is kept of a training, and the latest reply: both change in one rename

Each training's file also has all that the client has ever released to anybody, so that the longest ledger is the one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..engines.flower.fleet import Letter, Parcel, State, pack_state, packed, unpack_state, unpacked
from ..engines.flower.keys import new_key
from ..engines.flower.spending import ledger, write
from ..errors import ProtocolError, RunError
from ..privacy import Ledger
from ..runs.files import Replacing, locked
from ..tensorfile import TensorFileError

MOST = 1000  # trainings
DAMAGE = (TensorFileError, ValueError, KeyError, TypeError, IndexError)


class Desk:
    """Of one owner at a time."""

    def __init__(self, path: Path) -> None:
        self.path, self.trainings = path, path / "trainings"
        with self._at("."):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # for its owner alone
            self.trainings.mkdir(exist_ok=True)
            (path / "lock").touch()
            try:
                self.lock = locked(path / "lock")
            except BlockingIOError as error:
                raise RunError(f"Another node is at work in {path}; stop it first, or give another --state.") from error
        found = [
            ledger(self._kept(place.name)[0]) for place in self.trainings.iterdir() if not place.name.startswith(".")
        ]
        self.released = max(found, key=lambda one: len(one.entries), default=Ledger())

    def close(self) -> None:
        os.close(self.lock)

    # who it is

    @property
    def node(self) -> int | None:
        """The place that it had at the SuperLink, if it had one."""
        with self._at("node.json") as place:
            return int(json.loads(place.read_bytes())["node"]) if place.exists() else None

    def take_place(self, node: int) -> None:
        self._write(self.path / "node.json", json.dumps({"node": node}).encode())

    def own_key(self) -> Path:
        """A key that stays the same, for a SuperLink that lets nodes register themselves."""
        with self._at("key") as place:
            if not place.exists():
                self._write(place, new_key())
                place.chmod(0o600)
            return place

    # what it was sent

    def letter(self) -> Letter | None:
        """What was not answered, when the process before this one ended."""
        with self._at("letter") as place:
            return Letter.unpack(place.read_bytes()) if place.exists() else None

    def lay(self, letter: Letter) -> None:
        self._write(self.path / "letter", letter.pack())

    def answered(self) -> None:
        (self.path / "letter").unlink(missing_ok=True)

    # what it keeps

    def training(self, name: str) -> tuple[State, Parcel | None]:
        """The state of a training, which may be a new one, and the latest reply in it."""
        state, reply = self._kept(name)
        if reply is None and len(os.listdir(self.trainings)) >= MOST:
            raise ProtocolError(f"This node has been in {MOST} trainings; its owner can start it with another --state.")
        write(state, self.released)
        return state, reply

    def keep(self, name: str, state: State, reply: Parcel) -> None:
        """A reply, and the state that goes with it."""
        self._write(self.trainings / name, packed({}, {"state": pack_state(state), "reply": reply.pack()}))
        self.released = ledger(state)

    def _kept(self, name: str) -> tuple[State, Parcel | None]:
        with self._at(f"trainings/{name}") as place:
            if not place.exists():
                return State(), None
            _, parts = unpacked(place.read_bytes())
            return unpack_state(parts["state"]), Parcel.unpack(parts["reply"])

    @contextmanager
    def _at(self, name: str) -> Iterator[Path]:
        """Whatever keeps a file from being read is one sentence."""
        try:
            yield self.path / name
        except OSError as error:
            raise RunError(f"{self.path / name} cannot be used: {error.strerror or error}.") from error
        except DAMAGE as error:
            raise RunError(f"{self.path / name} is damaged: {error}.") from error

    def _write(self, place: Path, body: bytes) -> None:
        """Whole or not at all, and on the disk before anything else is done."""
        try:
            with Replacing(place) as draft:
                draft.write_bytes(body)
            folder = os.open(place.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise RunError(f"{place} cannot be written: {error.strerror or error}.") from error
