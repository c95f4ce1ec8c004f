"""On the client: its part in a secure mean. The reply to a step that is averaged leaves it under masks alone.

Around the step come messages of their own, actions named after it: `secure_keys_fit`, `secure_shares_fit`, then `fit`
itself, whose message says whose masks to put on, and `secure_unmask_fit`. What is kept in between is in the notes of
the round, so a node that is killed goes on; and as with steps, the same message gets the same reply, and another none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from ...errors import ProtocolError
from ...method import Method
from ...secure.protocol import Client
from ...secure.sizes import KEYS, SEALED
from ...steps import Phase, answers_of, phases_of, steps
from ...tree import Tree

STAGES = ("secure_keys", "secure_shares", "secure_unmask")
COUNTS = ("clients", "labelled", "examples")  # what a client counts for in a mean, by its place here


def stages(method: Method) -> dict[str, tuple[str, str]]:
    """Actions besides the steps themselves: of each the stage, and the step that it belongs to."""
    found = [step for step in steps(type(method)) if under_masks(method, step, "round")]
    return {f"{stage}_{step}": (stage, step) for step in found for stage in STAGES}


def under_masks(method: Method, step: str, phase: Phase) -> bool:
    """Whether the reply to a step leaves a client under masks."""
    kind = type(method)
    averaged = "round" in phases_of(kind, step) and answers_of(kind, step) == "averaged"
    return method.secure is not None and phase == "round" and averaged


class Masks:
    """A client in the secure mean of one step in one round, kept in a record of its state."""

    def __init__(self, state: RecordDict, place: str) -> None:
        self.state, self.place = state, place

    def answer(self, stage: str, me: int, sent: Tree) -> Tree:
        """The reply to one of the messages around the step."""
        if stage == "secure_keys":
            client, keys = Client.begin(me)
            self._keep(client)
            return {"keys": _rows([keys])[0]}
        client = self._kept()
        if stage == "secure_shares":
            ids, advertised = _ids(sent["shared"], "clients"), _bytes(sent["shared"], "keys", KEYS)
            if not len({*ids}) == len(ids) == len(advertised):
                raise ProtocolError("A message must have the keys of as many clients as it names.")
            client, sealed = client.share(dict(zip(ids, advertised, strict=True)))
            self._keep(client)
            return {"sealed": _rows([sealed[one] for one in ids])}
        sealed_for_me = _bytes(sent["each"], "sealed", SEALED)
        if len(sealed_for_me) != len(client.senders):
            raise ProtocolError("A message must have what every client sealed for this one.")
        boxes = dict(zip(client.senders, sealed_for_me, strict=True))
        client, given = client.unmask(boxes, _ids(sent["shared"], "survivors"))
        self._keep(client)
        return {"shares": _rows([given[one] for one in client.senders])}

    def hide(self, method: Method, reply: Tree, weight: int, sent: Tree) -> Tree:
        """A reply under masks, times what the client counts for: a row of whole numbers."""
        assert method.secure is not None
        by = sent.get("by")
        if not isinstance(by, Tensor) or by.shape or by.dtype != torch.int64 or not 0 <= int(by) < len(COUNTS):
            raise ProtocolError("A message must tell what a client counts for in a mean.")
        count = {"clients": 1, "labelled": int(weight > 0), "examples": weight}[COUNTS[int(by)]]
        words = method.secure.whole(reply, count).numpy().view(np.uint64)
        client, masked = self._kept().mask(_ids(sent, "senders"), words)
        self._keep(client)
        return {"masked": torch.from_numpy(masked.view(np.int64))}

    def _kept(self) -> Client:
        record: Mapping[str, Any] | None = self.state.config_records.get(self.place)
        if record is None:
            raise ProtocolError("This client has advertised no keys for a secure mean in this round.")
        keys = dict(zip(record["clients"], record["keys"], strict=True))
        senders, survivors = tuple(record["senders"]), tuple(record["survivors"])
        return Client(record["me"], record["secrets"], keys, senders, survivors)

    def _keep(self, client: Client) -> None:
        keys, senders, survivors = client.keys, list(client.senders), list(client.survivors)
        record = ConfigRecord({"me": client.me, "secrets": client.secrets, "senders": senders, "survivors": survivors})
        record["clients"], record["keys"] = [*keys], [*keys.values()]
        self.state[self.place] = record


# bytes and numbers of clients as tensors, and back


def _rows(rows: list[bytes]) -> Tensor:
    return torch.from_numpy(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1).copy())


def _bytes(sent: Tree, name: str, size: int) -> list[bytes]:
    rows = sent.get(name)
    if not isinstance(rows, Tensor) or rows.dtype != torch.uint8 or rows.ndim != 2 or rows.shape[1] != size:
        raise ProtocolError(f"A message must have {name!r}, rows of {size} bytes.")
    return [row.tobytes() for row in rows.numpy()]


def _ids(sent: Tree, name: str) -> list[int]:
    ids = sent.get(name)
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.ndim != 1:
        raise ProtocolError(f"A message must have {name!r}, numbers of clients.")
    return [int(one) for one in ids]
