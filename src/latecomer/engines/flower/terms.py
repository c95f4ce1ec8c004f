"""What server and client must agree on before a message means anything: method, settings and version."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields

from ... import __version__
from ...errors import ProtocolError
from ...method import Method


@dataclass(frozen=True)
class Terms:
    """In each message; a client compares them with its own."""

    method: str  # the name of its class
    settings: str  # a digest of all that both sides build it from
    version: str  # of latecomer

    @staticmethod
    def of(method: Method) -> Terms:
        task = method.task
        known = {f.name: getattr(method, f.name) for f in fields(method) if f.init and f.name != "task"}
        known["task"] = {
            "shape": task.shape,
            "classes": task.classes,
            "dtype": task.dtype,
            "sizes": task.sizes,
            "weights": dict(task.model.shapes),
        }
        text = json.dumps(known, sort_keys=True, default=str)
        return Terms(type(method).__name__, hashlib.sha256(text.encode()).hexdigest(), __version__)

    def check(self, theirs: Terms) -> None:
        """Refuse a server that speaks of something else."""
        if theirs.version != self.version:
            raise ProtocolError(f"The server runs latecomer {theirs.version[:40]}, and this client {self.version}.")
        if theirs.method != self.method:
            raise ProtocolError(f"The server trains {theirs.method[:40]!r}, and this client {self.method!r}.")
        if theirs.settings != self.settings:
            raise ProtocolError(
                f"The server's settings of {self.method} ({theirs.settings[:12]}) are not this client's "
                f"({self.settings[:12]})."
            )
