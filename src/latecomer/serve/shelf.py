"""The bundle that is served now, and how a new one takes its place while requests go on."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import LatecomerError
from .edition import Edition
from .ledger import Ledger

if TYPE_CHECKING:
    from ..handover.bundle import Bundle

log = logging.getLogger("latecomer.serve")


class Shelf:
    """A request takes the edition once and keeps it; who comes later takes the newer one."""

    def __init__(self, path: Path, ledger: Ledger | None, open_bundle: Callable[[Path], Bundle]) -> None:
        self.path, self.ledger, self.open_bundle = path, ledger, open_bundle
        self.seen = self._look()
        self.edition = Edition.of(self._open(), ledger)
        self.taken_over = self.refused = 0

    def refresh(self, anyway: bool = False) -> None:
        """Take over what lies at the path now, if it changed; the old one stays where the new one cannot be served."""
        seen = self._look()
        if seen == self.seen and not anyway:
            return
        self.seen = seen  # a damaged bundle is looked at once
        try:
            bundle = self._open()
            if bundle.version == self.edition.version:
                return
            new = Edition.of(bundle, self.ledger)
        except (LatecomerError, RuntimeError, ValueError, MemoryError) as error:  # its first pass is tried here
            self.refused += 1
            log.error("new bundle refused, %s stays: %s", self.edition.version, error)
            return
        log.warning("bundle %s takes over from %s", new.version, self.edition.version)
        self.edition, self.taken_over = new, self.taken_over + 1

    def _open(self) -> Bundle:
        return self.open_bundle(Path(os.path.realpath(self.path)))  # a link may be moved while files are read

    def _look(self) -> tuple[object, ...]:
        """What differs when there is another bundle: where a link leads, and which bundle.json that is."""
        try:
            found = os.stat(self.path / "bundle.json")
        except OSError:  # between two bundles, say
            return ()
        return os.path.realpath(self.path), found.st_ino, found.st_mtime_ns, found.st_size
