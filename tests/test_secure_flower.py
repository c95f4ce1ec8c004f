"""Secure means by real messages: the same sums as in a simulation, and clients that are lost in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict

import letters
import toys
from latecomer import tree
from latecomer.clients import Clients
from latecomer.engines.flower.grid import LocalGrid
from latecomer.engines.flower.wire import pack, unpack
from latecomer.faults import SLOW
from latecomer.replies import By, Rules
from latecomer.secure.fixed import Fixed
from latecomer.tree import Tree

FIXED = Fixed(8.0)
RULES = Rules(secure=FIXED)
ALL = torch.arange(toys.MEMBERS)
ACTIONS = ("secure_keys_fit", "secure_shares_fit", "fit", "secure_unmask_fit")


def engine(name: str = "flower", **settings: Any) -> Any:
    """In double precision: last bits of replies, in which engines differ, are then rounded away."""
    return toys.engine(name, toys.method("fedavg", torch.float64, **settings), [toys.federation()])


def mean(made: Any, ids: torch.Tensor = ALL, by: By = "examples", **options: Any) -> tuple[Tree, Clients]:
    clients = Clients(made, ids, 0, **options)
    return clients.mean(made.method.fit, shared=toys.start(made.method), by=by), clients


def lines(clients: Clients) -> list[dict[str, Any]]:
    return [{key: value for key, value in one.line().items() if key != "seconds"} for one in clients.ledger]


@pytest.mark.parametrize("by", ["clients", "labelled", "examples"])
def test_messages_give_the_simulations_bits_and_bytes(by: By) -> None:
    flower = engine(secure=FIXED)
    expected, simulated = mean(engine("loop", secure=FIXED), by=by, rules=RULES)
    found, clients = mean(flower, by=by, rules=RULES)
    assert toys.same(expected, found)
    assert lines(clients) == lines(simulated)
    assert flower.carried == {way: lines(clients)[0][way] for way in ("down", "up")}


def test_rounds_in_lockstep_give_the_simulations_bits() -> None:
    method, federations = toys.method("lgfedavg", torch.float64, secure=FIXED), toys.federations(2)
    states = []
    for name in ("loop", "flower"):
        made = toys.engine(name, method, federations)
        states.append([toys.rounds(method, made, 3, rules=RULES, run_index=run)[0] for run in range(2)])
    assert toys.same({"0": states[0][0], "1": states[0][1]}, {"0": states[1][0], "1": states[1][1]})


def losing(made: Any, lost: dict[str, set[int]]) -> None:
    """Replies of these clients to these actions never come."""
    deliver = made.grid.deliver

    def some(message: Message) -> Message | None:
        action, client = message.metadata.message_type.partition(".")[2], message.metadata.dst_node_id % 2**32
        reply: Message | None = deliver(message)
        return None if client in lost.get(action, set()) else reply

    made.grid.deliver = some


def test_three_tenths_of_the_clients_are_lost_at_every_stage_in_turn() -> None:
    """And one more, when it has done all but give its shares: the mean is that of all whose numbers came."""
    for stage in range(3):
        flower, lost = engine(secure=FIXED), {5, 6}
        losing(flower, {ACTIONS[stage]: lost, "secure_unmask_fit": {0}})
        found, clients = mean(flower, rules=RULES)
        plain, _ = mean(engine("loop"), ids=ALL[:5])
        assert toys.gap(found, plain) <= FIXED.resolution / 2
        assert lines(clients)[0]["unheard"] == [5, 6]


def test_one_client_is_lost_at_each_stage() -> None:
    """After keys; and four of seven are left."""
    flower = engine(secure=FIXED)
    losing(flower, {action: {client} for client, action in enumerate(ACTIONS[1:])})
    found, clients = mean(flower, rules=RULES)
    plain, _ = mean(engine("loop"), ids=ALL[2:])
    assert toys.gap(found, plain) <= FIXED.resolution / 2
    assert lines(clients)[0]["unheard"] == [0, 1]


def test_replies_that_come_too_late_are_left_out_of_the_sum() -> None:
    faults = {"faults": lambda ids, number, step: (ids < 2) * SLOW}
    expected, simulated = mean(engine("loop", secure=FIXED), rules=RULES, **faults)
    found, clients = mean(engine(secure=FIXED), rules=RULES, **faults)
    assert toys.same(expected, found)
    assert lines(clients)[0]["unheard"] == lines(simulated)[0]["unheard"] == [0, 1]


@pytest.mark.parametrize("action", ACTIONS)
def test_with_too_few_left_nothing_is_unmasked(action: str, caplog: pytest.LogCaptureFixture) -> None:
    flower = engine(secure=FIXED)
    losing(flower, {action: {0, 1, 2, 3, 4} if action == ACTIONS[0] else {0, 1, 2, 3}})
    found, clients = mean(flower, rules=RULES)
    assert toys.gap(found, tree.map(torch.zeros_like, found)) == 0
    assert lines(clients)[0]["answered"] == 0
    assert "Nobody is heard at 'fit' in round 0: Only " in caplog.text


def test_a_client_that_spoils_its_shares_spoils_the_mean_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    flower = engine(secure=FIXED)
    deliver = flower.grid.deliver

    def spoilt(message: Message) -> Message | None:
        reply = deliver(message)
        if message.metadata.message_type == "query.secure_unmask_fit" and message.metadata.dst_node_id % 2**32 == 1:
            reply.content = letters.with_arrays(
                reply.content, lambda arrays: arrays.update(shares=arrays["shares"] ^ 1)
            )
        return reply

    flower.grid.deliver = spoilt
    found, _ = mean(flower, rules=RULES)
    assert toys.gap(found, tree.map(torch.zeros_like, found)) == 0
    assert "do not add up to what it advertised" in caplog.text or "do not belong together" in caplog.text


# what a client answers


def watched(made: Any) -> list[tuple[Message, Message]]:
    """Messages and their replies, as they pass."""
    seen: list[tuple[Message, Message]] = []
    deliver = made.grid.deliver

    def watch(message: Message) -> Message:
        reply = deliver(message)
        seen.append((message, reply))
        return reply

    made.grid.deliver = watch
    return seen


def test_nothing_but_keys_shares_and_masked_numbers_leaves_a_client() -> None:
    flower = engine(secure=FIXED)
    seen = watched(flower)
    mean(flower, rules=RULES)
    kinds = {"keys": np.uint8, "sealed": np.uint8, "masked": np.int64, "shares": np.uint8}
    for (message, reply), name in zip(seen, np.repeat([*kinds], toys.MEMBERS), strict=True):
        assert set(reply.content) == {"body"}, "no client tells what it weighs"
        found = letters.arrays(reply.content)
        assert {key: value.dtype for key, value in found.items()} == {str(name): kinds[name]}
        assert message.metadata.message_type == f"query.{ACTIONS[[*kinds].index(name)]}"


def told_of(grid: LocalGrid, action: str, change: Callable[[Tree], Tree], message: Message) -> str:
    """The refusal of a message like this one, but for its body."""
    content = RecordDict({**message.content, "body": pack(change(unpack(message.content["body"])))})
    (reply,) = grid.send_and_receive([Message(content, message.metadata.dst_node_id, f"query.{action}")])
    assert reply.has_error()
    return str(reply.error.reason)


def test_the_same_message_gets_the_same_reply_and_another_one_none() -> None:
    """So nobody gets both shares of a client, or its numbers under other masks."""
    flower = engine(secure=FIXED)
    seen = watched(flower)
    mean(flower, rules=RULES)
    for k, action in enumerate(ACTIONS):
        message, reply = seen[k * toys.MEMBERS]
        again = Message(message.content, message.metadata.dst_node_id, f"query.{action}")
        (second,) = flower.grid.send_and_receive([again])
        assert second.content == reply.content
    changes: dict[str, Callable[[Tree], Tree]] = {
        "secure_shares_fit": lambda sent: sent | {"shared": tree.map(lambda rows: rows[:4], sent["shared"])},
        "fit": lambda sent: sent | {"masks": sent["masks"] | {"senders": torch.arange(5)}},
        "secure_unmask_fit": lambda sent: sent | {"shared": {"survivors": torch.arange(5)}},
    }
    for action, change in changes.items():
        message, _ = seen[ACTIONS.index(action) * toys.MEMBERS]
        assert "This client has answered" in told_of(flower.grid, action, change, message)


def test_a_step_without_masks_is_refused() -> None:
    flower = engine(secure=FIXED)
    content = letters.request(flower.method, "fit", toys.start(flower.method), training="here")
    (reply,) = flower.grid.send_and_receive([Message(content, flower.grid.node(0, 3), "query.fit")])
    assert "A message must have what all clients are sent" in reply.error.reason
    content = letters.request(flower.method, "secure_keys_fit", {}, -1, training="here")
    (reply,) = flower.grid.send_and_receive([Message(content, flower.grid.node(0, 3), "query.secure_keys_fit")])
    assert "does not answer 'secure_keys_fit' in 'personalise'" in reply.error.reason


@pytest.mark.parametrize(
    ("action", "change"),
    [
        ("secure_shares_fit", lambda sent: sent | {"shared": {}}),
        ("secure_shares_fit", lambda sent: sent | {"shared": sent["shared"] | {"clients": torch.arange(2)}}),
        ("secure_shares_fit", lambda sent: sent | {"shared": sent["shared"] | {"keys": torch.zeros(7, 3).byte()}}),
        ("secure_shares_fit", lambda sent: sent | {"shared": sent["shared"] | {"clients": torch.zeros(7).long()}}),
        ("fit", lambda sent: sent | {"masks": {"senders": sent["masks"]["senders"]}}),
        ("fit", lambda sent: sent | {"masks": sent["masks"] | {"by": torch.tensor(3)}}),
        ("fit", lambda sent: sent | {"masks": sent["masks"] | {"senders": torch.arange(2)}}),
        ("fit", lambda sent: sent | {"masks": sent["masks"] | {"senders": torch.ones(7)}}),
        ("secure_unmask_fit", lambda sent: sent | {"each": {"sealed": sent["each"]["sealed"][:2]}}),
        ("secure_unmask_fit", lambda sent: sent | {"each": {"sealed": sent["each"]["sealed"] ^ 1}}),
        ("secure_unmask_fit", lambda sent: sent | {"shared": {"survivors": torch.arange(2)}}),
    ],
)
def test_messages_that_make_no_sense_are_refused_in_a_sentence(action: str, change: Callable[[Tree], Tree]) -> None:
    flower, refused = engine(secure=FIXED), []
    deliver = flower.grid.deliver

    def spoil(message: Message) -> Message:
        if message.metadata.message_type == f"query.{action}":
            message.content["body"] = pack(change(unpack(message.content["body"])))
            refused.append(deliver(message))
            return refused[-1]
        return deliver(message)

    flower.grid.deliver = spoil
    _, clients = mean(flower, rules=RULES)
    assert lines(clients)[0]["answered"] == 0
    for reply in refused:
        assert reply.error.reason.startswith("ProtocolError: ")
        assert reply.error.reason.endswith(".")
