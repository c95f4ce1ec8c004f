"""Secret sharing (Shamir 1979): any `threshold` shares tell a secret of 32 bytes, fewer tell nothing about it.

A secret is the value at zero of a random polynomial over the whole numbers modulo a prime; a share is its value at one
client's point.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from ..errors import ProtocolError
from .sizes import SECRET, SHARE

PRIME = 2**256 + 297  # the first above all secrets


def split(secret: bytes, points: Sequence[int], threshold: int) -> dict[int, bytes]:
    """A share for every point. Points are above zero, where the secret is, and differ."""
    polynomial = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {point: _value(polynomial, point).to_bytes(SHARE) for point in points}


def _value(polynomial: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


def factors(points: Sequence[int]) -> dict[int, int]:
    """What the share of each point is multiplied by, so that products add up to the value at zero (Lagrange)."""
    found = {}
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        found[point] = above * pow(below, -1, PRIME) % PRIME
    return found


def join(shares: Mapping[int, bytes], factors: Mapping[int, int]) -> bytes:
    """The secret, from as many shares as the threshold was, all of whose points have a factor."""
    value = sum(int.from_bytes(shares[point]) * factor for point, factor in factors.items()) % PRIME
    if value >= 2 ** (8 * SECRET):
        raise ProtocolError("Shares do not belong together: what they add up to is no secret.")
    return value.to_bytes(SECRET)
