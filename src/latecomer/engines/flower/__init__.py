"""Exchanges as Flower messages: the same method files, on clients that could be anywhere (extra 'flower').

engine.py   on the server: an exchange becomes one message a client, replies are matched and counted
reply.py    on the server: whether a reply is what its step must answer; what is not, is silence
sums.py     on the server: secure means, of which it sees the sum alone
link.py     on the server: a grid over a SuperLink, and the nodes that are there
control.py  on the operator's machine: registers nodes, starts, follows and stops runs
masks.py    on the client: its part in a secure mean
participant.py  on the client: one that can be in any training, with a method made from a hello
fleet.py    on the client: Flower's Fleet API, by which a node talks to a SuperLink
keys.py     on the client: the key by which a node proves who it is
grid.py     between them: a grid inside this process, which delivers real messages to a real ClientApp
app.py      on the client: does the step that a message names, if this client's role answers it
notes.py    on the client: what it keeps in `context.state`
spending.py on the client: counts what it releases, and refuses what its budget does not allow
hello.py    on both: what they tell each other before a training
terms.py    on both: what they must agree on, in each message
wire.py     on both: trees as bytes, and back
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from ...data.federation import SPLITS, Federation
from ...errors import need
from ...method import Method
from ..environment import environment

if TYPE_CHECKING:
    from .control import Control
    from .engine import Flower

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""A run sends nothing home and installs nothing. What of it concerns this process, Flower reads when it is imported."""


def local_engine(method: Method, federations: Sequence[Federation]) -> Flower:
    """Server, grid and clients in this process, with nothing but messages between them."""
    with quietly():
        need("flwr", "flower")
        need("flwr.supercore.telemetry", "flower")  # it keeps what it finds in the environment
        from .app import client_app
        from .engine import Flower
        from .grid import LocalGrid

    largest = {split: max(federation.largest(split) for federation in federations) for split in SPLITS}
    return Flower(method, LocalGrid(client_app(method, federations, simulated=True)), largest=largest)


def superlink(address: str, certificates: Path | None) -> Control:
    """A SuperLink, for its operator; without `certificates` to trust, nothing is encrypted."""
    with quietly():
        need("flwr", "flower")
        from .control import Control

    return Control(address, certificates)


def quietly() -> AbstractContextManager[None]:
    """The environment that Flower is imported in."""
    return environment(QUIET)
