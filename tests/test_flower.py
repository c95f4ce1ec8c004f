"""The Flower engine: what travels, what stays with a client, and what comes of messages that go astray."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto, recorddict_from_proto, recorddict_to_proto
from torch import Tensor

import letters
import toys
from console import environment
from latecomer import methods, tree
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.engines.flower import local_engine
from latecomer.engines.flower.engine import Flower
from latecomer.engines.flower.wire import SMALL, Header, pack, payload, request, unpack
from latecomer.method import asked_in
from latecomer.methods.fedavg import FedAvg
from latecomer.steps import steps
from latecomer.task import Home
from latecomer.tree import Tree

TREES: dict[str, Tree] = {
    "empty": {},
    "empty branch": {"a": {}, "b": {"c": {}, "d": torch.ones(1)}, "e": {"f": {"g": {}}}},
    "scalar": {"x": torch.tensor(1.5), "n": torch.tensor(3), "flag": torch.tensor(True)},
    "no numbers": {"x": torch.empty(0), "y": torch.empty(3, 0, 2, dtype=torch.int64)},
    "dtypes": {
        str(dtype).removeprefix("torch."): torch.tensor([0, 1, 2]).to(dtype)
        for dtype in (
            *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
            *(torch.float16, torch.float32, torch.float64, torch.complex64),
        )
    },
    "extremes": {
        "x": torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, 1e-45]),
        "n": torch.tensor([2**63 - 1, -(2**63)]),
    },
    "strides": {
        "t": torch.arange(6.0).reshape(2, 3).T,
        "row": torch.arange(6.0)[::2],
        "wide": torch.ones(1).expand(2, 3),
    },
    "names": {"conv1.weight": torch.ones(2), "deep": {"er": {"est": torch.zeros(1)}}, "ünïcode": torch.ones(1)},
}


def identical(a: Any, b: Any) -> bool:
    """Structure, dtype, shape and every bit, NaN included."""
    if isinstance(a, dict) or isinstance(b, dict):
        return isinstance(a, dict) and a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    bits = [leaf.contiguous().numpy().tobytes() for leaf in (a, b)]
    return bool(a.dtype == b.dtype and a.shape == b.shape and bits[0] == bits[1])


# what travels


@pytest.mark.parametrize("name", TREES)
def test_trees_come_back_exactly(name: str) -> None:
    assert identical(unpack(pack(TREES[name])), TREES[name])


@pytest.mark.parametrize("name", TREES)
def test_trees_come_back_exactly_over_a_wire(name: str) -> None:
    """Through the bytes that a SuperLink would carry."""
    local_engine(toys.method("fedavg"), [toys.federation()])  # messages need a process with an identity
    header = letters.header(toys.method("fedavg"), "fit", -3, run=1, recall=("embed", "other"), scratch=12)
    message = Message(request(header, pack(TREES[name])), 7, "query.fit")
    kind = type(message_to_proto(message))
    arrived = message_from_proto(kind.FromString(message_to_proto(message).SerializeToString()))
    assert identical(unpack(arrived.content["body"]), TREES[name])
    assert Header.unpack(arrived.content.config_records["header"]) == header


@pytest.mark.parametrize("told", [{}, {"round": -1, "run": 2, "recall": ("a",), "scratch": 0, "client": 7}])
def test_headers_come_back_exactly(told: dict[str, Any]) -> None:
    header = letters.header(toys.method("fedavg"), "fit", **told)
    assert Header.unpack(header.pack()) == header


@pytest.mark.parametrize("size", [1000, SMALL])
def test_bytes_travel_in_the_record_that_is_fastest_for_so_many(size: int) -> None:
    """Through a wire, and the numbers stay what they are."""
    values = {"x": torch.arange(size, dtype=torch.uint8)}
    record = pack(values)
    assert type(record) is (ConfigRecord if size < SMALL else ArrayRecord)
    arrived = recorddict_from_proto(recorddict_to_proto(RecordDict({"body": record})))
    assert identical(unpack(arrived["body"]), values)


@pytest.mark.parametrize("name", TREES)
def test_the_payload_is_the_bytes_of_the_numbers(name: str) -> None:
    assert payload(RecordDict({"body": pack(TREES[name])})) == tree.nbytes(TREES[name])


def test_what_is_unpacked_can_be_written_to() -> None:
    """torch warns about memory that is read only, and a step may fail on it."""
    assert unpack(pack({"x": torch.ones(3)}))["x"].add_(1).tolist() == [2, 2, 2]


QUIET = """
import os
from latecomer.data import federate
from latecomer.engines import make
from latecomer.nets.models import MLP
from latecomer.runs.experiment import make_task
from latecomer import methods

federation = federate("digits", partition="classes", clients=10)
method = methods.get("fedavg")(task=make_task(federation, MLP), clients=10, members=10)
make("flower", method, [federation])
from flwr.supercore import telemetry

assert telemetry.FLWR_TELEMETRY_ENABLED == "0"
assert not [name for name in os.environ if name.startswith("FLWR_")], "the environment is the user's"
"""


def test_telemetry_is_off(tmp_path: Path) -> None:
    """Where latecomer is the first to import Flower, which keeps what it finds in the environment then."""
    clean = {name: value for name, value in environment().items() if not name.startswith("FLWR_")}
    subprocess.run([sys.executable, "-c", QUIET], cwd=tmp_path, env=clean, check=True)


@dataclass(frozen=True, kw_only=True)
class Odd(FedAvg):
    """Steps that take and give what a wire might stumble over."""

    @asked_in("round", "personalise")
    def mirror(self, home: Home, *, anything: Tree, row: Tree | None = None) -> Tree:
        return {"anything": anything, "row": row or {}}

    @asked_in("round", "personalise")
    def again(self, home: Home, *, anything: Tree) -> Tree:
        return self.mirror(home, anything=anything)

    @asked_in("round", "personalise")
    def shy(self, home: Home, *, count: Tensor) -> Tree:
        return {}

    def _private(self, home: Home) -> Tree:
        return {}

    def helper(self, home: Home, batch: Tensor) -> Tree:
        return {}

    @staticmethod
    def constant() -> Tree:
        return {}


def odd() -> Odd:
    return Odd(task=toys.task(), clients=len(toys.TRAIN), members=toys.MEMBERS)


@pytest.mark.parametrize("name", [name for name in TREES if name != "extremes"])
def test_steps_get_what_other_engines_give_them(name: str) -> None:
    method = odd()
    rows = tree.map(lambda leaf: torch.stack([leaf, leaf]), TREES["dtypes"])
    replies = [
        Clients(make(engine, method, [toys.federation()], "cpu"), torch.tensor([3, 1]), 0).run(
            method.mirror, shared={"anything": TREES[name]}, each={"row": rows}
        )
        for engine in ("loop", "flower")
    ]
    assert identical(replies[0].each, replies[1].each)
    assert torch.equal(replies[0].weight, replies[1].weight)


# actions


def test_a_server_can_ask_for_steps_and_nothing_else() -> None:
    assert steps(Odd) == ["again", "fit", "mirror", "score", "shy"]
    for name in methods.names():
        assert "score" in steps(methods.get(name))
        assert not {"predict", "memory", "round", "init", "personalise", "build"} & set(steps(methods.get(name)))


def test_an_action_that_does_not_exist_is_answered_by_an_error() -> None:
    engine = make("flower", odd(), [toys.federation()], "cpu")
    message = Message(RecordDict(), engine.grid.node(0, 1), "query.helper")
    (reply,) = engine.grid.send_and_receive([message])
    assert reply.has_error()
    assert reply.error.code == 2
    assert reply.metadata.reply_to_message_id == message.metadata.message_id


# messages that go astray


class Disorderly:
    """A grid that answers in its own order, from a node that nobody asked, or not at all."""

    def __init__(self, inner: Any, lost: tuple[int, ...] = (), failed: tuple[int, ...] = ()) -> None:
        self.inner = inner
        self.lost = {inner.node(0, client) for client in lost}
        self.failed = {inner.node(0, client) for client in failed}
        self.timeouts: list[float | None] = []

    def node(self, run: int, client: int) -> int:
        return self.inner.node(run, client)  # type: ignore[no-any-return]

    def send_and_receive(self, messages: list[Message], *, timeout: float | None = None) -> list[Message]:
        self.timeouts.append(timeout)
        arrived = [message for message in messages if message.metadata.dst_node_id not in self.lost]
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"lost {message.metadata.dst_node_id}"
        replies = list(self.inner.send_and_receive(arrived))
        for k, message in enumerate(arrived):
            if message.metadata.dst_node_id in self.failed:
                replies[k] = Message(Error(5, "node unavailable"), reply_to=message)
                replies[k].metadata.__dict__["_src_node_id"] = 1  # as a SuperLink does for a node that died
        return replies[::-1]


def test_replies_are_matched_by_message_and_not_by_node_or_order() -> None:
    method = odd()
    inner = make("flower", method, [toys.federation()], "cpu")
    grid = Disorderly(inner.grid, lost=(2,), failed=(5,))
    engine = Flower(method, grid, timeout=12.5)
    ids = torch.tensor([6, 2, 0, 5, 1])
    replies = Clients(engine, ids, 0).run(method.mirror, each={"anything": {"id": ids.double()}})
    assert replies.heard.tolist() == [True, False, True, False, True]
    assert replies.each["anything"]["id"].tolist() == [6, 0, 0, 0, 1]
    assert replies.weight.tolist() == [toys.TRAIN[6], 0, toys.TRAIN[0], 0, toys.TRAIN[1]]
    assert grid.timeouts == [12.5], "always with a limit: a process that dies sends nothing"


def test_who_is_silent_already_is_sent_nothing() -> None:
    method = odd()
    engine = make("flower", method, [toys.federation()], "cpu")
    clients = Clients(engine, torch.tensor([0, 1, 2]), 0, faults=lambda ids, number, step: ids == 1)
    clients.run(method.shy, shared={"count": torch.ones(10)})
    assert engine.carried == {"down": 2 * 40, "up": 0}
    assert set(engine.grid.contexts) == {engine.grid.node(0, 0), engine.grid.node(0, 2)}


def test_nobody_is_asked_and_nothing_is_sent() -> None:
    method = odd()
    engine = make("flower", method, [toys.federation()], "cpu")
    clients = Clients(engine, torch.tensor([0, 1]), 0, faults=lambda ids, number, step: ids >= 0)
    replies = clients.run(method.mirror, shared={"anything": {"n": torch.ones(2, 3)}})
    assert replies.each["anything"]["n"].tolist() == [[[0.0] * 3] * 2] * 2
    assert engine.carried == {"down": 0, "up": 0}


def test_a_client_that_never_got_the_first_message_cannot_recall_it(caplog: pytest.LogCaptureFixture) -> None:
    method = odd()
    inner = make("flower", method, [toys.federation()], "cpu")
    value = {"anything": {"x": torch.ones(2)}}
    first = Clients(Flower(method, Disorderly(inner.grid, lost=(1,))), torch.tensor([0, 1]), 0)
    first.run(method.mirror, shared=value)
    second = Clients(inner, torch.tensor([0, 1]), 0, held=first.held)  # a server that has forgotten who was silent
    assert second.run(method.again, recall=["anything"]).heard.tolist() == [True, False]
    assert "does not hold anything" in caplog.text


# what stays with a client


def test_what_was_sent_is_held_for_a_round_and_no_longer() -> None:
    method = odd()
    engine = make("flower", method, [toys.federation()], "cpu")
    ids, value = torch.tensor([4]), {"anything": {"x": torch.ones(2)}}
    first = Clients(engine, ids, 0)
    first.run(method.mirror, shared=value)
    assert first.run(method.again, recall=["anything"]).heard.all()
    late = Clients(engine, ids, 1, held=first.held)
    assert not late.run(method.mirror, recall=["anything"]).heard.any()


def test_an_evaluation_may_have_rounds_of_its_own_and_still_recall() -> None:
    method = odd()
    engine = make("flower", method, [toys.federation()], "cpu")
    clients = Clients(engine, torch.tensor([4]), -1, scratch=3)
    clients.run(method.mirror, shared={"anything": {"x": torch.tensor([1.0])}})
    for turn in clients.turns(3)[1:]:
        turn.run(method.mirror, shared={"anything": {"x": torch.tensor([2.0])}})
    assert clients.run(method.again, recall=["anything"]).each["anything"]["x"].tolist() == [[1.0]]
    following = Clients(engine, torch.tensor([4]), -1, scratch=4, held=clients.held)
    assert not following.run(method.mirror, recall=["anything"]).heard.any()


def test_no_data_and_no_memory_is_in_a_message() -> None:
    method = toys.method("local")
    engine = make("flower", method, [toys.federation()], "cpu")
    seen: list[Message] = []
    deliver = engine.grid.deliver

    def listen(message: Message) -> Message | None:
        reply = deliver(message)
        seen.extend([message, reply])
        return reply

    engine.grid.deliver = listen
    method.round({}, Clients(engine, torch.tensor([0, 1]), 0))
    assert len(seen) == 4
    assert [payload(message.content) for message in seen] == [0] * 4
    assert seen[1].content.metric_records["metrics"]["weight"] == toys.TRAIN[0]
    assert unpack(engine.grid.contexts[engine.grid.node(0, 0)].state["memory"]).keys() == {"params"}


def test_clients_are_known_by_their_place_not_by_their_node() -> None:
    engine = make("flower", odd(), toys.federations(2), "cpu")
    nodes = {(run, client): engine.grid.node(run, client) for run in range(2) for client in range(3)}
    assert len(set(nodes.values())) == 6
    for (_, client), node in nodes.items():
        assert engine.grid.context(node).node_config["partition-id"] == client
