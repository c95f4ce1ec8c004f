"""Servers and clients that lie in the small print: kinds of numbers, bytes, names, and what an error says."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import letters
import test_attack
import toys
from latecomer import privacy, tensorfile, tree
from latecomer.engines.flower.app import client_app
from latecomer.engines.flower.engine import REASON
from latecomer.engines.flower.grid import LocalGrid
from latecomer.engines.flower.wire import body, unpack
from latecomer.errors import BudgetSpent
from latecomer.privacy import Ledger, Release
from test_boundary import (
    LATECOMER,
    MEMBER,
    METHOD,
    STATE,
    Tampering,
    ask,
    grid_of,
    mean,
    put,
    refusal,
    request,
    shared,
    with_body,
)

# servers


def reachable(noise: Tensor, scale: Tensor, unit: float) -> Tensor:
    """Which numbers scaled noise can become, if what it is added to is zero."""
    centre, found = noise / unit / scale, torch.zeros(len(noise), dtype=torch.bool)
    for end in (-math.inf, math.inf):
        near = centre
        for _ in range(6):
            found |= scale * near * unit == noise
            near = torch.nextafter(near, torch.tensor(end, dtype=torch.float64))
    return found


def test_noise_in_double_precision_has_no_gaps_that_a_server_can_see() -> None:
    """A psi in double precision would show all digits. Not every number is a multiple of the scale: those that are
    not would tell a mean of zero from any other."""
    asked, encoder = test_attack.method(), test_attack.weights()
    psi = {"0.weight": torch.zeros(3, test_attack.WIDTH), "0.bias": torch.zeros(3)}
    psi["0.weight"][0, 0] = 1.0
    encoder["psi"] = toys.double(psi)
    scale = (asked.noise / torch.tensor(test_attack.EXAMPLES)).double()
    found = [test_attack.replies(asked, encoder, one, 4000)[:, 0] for one in test_attack.NEIGHBOURS]
    assert all(torch.equal(values, values.float().double()) for values in found)
    shares = [float(reachable(values.double(), scale, test_attack.UNIT).double().mean()) for values in found]
    assert abs(shares[0] - shares[1]) < 0.05


def test_an_unforeseen_error_tells_that_there_was_one_and_no_more() -> None:
    """PyTorch's sentences may have numbers in them. Simulated clients have nothing to hide."""
    whole = tree.map(torch.Tensor.long, STATE)
    reply = ask(grid_of(), MEMBER, request("fit", whole))
    assert reply.error.reason == "StepError: This client failed at 'fit'; its own log says why."
    assert reply.error.reason == ask(grid_of(), 5, request("fit", whole)).error.reason
    simulated = LocalGrid(client_app(METHOD, [toys.federation()], simulated=True))
    assert ask(simulated, MEMBER, request("fit", whole)).error.reason.startswith("RuntimeError: only Tensors of float")


@pytest.mark.parametrize(
    ("name", "value"), [("round", True), ("run", False), ("scratch", True), ("recall", [1]), ("recall", [b"params"])]
)
def test_headers_are_what_they_seem(name: str, value: Any) -> None:
    content = put(request("fit", STATE), "header", name, value)
    assert refusal(ask(grid_of(), MEMBER, content)).startswith("A message's header must tell step, round, run")


def test_a_path_of_many_names_is_not_followed() -> None:
    """Each of them would be a copy of all before it."""
    content = shared("a/" * 50_000 + "b", np.ones(1))
    assert refusal(ask(grid_of(), MEMBER, content)).startswith(
        "A message has a branch of more than 64 names, 'shared/a/a/"
    )


def test_complex_answers_that_are_not_finite_stay_at_home() -> None:
    method = toys.method("odpflhn-private")
    encoder = toys.start(method)["learned"]["encoder"]
    encoder = encoder | {"psi": tree.map(lambda leaf: (leaf * torch.nan).to(torch.complex64), encoder["psi"])}
    reply = ask(
        grid_of("odpflhn-private"), LATECOMER, request("request", {"encoder": encoder}, -1, 1, method=method), "request"
    )
    assert refusal(reply) == "This client's answer was not finite."


def test_a_ledger_is_not_written_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "MOST", 3)
    kept, release = Ledger(), Release.gaussian(1.0, 1e-5)
    for number in range(3):
        kept = kept.with_one(release, "node 1", number, 0.0)
    with pytest.raises(BudgetSpent, match=r"^This client has given 3 answers that spend privacy; it does not answer"):
        kept.with_one(release, "node 1", 3, 0.0)


# clients


HEADERS = [b"{1: 1, 'a': 2}", b"[" * 10**5, b"null", b"[]", b'{"a": ', b'{"a": 1}', b"-" * 90 + b"1", b"\0", b"\xff"]
HEADERS += [b'{"a": {"dtype": "F32", "shape": [1e0], "data_offsets": [0, 4]}}', b"9" * 10**4]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_bytes_over_which_a_reader_would_stumble_are_silence(header: bytes) -> None:
    blob = len(header).to_bytes(8, "little") + header + bytes(4)
    assert int(mean(Tampering(with_body(blob)))[1].ledger[0].answered.sum()) == 2
    content = letters.with_blob(request("fit", STATE), lambda _: blob)
    assert refusal(ask(grid_of(), MEMBER, content)).startswith("A message cannot be read: ")


def test_a_bool_is_one_bit() -> None:
    """Whatever its byte holds: what PyTorch makes of others depends on who looks."""
    blob = tensorfile.pack({"flag": np.array([True, False, True])})
    assert unpack(body(blob[:-3] + bytes([2, 0, 255])))["flag"].view(torch.uint8).tolist() == [1, 0, 1]


def test_a_log_has_room_for_some_of_a_clients_words(caplog: pytest.LogCaptureFixture) -> None:
    class Wordy(LocalGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            for reply in super().send_and_receive(messages):
                if reply.has_error():
                    reply.error.__dict__["_reason"] = "x" * 10**6
                yield reply

    class Broken:
        def __call__(self, message: Any, context: Any) -> Any:
            raise ValueError

    mean(Wordy(Broken()))  # type: ignore[arg-type]
    assert all(REASON <= len(record.getMessage()) < 2 * REASON for record in caplog.records)


def test_a_header_of_nonsense_takes_neither_hours_nor_memory() -> None:
    """The product of many numbers, and JSON that is much longer in memory."""
    text = json.dumps({"a": {"dtype": "F32", "shape": [9] * 10**6, "data_offsets": [0, 0]}}).encode()
    blob = len(text).to_bytes(8, "little") + text
    with pytest.raises(tensorfile.TensorFileError, match="the place of tensor 'a' is wrong"):
        tensorfile.unpack(blob)
    with pytest.raises(tensorfile.TensorFileError, match="its header has 3000058 bytes, and 1000 are enough"):
        tensorfile.unpack(blob, 1000)
