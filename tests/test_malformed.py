"""Malformed replies, fuzzed: none ends a round, and none moves a weight."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import toys
from latecomer import tensorfile
from latecomer.clients import Clients
from latecomer.engines.flower.app import client_app
from latecomer.engines.flower.engine import Flower
from latecomer.engines.flower.grid import LocalGrid
from latecomer.engines.flower.wire import blob_of, body
from latecomer.evaluate import MOST_EXAMPLES
from latecomer.tree import Tree

METHOD, FEDERATION = toys.method("fedavg"), toys.federation()
STATE = toys.start(METHOD)
IDS, BAD = torch.tensor([0, 3]), 3


class Played:
    """A grid that plays what honest clients answered once, but for one that answers what it likes."""

    def __init__(self) -> None:
        self.inner = LocalGrid(client_app(METHOD, [FEDERATION]))
        self.node = self.inner.node
        self.honest: dict[int, RecordDict] = {}
        self.answer: RecordDict | Error | None = None

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        for message in messages:
            node = message.metadata.dst_node_id
            if node not in self.honest:
                (reply,) = self.inner.send_and_receive([message])
                self.honest[node] = reply.content
            message.metadata.__dict__["_message_id"] = str(uuid4())
            bad = node == self.node(0, BAD) and self.answer is not None
            yield Message(self.answer if bad else self.honest[node], reply_to=message)


GRID = Played()
ENGINE = Flower(METHOD, GRID)  # type: ignore[arg-type]


def mean(answer: RecordDict | Error | None, ids: torch.Tensor = IDS) -> tuple[Tree, list[int]]:
    """The mean of what clients answer, and who was not heard."""
    GRID.answer = answer
    clients = Clients(ENGINE, ids, 0)
    found = clients.mean(METHOD.fit, shared=STATE, by="examples")  # type: ignore[attr-defined]
    return found, clients.ledger[0].line().get("unheard", [])


WHOLE, SURVIVORS = mean(None)[0], mean(None, IDS[IDS != BAD])[0]
HONEST = GRID.honest[GRID.node(0, BAD)]
BLOB = blob_of(HONEST["body"])
START = 8 + int.from_bytes(BLOB[:8], "little")  # of the numbers
HEADER = json.loads(BLOB[8:START])
ARRAYS = tensorfile.unpack(BLOB)


# blobs


def with_header(header: Any) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + BLOB[START:]


def flipped(flips: list[tuple[int, int]]) -> bytes:
    """Some bytes of the header are others: what they say may still be the same."""
    made = bytearray(BLOB)
    for place, value in flips:
        made[place] = value
    return bytes(made)


def other(name: str, array: np.ndarray) -> bytes:
    return tensorfile.pack({**ARRAYS, name: array})


def spoilt(name: str, place: int, value: float) -> bytes:
    array = ARRAYS[name].copy()
    array.flat[place % array.size] = value
    return other(name, array)


names, lengths = st.sampled_from([*ARRAYS]), st.integers(0, 2**70) | st.integers(-5, 5)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)
kinds = st.sampled_from([kind for kind in tensorfile.NAMES if kind != np.float32])
lies = st.builds(
    lambda name, key, value: with_header({**HEADER, name: {**HEADER[name], key: value}}),
    names,
    st.sampled_from(["dtype", "shape", "data_offsets"]),
    values | st.lists(lengths, max_size=5) | st.sampled_from(["F64", "BF16", "F8", "BOOL", "U8", "I32"]),
)
blobs = st.one_of(
    st.binary(max_size=300),
    st.integers(0, len(BLOB) - 1).map(lambda end: BLOB[:end]),
    st.binary(min_size=1, max_size=100).map(lambda more: BLOB + more),
    st.lists(st.tuples(st.integers(0, START - 1), st.integers(0, 255)), min_size=1, max_size=4).map(flipped),
    lies,
    values.map(with_header),
    st.dictionaries(names, values, max_size=4).map(with_header),
    names.map(lambda name: tensorfile.pack({key: array for key, array in ARRAYS.items() if key != name})),
    st.text(max_size=8).filter(lambda name: name not in ARRAYS).map(lambda name: other(name, np.ones(2, np.float32))),
    st.builds(lambda name, kind: other(name, ARRAYS[name].astype(kind)), names, kinds),
    st.builds(
        lambda name, more: other(name, np.zeros([*ARRAYS[name].shape, more], np.float32)), names, st.integers(0, 4)
    ),
    st.builds(spoilt, names, st.integers(0, 10**6), st.sampled_from([math.nan, math.inf, -math.inf])),
)


# replies


entries = st.binary(max_size=20) | st.integers(-5, 5) | st.text(max_size=5) | st.lists(st.integers(0, 9))
configs = st.dictionaries(st.sampled_from(["blob", "weight", "x"]), entries).map(ConfigRecord)
arrays = st.builds(
    lambda data, kind, way, length: ArrayRecord({"blob": Array(kind, (length,), way, data)}),
    st.binary(max_size=50) | st.just(BLOB),
    st.sampled_from(["uint8", "float32", "object", "x"]),
    st.sampled_from(["safetensors", "numpy.ndarray", "pickle", ""]),
    st.integers(0, 10**12),
)
weights = st.one_of(
    st.floats(max_value=0, exclude_max=True) | st.floats(MOST_EXAMPLES, exclude_min=True) | st.just(math.nan),
    st.integers(MOST_EXAMPLES + 1, 2**62),
    st.integers(-(2**62), -1),
    st.lists(st.integers(0, 5), max_size=3),
)
metrics = (
    weights.map(lambda weight: MetricRecord({"weight": weight}))
    | st.just(MetricRecord())
    | st.just(MetricRecord({"weight": 1, "more": 1}))
)
records = st.one_of(configs, arrays, metrics, st.just(ConfigRecord()), st.just(ArrayRecord()), st.just(HONEST["body"]))
replies = st.one_of(
    blobs.map(lambda blob: RecordDict({**HONEST, "body": body(blob)})),
    (configs | arrays).map(lambda record: RecordDict({**HONEST, "body": record})),
    (metrics | configs).map(lambda record: RecordDict({**HONEST, "metrics": record})),
    st.dictionaries(st.sampled_from(["body", "metrics", "reply", "header"]), records, max_size=4)
    .filter(lambda found: found.keys() != {"body", "metrics"})
    .map(RecordDict),
    st.builds(Error, st.integers(-5, 300), st.text(max_size=50)),
)


def check(answer: RecordDict | Error) -> None:
    """It is silence, or says what the honest answer says, in another way of writing."""
    found, unheard = mean(answer)
    assert unheard in ([BAD], [])
    event("silence" if unheard else "unharmed")
    assert toys.same(found, SURVIVORS if unheard else WHOLE)


def test_a_clients_words_are_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    mean(Error(2, "gone\nClient 0 counts as silent\x1b[31m\u202e"))
    (record,) = caplog.records
    assert record.getMessage().endswith(r"It failed: 'gone\nClient 0 counts as silent\x1b[31m\u202e'")


@given(replies)
@settings(max_examples=100, deadline=None)
def test_malformed_replies_end_no_round_and_move_no_weight(answer: RecordDict | Error) -> None:
    check(answer)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@given(replies)
@settings(max_examples=10_100, deadline=None, suppress_health_check=[*HealthCheck])
def test_ten_thousand_malformed_replies(answer: RecordDict | Error) -> None:
    logging.disable(logging.WARNING)  # a sentence for each; one in a thousand is harmless
    try:
        check(answer)
    finally:
        logging.disable(logging.NOTSET)
