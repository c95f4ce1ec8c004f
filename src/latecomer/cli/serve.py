"""latecomer serve: hand out models of a published bundle over HTTP."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from ..errors import SettingError, need
from ..serve.settings import Serving
from ..settings import parse
from . import flags, screen
from .show import lines

USAGE = """Usage: latecomer serve BUNDLE [--setting value ...]

Hands out models of a bundle that `latecomer publish` has written. When another bundle takes its place (BUNDLE may be a
link), the server takes it over without dropping a request; SIGHUP makes it look at once. SIGTERM stops it when what is
under way is answered. One line a request goes to standard error: never data, never keys.
"""


def main(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        raise SettingError("Say which bundle to serve: latecomer serve BUNDLE.")
    settings = parse(Serving, flags.given(words[1:], Serving))
    settings.check()
    with screen.working("Opening the bundle"):
        for package in ("fastapi", "uvicorn"):
            need(package, "serve")
        import torch

        from ..engines import heap
        from ..handover.bundle import Bundle
        from ..serve.listen import listen
        from ..serve.service import Service

        if settings.threads:
            torch.set_num_threads(settings.threads)
        heap.keep()  # every pass takes and frees megabytes
        service = Service(Path(words[0]), settings, Bundle.open)
    write_down()
    listen(service, lambda address: print(f"Serving {words[0]} at {address}", flush=True))
    return 0


def explain(words: list[str]) -> None:
    print(USAGE)
    screen.section("Settings", lines(Serving, {}))


def write_down() -> None:
    """The server's log, with times in UTC."""
    handler = logging.StreamHandler(sys.stderr)
    form = logging.Formatter("%(asctime)s.%(msecs)03dZ %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    handler.setFormatter(form)
    log = logging.getLogger("latecomer.serve")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
