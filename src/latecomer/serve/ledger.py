"""What each key has spent of its privacy, on disk: written down before an answer is sent, so that no crash forgets it.

A descriptor that is sent again tells nothing new, so it is counted once. Of a descriptor only a salted hash is kept.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from .. import privacy
from ..errors import RunError
from ..privacy import Release
from .problems import Problem, later

TABLES = """
CREATE TABLE IF NOT EXISTS salt (salt BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    name TEXT NOT NULL, descriptor BLOB NOT NULL, time REAL NOT NULL, bundle TEXT NOT NULL,
    epsilon REAL NOT NULL, delta REAL NOT NULL, sigma REAL NOT NULL, loss REAL NOT NULL,
    PRIMARY KEY (name, descriptor)) WITHOUT ROWID;
"""


class Ledger:
    """One file for all keys and all bundles; the thread of the passes writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self.database.execute("PRAGMA journal_mode=WAL")
            self.database.execute("PRAGMA synchronous=FULL")  # a commit is on the disk
            self.database.executescript(TABLES)
            self.database.execute(
                "INSERT INTO salt SELECT ? WHERE NOT EXISTS (SELECT * FROM salt)", [secrets.token_bytes(16)]
            )
            (self.salt,) = self.database.execute("SELECT salt FROM salt").fetchone()
        except sqlite3.Error as error:
            raise RunError(f"The privacy ledger {path} cannot be used: {error}.") from error

    def charge(self, release: Release, bundle: str, asked: Sequence[tuple[str, bytes]]) -> list[Problem | None]:
        """Write down what answers to these keys' descriptors give away; a problem for each that a budget forbids."""
        try:
            self.database.execute("BEGIN IMMEDIATE")  # another server may write to the same file
            try:
                refused = [self._charge(release, bundle, name, descriptor) for name, descriptor in asked]
                self.database.execute("COMMIT")
            except BaseException:
                self.database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise later("The privacy ledger cannot be written to, so nothing is handed out.", 30) from error
        return refused

    def _charge(self, release: Release, bundle: str, name: str, descriptor: bytes) -> Problem | None:
        known = blake2b(descriptor, digest_size=16, salt=self.salt).digest()
        if self.database.execute("SELECT 1 FROM answers WHERE name = ? AND descriptor = ?", [name, known]).fetchone():
            return None
        loss, answers = self.spent(name)
        if loss + release.loss > release.affordable:
            return Problem(
                403,
                f"This key has spent epsilon {privacy.epsilon(loss, release.delta):.4g} of its budget of "
                f"{release.budget:g} in {answers} answers, and another one does not fit.",
            )
        promise = (release.epsilon, release.delta, release.sigma, release.loss)
        self.database.execute(
            "INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [name, known, time.time(), bundle, *promise]
        )
        return None

    def spent(self, name: str) -> tuple[float, int]:
        """The loss of all answers to a key (see `privacy`), and their number."""
        query = "SELECT total(loss), count(*) FROM answers WHERE name = ?"
        loss, answers = self.database.execute(query, [name]).fetchone()
        return float(loss), int(answers)

    def close(self) -> None:
        self.database.close()
