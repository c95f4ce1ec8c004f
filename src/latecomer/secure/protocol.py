"""Secure aggregation (Bonawitz et al., CCS 2017, Figure 4, without its signatures): a sum that hides what it is of.

Every pair of clients agrees on a mask that one adds and the other subtracts, and every client adds a mask of its own.
Four messages to each client and back:

1. keys     Each client makes up keys for this exchange and advertises the public ones.
2. shares   Each splits its masking key and the seed of its own mask into shares, one for every client, sealed.
3. mask     Each adds its masks to its numbers: those it has with all clients whose shares came, and its own.
4. unmask   For each client whose numbers came, the others give their shares of its own seed, and for each that was lost
            after stage 2, those of its masking key. With these the server takes off what is left of masks in the sum.

No client gives both shares of another: with both, the server could read that one's numbers. More than half of all that
advertised keys must stay to the end, so that the server cannot ask one half for the one and the other half for the
other. What a client sends in stage 3 is uniform to whoever lacks its seed, or a key of each of its pairs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from ..errors import ProtocolError
from .shares import factors, join, split
from .sizes import FEWEST, KEYS, NONCE, SECRET, SHARE, threshold

Words = NDArray[np.uint64]  # numbers modulo 2^64

PIECE = 2**13  # words of a mask at a time: they stay in the cache


# on the client


@dataclass(frozen=True)
class Client:
    """One client in one exchange, and all that it keeps between messages. A stage returns what is kept, and the answer.

    Clients are whole numbers from zero, the same for everybody. No stage is answered twice: masks hide one vector and
    no more, and shares are given of one kind.
    """

    me: int
    secrets: bytes  # the private keys to seal and to mask by, and the own seed
    keys: Mapping[int, bytes] = field(default_factory=dict)  # that clients advertised
    senders: tuple[int, ...] = ()  # those whose shares came
    survivors: tuple[int, ...] = ()  # those whose numbers came

    @staticmethod
    def begin(me: int) -> tuple[Client, bytes]:
        """Stage 1: fresh secrets, and what to advertise."""
        sealing, masking, own = (os.urandom(SECRET) for _ in range(3))
        return Client(me, sealing + masking + own), _public(sealing) + _public(masking) + sha256(own).digest()

    def share(self, keys: Mapping[int, bytes]) -> tuple[Client, dict[int, bytes]]:
        """Stage 2: shares of its secrets, sealed for every client, itself included."""
        sealing, masking, own = _parts(self.secrets)
        known = keys.get(self.me) == _public(sealing) + _public(masking) + sha256(own).digest()
        different = len({part for key in keys.values() for part in _parts(key)}) == 3 * len(keys)
        if self.keys or not known or not different or min(keys) < 0:  # a share for client -1 would be the secret itself
            raise ProtocolError(f"Client {self.me} shares its secrets once, with different clients and itself.")
        if len(keys) < FEWEST:
            raise ProtocolError(f"A secure mean of {len(keys)} clients would hide too little; it takes {FEWEST}.")
        points, enough = [client + 1 for client in keys], threshold(len(keys))
        halves = split(masking, points, enough), split(own, points, enough)
        sealed = {
            client: _seal(_seal_key(sealing, key, self.me, client), halves[0][client + 1] + halves[1][client + 1])
            for client, key in keys.items()
        }
        return replace(self, keys=dict(keys)), sealed

    def mask(self, senders: Collection[int], numbers: Words) -> tuple[Client, Words]:
        """Stage 3: its numbers, under the masks that it has with these clients and its own."""
        self._check("masks its numbers", self.senders, senders, self.keys)
        _, masking, own = _parts(self.secrets)
        pairs = [(self.me < other, _seed(masking, self.keys[other])) for other in senders if other != self.me]
        masked = numbers.copy()
        _add_masks(masked, [(True, own), *pairs])
        return replace(self, senders=tuple(senders)), masked

    def unmask(self, sealed: Mapping[int, bytes], survivors: Collection[int]) -> tuple[Client, dict[int, bytes]]:
        """Stage 4: one share of each sender, of its own seed if its numbers came, of its masking key if not."""
        self._check("gives shares away", self.survivors, survivors, self.senders)
        if sealed.keys() != {*self.senders}:
            raise ProtocolError(f"Client {self.me} needs what each sender has sealed for it, and nothing else.")
        sealing = _parts(self.secrets)[0]
        given = {}
        for client, box in sealed.items():
            shares = _open(_seal_key(sealing, self.keys[client], client, self.me), box)
            given[client] = shares[SHARE:] if client in survivors else shares[:SHARE]
        return replace(self, secrets=b"", survivors=tuple(survivors)), given  # of no more use, except to a thief

    def _check(self, does: str, done: Collection[int], these: Collection[int], among: Collection[int]) -> None:
        """Once; with itself, among others that it knows; and with more than half of all."""
        if done or self.me not in these or not {*these} <= {*among} or len({*these}) < len(these):
            raise ProtocolError(f"Client {self.me} {does} once, with clients that it knows and with itself.")
        if len(these) < (enough := threshold(len(self.keys))):
            raise ProtocolError(
                f"Only {len(these)} of {len(self.keys)} clients are left; a secure mean takes {enough}."
            )


# on the server


def unmasked(
    total: Words,
    keys: Mapping[int, bytes],
    senders: Collection[int],
    survivors: Collection[int],
    given: Mapping[int, Mapping[int, bytes]],
) -> Words:
    """The sum of the survivors' numbers, from that of what they sent.

    `given` has a row for each survivor that answered stage 4: a share of every sender. Whose shares do not add up to
    what it advertised, spoils the sum, and that is said.
    """
    if len(given) < (enough := threshold(len(keys))):
        raise ProtocolError(f"Only {len(given)} of {len(keys)} clients are left; a secure mean takes {enough}.")
    factor = factors([client + 1 for client in sorted(given)[:enough]])
    masks: list[tuple[bool, bytes]] = []  # with the sign that takes them off
    for client in senders:
        secret = join({giver + 1: shares[client] for giver, shares in given.items()}, factor)
        _, masking, own = _parts(keys[client])
        if (sha256(secret).digest() != own) if client in survivors else (_public(secret) != masking):
            raise ProtocolError(f"Shares of client {client} do not add up to what it advertised.")
        if client in survivors:
            masks.append((False, secret))
        else:  # the others have added what they share with it, as if it were there
            masks += [(other > client, _seed(secret, keys[other])) for other in survivors]
    total = total.copy()
    _add_masks(total, masks)
    return total


# keys, seals and masks


def _parts(three: bytes) -> tuple[bytes, bytes, bytes]:
    if len(three) != KEYS:
        raise ProtocolError(f"A client's keys are {KEYS} bytes; got {len(three)}.")
    return three[:SECRET], three[SECRET : 2 * SECRET], three[2 * SECRET :]


def _public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """What only the holders of either private key can compute."""
    try:
        common = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a point of small order: everybody would know what is agreed on
        raise ProtocolError("A client has advertised a key that is none.") from error
    return HKDF(SHA256(), SECRET, None, b"latecomer secure mean, " + purpose).derive(common)


def _seed(private: bytes, keys: bytes) -> bytes:
    """Of the mask that two clients share."""
    return _agree(private, _parts(keys)[1], b"mask")


def _seal_key(private: bytes, keys: bytes, sender: int, receiver: int) -> ChaCha20Poly1305:
    """One for each direction, so that nobody can hand a client its own words back."""
    return ChaCha20Poly1305(_agree(private, _parts(keys)[0], f"from {sender} to {receiver}".encode()))


def _seal(key: ChaCha20Poly1305, shares: bytes) -> bytes:
    nonce = os.urandom(NONCE)
    return nonce + key.encrypt(nonce, shares, None)


def _open(key: ChaCha20Poly1305, box: bytes) -> bytes:
    try:
        shares = key.decrypt(box[:NONCE], box[NONCE:], None)
    except (InvalidTag, ValueError) as error:
        raise ProtocolError("What a client has sealed for another cannot be opened.") from error
    if len(shares) != 2 * SHARE:
        raise ProtocolError(f"A client's shares are {2 * SHARE} bytes; got {len(shares)}.")
    return shares


def _add_masks(numbers: Words, masks: Iterable[tuple[bool, bytes]]) -> None:
    """Add the mask of every seed, or take it off: AES-256 in counter mode, in words."""
    streams = [
        (np.add if add else np.subtract, Cipher(AES256(seed), CTR(bytes(16))).encryptor()) for add, seed in masks
    ]
    blank, buffer = memoryview(bytes(8 * PIECE)), bytearray(8 * PIECE + 15)
    for first in range(0, len(numbers), PIECE):
        part = numbers[first : first + PIECE]
        for add_or_take_off, stream in streams:
            stream.update_into(blank[: 8 * len(part)], buffer)
            add_or_take_off(part, np.frombuffer(buffer, "<u8", len(part)), out=part)
