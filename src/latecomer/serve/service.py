"""What all requests share: the bundle, the passes, the keys, the limits and the counts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LatecomerError
from .batching import Batcher
from .edition import Edition
from .keys import Key, Keys
from .ledger import Ledger
from .limits import Buckets
from .metrics import Metrics
from .problems import Problem, later
from .settings import Serving
from .shelf import Shelf

if TYPE_CHECKING:
    from ..handover.bundle import Bundle

log = logging.getLogger("latecomer.serve")
ANYBODY = "anybody"  # whose requests they are where there are no keys


class Service:
    """One server's."""

    def __init__(self, path: Path, settings: Serving, open_bundle: Callable[[Path], Bundle]) -> None:
        settings.check()
        self.settings = settings
        self.keys = self._read_keys() if settings.keys else None
        self.ledger = Ledger(Path(settings.ledger)) if settings.ledger else None
        self.shelf = Shelf(path, self.ledger, open_bundle)
        self.batcher = Batcher(settings.batch, settings.waiting)
        self.addresses, self.callers = (Buckets(settings.rate, settings.burst) for _ in range(2))
        self.metrics = Metrics()
        self.under_way = 0
        self.stopping = False
        self.looking = threading.Lock()  # one look at a time, else an older bundle could follow a newer one

    @property
    def edition(self) -> Edition:
        return self.shelf.edition

    def admit(self, text: str | None, scope: str) -> str:
        """The name of the key that `Authorization` has; a problem where it may not do this, or not now."""
        if self.keys is None:
            return ANYBODY
        key = self._known(text)
        if scope not in key.scopes:
            raise Problem(403, f"This key does not have the scope {scope!r}.")
        if wait := self.callers.take(key.name, time.monotonic()):
            raise later("This key sends too many requests.", wait, 429)
        return key.name

    def _known(self, text: str | None) -> Key:
        assert self.keys is not None
        ask = {"WWW-Authenticate": "Bearer"}
        if not text:
            raise Problem(401, "This needs a key: Authorization: Bearer KEY.", ask)
        key = self.keys.find(text)
        if key is None:
            raise Problem(401, "This key is not known.", ask)
        if key.expired(time.time()):
            raise Problem(401, "This key has expired.", ask)
        return key

    def refresh(self, anyway: bool = False) -> None:
        """Look for new keys and a new bundle; keys first, for a bundle may take long, or fail."""
        with self.looking:
            if self.settings.keys:
                try:
                    self.keys = self._read_keys()
                except LatecomerError as error:
                    log.error("keys stay as they were: %s", error)
            self.shelf.refresh(anyway)

    def _read_keys(self) -> Keys:
        return Keys.read(Path(self.settings.keys))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Looks around while it runs, and ends what it began."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.to_thread(self.batcher.stop)
            if self.ledger is not None:
                self.ledger.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.look_every)
            try:
                await asyncio.to_thread(self.refresh)
            except Exception as error:  # a fault of ours must not be the last look: keys are revoked by the next
                log.error("looking around failed: %s", type(error).__name__)
