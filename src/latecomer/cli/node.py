"""latecomer node: take part in a federation with data of one's own."""

from __future__ import annotations

import logging
import signal
import sys
import time

from ..errors import need
from ..node.settings import Stay
from ..settings import parse
from . import flags, screen
from .show import lines

USAGE = """Usage: latecomer node --superlink HOST:PORT --root-certificates CA.crt --key NODE.key --data MINE.npz
                      [--setting value ...]

A client's own machine in a federation: it answers what a server of latecomer's asks over a Flower SuperLink, trains on
MINE.npz, and keeps the personal model that it is given. The data never leave it, and no code comes from the server. It
may be killed at any time: started again, it takes its place and answers what it had not. SIGTERM makes it leave. One
line an event goes to standard error.
"""


def main(words: list[str]) -> int:
    settings = parse(Stay, flags.given(words, Stay))
    settings.check()
    with screen.working("Reading the data"):
        for package in ("flwr", "cryptography", "httpx"):
            need(package, "flower")
        import torch

        from ..engines.flower import quietly

        with quietly():
            from ..node.stay import Node

        if settings.threads:
            torch.set_num_threads(settings.threads)
        write_down()
        node = Node(settings)
    signal.signal(signal.SIGTERM, lambda *_: node.stop())
    node.run()
    return 0


def explain(words: list[str]) -> None:
    print(USAGE)
    screen.section("Settings", lines(Stay, {}))


def write_down() -> None:
    """The node's log, with times in UTC."""
    handler = logging.StreamHandler(sys.stderr)
    form = logging.Formatter("%(asctime)s.%(msecs)03dZ %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    handler.setFormatter(form)
    log = logging.getLogger("latecomer.node")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
