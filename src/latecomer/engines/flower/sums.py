"""On the server: a secure mean, by the four stages of `secure/protocol.py`. It sees masked numbers, and their sum."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from ... import tree
from ...clients import Ask
from ...errors import ProtocolError
from ...evaluate import MOST_EXAMPLES
from ...faults import SLOW
from ...secure.protocol import unmasked
from ...secure.sizes import FEWEST, KEYS, SEALED, SHARE, threshold
from ...tree import Tree
from .masks import COUNTS
from .reply import Layout
from .wire import unflattened

LOG = logging.getLogger(__name__)

Converse = Callable[[str, Ask, Mapping[int, Tree], Layout], Iterator[tuple[int, Tree]]]
"""(action, ask, messages, what a reply looks like) -> the replies that are ones; all by row of the cohort."""


def take_sum(step: str, ask: Ask, wanted: Layout, converse: Converse) -> None:
    """Hand over the sum of the replies to a step; that of nobody, where too few clients stayed."""
    secure, like = (
        ask.collector.rules.secure,
        unflattened({path: torch.zeros(shape, dtype=getattr(torch, kind)) for path, (kind, shape) in wanted.items()}),
    )
    assert secure is not None
    size = sum(leaf.numel() for leaf in tree.leaves(like))
    heard, total = torch.zeros(len(ask.ids), dtype=torch.bool), torch.zeros(size + 1, dtype=torch.int64)
    try:
        total, rows = _sum(step, ask, size + 1, converse)
        heard[rows] = True
    except ProtocolError as error:
        LOG.warning("Nobody is heard at %r in round %d: %s", step, ask.round, error)
    numbers, count = secure.sums(total)
    ask.collector.take_sum(tree.unravel(numbers, like), count, heard, like)


def _sum(step: str, ask: Ask, size: int, converse: Converse) -> tuple[Tensor, list[int]]:
    """The sum of whole numbers, so many of each client, and the rows of the cohort that it is of."""
    ids: list[int] = ask.ids.tolist()
    late = torch.zeros(len(ids)) if ask.faults is None else ask.faults == SLOW
    by = torch.tensor(COUNTS.index(ask.collector.by))

    asked: dict[int, Tree] = {k: {"shared": {}, "each": {}} for k in range(len(ids)) if not ask.silent[k]}
    keys = {k: reply["keys"] for k, reply in converse(f"secure_keys_{step}", ask, asked, {"keys": ("uint8", (KEYS,))})}
    _enough(keys, FEWEST)

    told = {"clients": torch.tensor([ids[k] for k in keys]), "keys": torch.stack([*keys.values()])}
    form: Layout = {"sealed": ("uint8", (len(keys), SEALED))}
    messages: dict[int, Tree] = {k: {"shared": told, "each": {}} for k in keys}
    sealed = {k: reply["sealed"] for k, reply in converse(f"secure_shares_{step}", ask, messages, form)}
    _enough(sealed, threshold(len(keys)))

    masks = {"senders": torch.tensor([ids[k] for k in sealed]), "by": by}
    messages = {k: {"shared": ask.shared, "each": tree.row(ask.each, k), "masks": masks} for k in sealed}
    total, left = np.zeros(size, np.uint64), []
    for k, reply in converse(step, ask, messages, {"masked": ("int64", (size,))}):
        if not late[k]:
            total += reply["masked"].numpy().view(np.uint64)
            left.append(k)
    _enough(left, threshold(len(keys)))

    place = {k: position for position, k in enumerate(keys)}
    survivors = {"survivors": torch.tensor([ids[k] for k in left])}
    messages = {
        k: {"shared": survivors, "each": {"sealed": torch.stack([rows[place[k]] for rows in sealed.values()])}}
        for k in left
    }
    shares: dict[int, dict[int, bytes]] = {}
    for k, reply in converse(f"secure_unmask_{step}", ask, messages, {"shares": ("uint8", (len(sealed), SHARE))}):
        shares[ids[k]] = {ids[sender]: _bytes(row) for sender, row in zip(sealed, reply["shares"], strict=True)}
    advertised = {ids[k]: _bytes(row) for k, row in keys.items()}
    whole = unmasked(total, advertised, [ids[k] for k in sealed], [ids[k] for k in left], shares)
    found = torch.from_numpy(whole.view(np.int64))
    if not 0 <= int(found[-1]) <= MOST_EXAMPLES * len(left):
        raise ProtocolError("The clients' weights add up to nonsense.")
    return found, left


def _enough(clients: Collection[int], needed: int) -> None:
    if len(clients) < needed:
        raise ProtocolError(f"Only {len(clients)} clients are left; a secure mean takes {needed}.")


def _bytes(row: Tensor) -> bytes:
    return bytes(row.numpy())
