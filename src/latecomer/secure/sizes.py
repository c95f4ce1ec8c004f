"""What a secure mean takes: how many clients, and how many bytes. Known to all, without a word of cryptography."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

N = TypeVar("N", int, Tensor)

FEWEST = 3  # clients: of a sum of two, each knows the other's part
SECRET, SHARE = 32, 33  # bytes of a key or a seed, and of a share of it
KEYS = 3 * SECRET  # that a client advertises: to seal by, to mask by, and a digest of its own seed
NONCE, TAG = 12, 16
SEALED = NONCE + 2 * SHARE + TAG  # that one client seals for another
WORD = 8  # bytes of a number under masks, and of a client's own


def threshold(clients: N) -> N:
    """How many of so many clients must stay to the end: more than half."""
    return clients // 2 + 1


def besides(asked: int, answered: int) -> tuple[int, int]:
    """Bytes down and up, of all clients together, besides the step's message and the masked answer."""
    stages_down = (
        0,  # keys
        asked * asked * (WORD + KEYS),  # shares: everybody's keys
        asked * (asked + 1) * WORD,  # mask: whose shares came, and what a client counts for
        answered * (asked * SEALED + answered * WORD),  # unmask: what was sealed for it, and whose numbers came
    )
    stages_up = asked * KEYS, asked * asked * SEALED, 0, answered * asked * SHARE
    return sum(stages_down), sum(stages_up)
