"""Messages as a server of latecomer's writes them, and ways to spoil them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import RecordDict

from latecomer import tensorfile
from latecomer.engines.flower.terms import Terms
from latecomer.engines.flower.wire import Header, blob_of, body, pack
from latecomer.engines.flower.wire import request as request_of
from latecomer.method import Method
from latecomer.tree import Tree


def header(method: Method, step: str, round: int = 0, **told: Any) -> Header:  # noqa: A002
    """For client 3 unless told otherwise."""
    return Header(**{"step": step, "round": round, "client": 3, "training": "a-test", **vars(Terms.of(method))} | told)


def request(method: Method, step: str, sent: Tree, round: int = 0, **told: Any) -> RecordDict:  # noqa: A002
    return request_of(header(method, step, round, **told), pack({"shared": sent, "each": {}}))


def arrays(content: RecordDict) -> dict[str, np.ndarray]:
    """What is in a message, or in a reply."""
    return tensorfile.unpack(blob_of(content["body"]))


def with_arrays(content: RecordDict, change: Callable[[dict[str, np.ndarray]], Any]) -> RecordDict:
    """The same message with others."""
    found = arrays(content)
    change(found)
    return with_blob(content, lambda _: tensorfile.pack(found))


def with_blob(content: RecordDict, change: Callable[[bytes], bytes]) -> RecordDict:
    return RecordDict({**content, "body": body(change(blob_of(content["body"])))})


def lying(content: RecordDict, path: str, **told: Any) -> RecordDict:
    """The header of a blob says something else of a leaf."""

    def change(blob: bytes) -> bytes:
        length = int.from_bytes(blob[:8], "little")
        said = json.loads(blob[8 : 8 + length])
        said[path] |= told
        text = json.dumps(said).encode()
        return len(text).to_bytes(8, "little") + text + blob[8 + length :]

    return with_blob(content, change)
