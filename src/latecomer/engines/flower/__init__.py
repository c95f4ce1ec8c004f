"""Exchanges as Flower messages: the same method files, on clients that could be anywhere (extra 'flower').

engine.py   on the server: an exchange becomes one message a client, replies are matched and counted
reply.py    on the server: whether a reply is what its step must answer; what is not, is silence
grid.py     between them: a grid inside this process, which delivers real messages to a real ClientApp
app.py      on the client: does the step that a message names, if this client's role answers it
notes.py    on the client: what it keeps in `context.state`
spending.py on the client: counts what it releases, and refuses what its budget does not allow
wire.py     trees as records, and back
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...data.federation import SPLITS, Federation
from ...errors import need
from ...method import Method

if TYPE_CHECKING:
    from .engine import Flower

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""A run sends nothing home and installs nothing. Flower reads some of these when it is imported, so they come first."""


def local_engine(method: Method, federations: Sequence[Federation]) -> Flower:
    """Server, grid and clients in this process, with nothing but messages between them."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    need("flwr", "flower")
    from .app import client_app
    from .engine import Flower
    from .grid import LocalGrid

    largest = {split: max(federation.largest(split) for federation in federations) for split in SPLITS}
    return Flower(method, LocalGrid(client_app(method, federations, simulated=True)), largest=largest)
