"""A client answers the steps of its role and no others, over real messages and as a client that is real."""

from __future__ import annotations

import dataclasses
import functools
import logging

import pytest
import torch
from flwr.app import Message

import letters
import toys
from latecomer import methods
from latecomer.clients import Clients
from latecomer.engines.flower.app import client_app
from latecomer.engines.flower.engine import Flower
from latecomer.engines.flower.grid import LocalGrid
from latecomer.method import Method
from latecomer.steps import phases_of, steps

FEDERATION = dataclasses.replace(toys.federation(), validators=1)
MEMBER, VALIDATOR, LATECOMER = 3, toys.MEMBERS, toys.MEMBERS + 1
TRAINING, EVALUATION = (0, None), (-1, 1)  # round and scratch
UNUSED = {("knnper", "arrive")}  # steps that neither `round` nor `personalise` asks for: whoever has a clock does


@functools.cache
def asked(variant: str) -> frozenset[tuple[str, str]]:
    """What rounds before and after a warm-up ask members for, and personalisation and scoring all kinds of clients."""
    method = toys.method(variant)
    app = client_app(method, [FEDERATION], reports_scores=True)
    spy = toys.Spy(Flower(method, LocalGrid(app)))
    state, found = toys.start(method), []
    for number in (0, 5):
        state = method.round(state, Clients(spy, torch.tensor([MEMBER, 0]), number))  # type: ignore[arg-type]
    found += [("round", step) for step, _ in spy.asks]
    spy.asks.clear()
    ids = torch.tensor([MEMBER, VALIDATOR, LATECOMER])
    clients = Clients(spy, ids, -1, scratch=1)  # type: ignore[arg-type]
    sent = method.personalise(state, clients)
    found += [("personalise", step) for step, _ in spy.asks]
    scores = Clients(spy, ids, -1, scratch=1, held=clients.held).send(method.score, sent)  # type: ignore[arg-type]
    assert scores.heard.all()
    assert scores.weight.tolist() == [1.0, 1.0, 1.0], "nobody is told how many examples they have"
    return frozenset(found)


def test_what_a_method_asks_for_is_answered(variant: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert asked(variant)
    assert not caplog.records, "somebody was refused, or not understood"


def test_a_step_is_declared_for_what_asks_for_it_and_for_no_more(name: str) -> None:
    kind, variants = methods.get(name), [key for key, (method, _) in toys.VARIANTS.items() if method == name]
    declared = {(phase, step) for step in steps(kind) for phase in phases_of(kind, step)} - {("score", "score")}
    declared = {pair for pair in declared if pair[0] != "study"}  # which no server asks for
    used = {pair for variant in (name, *variants) for pair in asked(variant)}
    assert {pair for pair in declared if (name, pair[1]) not in UNUSED} == used


@pytest.mark.parametrize("client", [MEMBER, VALIDATOR, LATECOMER], ids=["member", "validator", "latecomer"])
@pytest.mark.parametrize("occasion", [TRAINING, EVALUATION], ids=["round", "personalise"])
def test_all_else_is_refused_in_a_sentence(name: str, client: int, occasion: tuple[int, int | None]) -> None:
    method, phase = toys.method(name), "round" if occasion == TRAINING else "personalise"
    grid = LocalGrid(client_app(method, [FEDERATION]))
    for step in steps(type(method)):
        declared = phases_of(type(method), step)
        reply = ask(method, grid, client, step, *occasion)
        sentence = reply.error.reason if reply.has_error() else ""
        if phase == "round" and client != MEMBER:
            assert sentence == (
                f"ProtocolError: This client is not a member, so no round of training can ask it for {step!r}."
            )
        elif step == "score" and phase == "personalise":
            assert sentence == "ProtocolError: This client does not report scores, so nobody can ask it for 'score'."
        elif phase not in declared:
            only = " and ".join(declared)
            assert sentence == f"ProtocolError: This client does not answer {step!r} in {phase!r}, only in {only}."
        else:
            assert not sentence or " needs " in sentence, "it would have answered a message with something in it"


def test_what_is_no_step_cannot_be_asked_for(name: str) -> None:
    method = toys.method(name)
    grid = LocalGrid(client_app(method, [FEDERATION]))
    others = {key for key in dir(method) if callable(getattr(method, key)) and not key.startswith("_")}
    for other in sorted(others - set(steps(type(method)))):
        assert "No query function registered" in ask(method, grid, MEMBER, other, *EVALUATION).error.reason


def ask(method: Method, grid: LocalGrid, client: int, step: str, round: int, scratch: int | None) -> Message:  # noqa: A002
    """A message with nothing in it: a role is refused before anything is looked at."""
    content = letters.request(method, step, {}, round, scratch=scratch, client=client)
    (reply,) = grid.send_and_receive([Message(content, grid.node(0, client), f"query.{step}")])
    return reply
