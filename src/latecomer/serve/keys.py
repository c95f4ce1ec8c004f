"""API keys: a file of names, scopes and salted hashes. A key itself is shown once, when it is made.

A key is 256 random bits, so nobody can try them out, and one fast hash is as good as a slow one: slow hashes are for
passwords, which can be guessed.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

from ..errors import SettingError, UnknownName

FORMAT = 1
DAY = 86400.0
SCOPES = {
    "encoder": "fetch the bundle's facts, its encoder and its public files",
    "models": "ask for models, coverage and better embeddings",
    "metrics": "read the server's metrics",
}
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
TEXT = re.compile(r"lc-([0-9a-f]{16})-([A-Za-z0-9_-]{43})")


@dataclass(frozen=True)
class Key:
    """What is kept of a key: enough to know it again, and nothing to make it from."""

    id: str
    name: str  # whose it is; what is spent is counted by it, also after a rotation
    scopes: tuple[str, ...]
    salt: str
    hash: str
    created: float  # seconds since 1970
    expires: float | None = None

    def expired(self, now: float) -> bool:
        return self.expires is not None and now >= self.expires


NOBODY = Key("", "", (), "00" * 16, "00" * 32, 0.0)  # compared with where no key has the id, which takes as long


@dataclass(frozen=True)
class Keys:
    """All keys of a server."""

    keys: tuple[Key, ...] = ()

    @staticmethod
    def read(path: Path) -> Keys:
        """From a file, which is checked; a SettingError where it is none of ours."""
        try:
            table = json.loads(path.read_bytes())
            if table["format"] != FORMAT:
                raise ValueError(f"its format is {table['format']!r}")
            return Keys(tuple(_checked(one) for one in table["keys"]))
        except OSError as error:
            raise SettingError(f"The key file {path} cannot be read: {error.strerror or error}.") from error
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise SettingError(f"{path} is no key file: {type(error).__name__}: {error}.") from error

    def write(self, path: Path) -> None:
        """For its owner alone to read, whole or not at all."""
        text = json.dumps({"format": FORMAT, "keys": [asdict(key) for key in self.keys]}, indent=2) + "\n"
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise SettingError(f"The key file {path} cannot be written: {error.strerror or error}.") from error

    def new(self, name: str, scopes: Sequence[str], days: float = 0.0) -> tuple[Keys, str]:
        """One more key, and its text, which is nowhere else; 0 days: it does not expire."""
        if not NAME.fullmatch(name):
            raise SettingError(f"A key's name is up to 64 letters, digits, dots, dashes; got {name!r}.")
        if any(key.name == name for key in self.keys):
            raise SettingError(f"There is a key called {name!r} already; `latecomer keys rotate` replaces it.")
        for scope in scopes:
            if scope not in SCOPES:
                raise UnknownName("scope", scope, SCOPES)
        if not scopes:
            raise SettingError(f"A key needs a scope; there are: {', '.join(SCOPES)}.")
        return self._with(name, tuple(dict.fromkeys(scopes)), days)

    def rotate(self, name: str, grace: float, days: float = 0.0) -> tuple[Keys, str]:
        """A new key of the same name and scopes; the old ones work for `grace` more days."""
        now, end = time.time(), time.time() + grace * DAY
        named = self._called(name)
        kept = [key for key in self.keys if not key.expired(now)]
        ending = [replace(key, expires=min(key.expires or end, end)) if key.name == name else key for key in kept]
        return Keys(tuple(ending))._with(name, named[-1].scopes, days)

    def revoke(self, name: str) -> Keys:
        """Without any key of this name."""
        self._called(name)
        return Keys(tuple(key for key in self.keys if key.name != name))

    def find(self, text: str) -> Key | None:
        """The key with this text, which may have expired."""
        parts = TEXT.fullmatch(text)
        id_, secret = parts.groups() if parts else ("", "")
        found = next((key for key in self.keys if key.id == id_), NOBODY)
        same = hmac.compare_digest(_hash(secret, found.salt), found.hash)
        return found if same and found is not NOBODY else None

    def _with(self, name: str, scopes: tuple[str, ...], days: float) -> tuple[Keys, str]:
        id_, secret, salt, now = secrets.token_hex(8), secrets.token_urlsafe(32), secrets.token_hex(16), time.time()
        expires = now + days * DAY if days else None
        key = Key(id_, name, scopes, salt, _hash(secret, salt), now, expires)
        return Keys((*self.keys, key)), f"lc-{id_}-{secret}"

    def _called(self, name: str) -> list[Key]:
        named = [key for key in self.keys if key.name == name]
        if not named:
            raise UnknownName("key", name, {key.name for key in self.keys})
        return named


def _hash(secret: str, salt: str) -> str:
    return blake2b(secret.encode(), digest_size=32, salt=bytes.fromhex(salt)).hexdigest()


def _checked(one: dict[str, object]) -> Key:
    key = Key(**{**one, "scopes": tuple(one["scopes"])})  # type: ignore[arg-type]
    texts = (key.id, key.name, key.salt, key.hash, *key.scopes)
    numbers = (key.created, 0.0 if key.expires is None else key.expires)
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(t, int | float) for t in numbers):
        raise ValueError("a key has a value of another type")
    if not NAME.fullmatch(key.name) or len(bytes.fromhex(key.salt)) != 16 or not set(key.scopes) <= set(SCOPES):
        raise ValueError(f"the key {key.name!r} is damaged")
    return key
