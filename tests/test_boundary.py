"""Between server and clients: requests that a client refuses, and replies that a server does not take."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto

import latecomer
import letters
import toys
from latecomer import tensorfile, tree
from latecomer.clients import Clients
from latecomer.engines import blank
from latecomer.engines.flower import engine as flower
from latecomer.engines.flower import reply as replies_
from latecomer.engines.flower.app import client_app
from latecomer.engines.flower.engine import Flower
from latecomer.engines.flower.grid import LocalGrid
from latecomer.engines.flower.wire import pack, unpack
from latecomer.errors import ModelError, StepError
from latecomer.tree import Tree

METHOD = toys.method("fedavg")
STATE = toys.start(METHOD)
MEMBER, LATECOMER = 3, 8
IDS = torch.tensor([0, MEMBER, 5])


def grid_of(name: str = "fedavg", **options: Any) -> LocalGrid:
    """Clients as they are where they are real."""
    return LocalGrid(client_app(toys.method(name), [toys.federation()], **options))


def request(step: str, sent: Tree, round: int = 0, scratch: int | None = None, **told: Any) -> RecordDict:  # noqa: A002
    return letters.request(told.pop("method", METHOD), step, sent, round, scratch=scratch, **told)


def ask(grid: LocalGrid, client: int, content: RecordDict, step: str = "fit") -> Message:
    if "client" in content.get("header", {}):
        content["header"]["client"] = client
    (reply,) = grid.send_and_receive([Message(content, grid.node(0, client), f"query.{step}")])
    return reply


def refusal(reply: Message) -> str:
    assert reply.has_error()
    assert not reply.has_content(), "an error and nothing else"
    name, sentence = reply.error.reason.split(": ", 1)
    assert name in ("ProtocolError", "ModelError")
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


# what a client refuses


class Trap:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return pytest.fail, ("an array was unpickled",)


def pickled() -> bytes:
    """As NumPy writes objects: a header, and a pickle."""
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + pickle.dumps(Trap())


def without(content: RecordDict, name: str) -> RecordDict:
    del content[name]
    return content


def shared(path: str, value: Any) -> RecordDict:
    """A message with another leaf."""
    return letters.with_arrays(request("fit", STATE), lambda arrays: arrays.update({f"shared/{path}": value}))


def blob(value: Any) -> RecordDict:
    """A message whose body is something else."""
    return RecordDict({**request("fit", STATE), "body": value})


def lying(**told: Any) -> RecordDict:
    return letters.lying(request("fit", STATE), "shared/params/1.bias", **told)


def put(content: RecordDict, record: str, key: str, value: Any) -> RecordDict:
    content[record][key] = value
    return content


def params(**changes: Any) -> Tree:
    return {"params": {name: leaf for name, leaf in (STATE["params"] | changes).items() if leaf is not None}}


REQUESTS: dict[str, tuple[Callable[[], RecordDict], str]] = {
    "no header": (lambda: without(request("fit", STATE), "header"), "A message must have a header"),
    "no body": (lambda: without(request("fit", STATE), "body"), "A message must have a header and a body"),
    "a record more": (lambda: RecordDict({**request("fit", STATE), "more": ConfigRecord()}), "A message must have"),
    "nothing for each": (
        lambda: blob(pack({"shared": STATE})),
        "A message must have what all clients are sent, and what this one is.",
    ),
    "a leaf for each": (lambda: blob(pack({"shared": STATE, "each": torch.ones(1)})), "A message must have what all"),
    "a body of another sort": (lambda: blob(MetricRecord({"blob": 1})), "The body of a message must be one blob"),
    "a body that is text": (lambda: blob(ConfigRecord({"blob": "text"})), "The body of a message must be one blob"),
    "two blobs": (lambda: blob(ConfigRecord({"blob": b"1", "more": b"2"})), "The body of a message must be one blob"),
    "a blob of numbers": (
        lambda: blob(ArrayRecord({"blob": Array(np.ones(8, np.uint8))})),
        "The body of a message must be one blob",
    ),
    "a blob of another length": (
        lambda: blob(ArrayRecord({"blob": Array("uint8", (9,), "safetensors", b"12345678")})),
        "The body of a message must be one blob",
    ),
    "another method": (
        lambda: request("fit", STATE, method=toys.method("ditto")),
        "The server trains 'Ditto', and this client 'FedAvg'.",
    ),
    "other settings": (
        lambda: request("fit", STATE, method=toys.method("fedavg", lr=0.25)),
        "The server's settings of FedAvg (",
    ),
    "another version": (
        lambda: request("fit", STATE, version="99.9"),
        f"The server runs latecomer 99.9, and this client {latecomer.__version__}.",
    ),
    "a training that is a path": (
        lambda: put(request("fit", STATE), "header", "training", "../../etc"),
        "A training cannot be called '../../etc'; letters, digits, - and _ make its name.",
    ),
    "half a header": (
        lambda: RecordDict({**request("fit", STATE), "header": ConfigRecord({"step": "fit", "round": 0})}),
        "A message's header must tell step, round, run, recall, scratch, method, settings, version, training,",
    ),
    "a round that is no number": (
        lambda: put(request("fit", STATE), "header", "round", 0.5),
        "A message's header must",
    ),
    "another step": (lambda: request("score", STATE), "A message about 'score' in run 0 cannot ask for 'fit' here."),
    "a run that is not": (lambda: put(request("fit", STATE), "header", "run", 1), "A message about 'fit' in run 1"),
    "a run before the first": (
        lambda: put(request("fit", STATE), "header", "run", -1),
        "A message about 'fit' in run -1",
    ),
    "a recall of nothing": (
        lambda: put(request("fit", {}), "header", "recall", ["params"]),
        "This client does not hold params in round 0.",
    ),
    "nothing sent": (lambda: request("fit", {}), "Step 'fit' needs 'params', which was not sent."),
    "too much sent": (
        lambda: request("fit", STATE | {"more": torch.ones(1)}),
        "Step 'fit' is sent 'more' but takes only",
    ),
    "a weight missing": (
        lambda: request("fit", params(**{"3.bias": None})),
        "A network was given no weight '3.bias'; it needs 1.weight, 1.bias, 3.weight, 3.bias.",
    ),
    "a weight unknown": (
        lambda: request("fit", params(bias=torch.ones(1))),
        "A network was given a weight 'bias', which it does not have; it has 1.weight, 1.bias, 3.weight, 3.bias.",
    ),
    "a weight of another shape": (
        lambda: request("fit", params(**{"1.bias": torch.ones(9)})),
        "A network was given a weight '1.bias' of shape (9,); it must be (8,).",
    ),
    "a weight that is a branch": (
        lambda: request("fit", params(**{"1.bias": {"x": torch.ones(8)}})),
        "A network was given a weight '1.bias' of shape none; it must be (8,).",
    ),
    "a branch that is a leaf": (
        lambda: shared("params", np.ones(1)),
        "A message has 'shared/params' both as a branch and as a leaf.",
    ),
    "objects": (lambda: lying(dtype="OBJECT"), "A message cannot be read: its header is damaged."),
    "a pickle": (lambda: blob(ConfigRecord({"blob": pickle.dumps(Trap())})), "A message cannot be read: its header is"),
    "a pickle of NumPy's": (lambda: blob(ConfigRecord({"blob": pickled()})), "A message cannot be read: its header is"),
    "fewer bytes than told": (
        lambda: lying(shape=[10**12]),
        "A message cannot be read: the place of tensor 'shared/params/1.bias' is wrong.",
    ),
    "bytes of somebody else": (
        lambda: lying(data_offsets=[0, 32]),
        "A message cannot be read: the place of tensor",
    ),
    "fewer numbers than told": (
        lambda: letters.with_blob(request("fit", STATE), lambda blob: blob[:-1]),
        "A message cannot be read: its header is damaged.",
    ),
    "more numbers than told": (
        lambda: letters.with_blob(request("fit", STATE), lambda blob: blob + b"1"),
        "A message cannot be read: it has not as many numbers as its header says.",
    ),
    "no bytes": (lambda: blob(ConfigRecord({"blob": b""})), "A message cannot be read: its header is cut off."),
    "nonsense": (
        lambda: request("fit", params(**{"1.bias": torch.full((8,), torch.nan)})),
        "This client's answer was not finite.",
    ),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_requests_that_are_refused(case: str) -> None:
    content, sentence = REQUESTS[case]
    assert refusal(ask(grid_of(), MEMBER, content())).startswith(sentence)


def test_a_weight_that_is_missing_is_refused_every_time() -> None:
    """And not made up from whatever lies in memory."""
    grid = grid_of()
    sentences = {refusal(ask(grid, MEMBER, request("fit", params(**{"3.bias": None}), number))) for number in range(3)}
    assert len(sentences) == 1


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_a_method_that_forgets_a_weight_is_told_so_on_every_engine(engine: str) -> None:
    clients = Clients(toys.engine(engine, METHOD, [toys.federation()]), IDS, 0)
    with pytest.raises(ModelError, match=r"^A network was given no weight '3.bias'; it needs "):
        clients.run(METHOD.fit, shared=params(**{"3.bias": None}))  # type: ignore[attr-defined]


def test_a_latecomer_does_not_describe_itself_without_noise() -> None:
    method = toys.method("odpflhn-private")
    grid, sent = grid_of("odpflhn-private"), {"encoder": toys.start(method)["learned"]["encoder"]}
    for occasion in ({"round": 0}, {"round": -1}, {"round": -1, "scratch": 1}, {"round": 0, "scratch": 2}):
        reply = ask(grid, LATECOMER, request("describe", sent, method=method, **occasion), "describe")  # type: ignore[arg-type]
        assert "'describe'" in refusal(reply)
    assert ask(grid, LATECOMER, request("request", sent, -1, 1, method=method), "request").has_content()


def test_scores_do_not_tell_a_latecomers_labels() -> None:
    """Ten models, each of which says one class to everything, would count the labels of a client that hides them."""
    federation = toys.federation(labelled=(True,) * toys.MEMBERS + (False,) * 3)
    grid = LocalGrid(client_app(METHOD, [federation]))
    always = [params(**{"3.bias": 1e3 * torch.eye(10)[label]}) for label in range(10)]
    for scratch, sent in enumerate(always):
        assert "does not report scores" in refusal(ask(grid, LATECOMER, request("score", sent, -1, scratch), "score"))
    agreed = LocalGrid(client_app(METHOD, [federation], reports_scores=True))
    answers = [ask(agreed, LATECOMER, request("score", sent, -1, 1), "score") for sent in always]
    assert [reply.has_content() for reply in answers] == [True] + [False] * 9, "and once an evaluation, if it agreed"


def test_a_step_is_answered_once_a_round() -> None:
    grid = grid_of()
    others = [params(**{"1.bias": torch.full((8,), k / 10)}) for k in range(20)]
    answers = [ask(grid, MEMBER, request("fit", sent)) for sent in others]
    assert [reply.has_content() for reply in answers] == [True] + [False] * 19
    assert refusal(answers[-1]) == "This client has answered 'fit' already in round 0."
    assert ask(grid, MEMBER, request("fit", STATE, 1)).has_content(), "the next round begins anew"


@pytest.mark.parametrize(("name", "step"), [("fedavg", "fit"), ("ditto", "fit"), ("odpflhn-private", "request")])
def test_the_same_message_gets_the_same_reply(name: str, step: str) -> None:
    """Bit for bit, also with noise in it, which is drawn and paid for once; and a memory moves once."""
    grid, method = grid_of(name), toys.method(name)
    state = toys.start(method)
    sent, occasion = (state, (0, None)) if step == "fit" else ({"encoder": state["learned"]["encoder"]}, (-1, 1))
    replies, states = [], []
    for _ in range(3):
        replies.append(ask(grid, MEMBER, request(step, sent, *occasion, method=method), step).content)
        states.append(recorddict_to_proto(grid.context(grid.node(0, MEMBER)).state).SerializeToString())
    assert replies[0] == replies[1] == replies[2]
    assert len(set(states)) == 1
    assert "already" in refusal(ask(grid, MEMBER, request(step, sent, *occasion, method=method, training="b"), step))


def test_a_round_that_is_asked_for_again_begins_with_the_memory_before_it() -> None:
    """A server that was killed after an evaluation goes on with the round before, with which it had not finished."""
    grid, method = grid_of("ditto"), toys.method("ditto")
    state = toys.start(method)

    def memory() -> Tree:
        return unpack(grid.context(grid.node(0, MEMBER)).state["memory"])

    found = []
    for number, scratch in ((0, None), (1, None), (-1, 1), (1, None), (2, None)):
        step = "fit" if scratch is None else "score"
        reply = ask(grid, MEMBER, request(step, state, number, scratch, method=method), step)
        assert reply.has_content() == (step == "fit")
        found.append((memory(), reply.content if reply.has_content() else None))
    assert toys.same(found[1][0], found[2][0])
    assert toys.same(found[1][0], found[3][0])
    assert found[1][1] == found[3][1]
    assert not toys.same(found[3][0], found[4][0])


def test_a_refused_answer_was_an_answer() -> None:
    """Whether it was finite is an answer, too."""
    grid = grid_of()
    assert "not finite" in refusal(ask(grid, MEMBER, request("fit", params(**{"1.bias": torch.full((8,), torch.inf)}))))
    assert "already" in refusal(ask(grid, MEMBER, request("fit", STATE)))


def test_a_client_does_not_grow_with_the_rounds_that_a_server_invents() -> None:
    grid, method = grid_of("pfedhn"), toys.method("pfedhn")
    sent = {"params": method.task.model.fresh(torch.Generator().manual_seed(0))}

    def records(*rounds: int) -> set[str]:
        for number in rounds:
            assert ask(grid, LATECOMER, request("fit", sent, number, 1, method=method)).has_content()
        return set(grid.context(grid.node(0, LATECOMER)).state)

    assert records(-1, -2, -3) == records(*range(-20, -4), *range(5))
    other = request("fit", tree.map(torch.zeros_like, sent), -1, 1, method=method)
    assert "already" in refusal(ask(grid, LATECOMER, other)), "an evaluation's own round is kept"


def test_no_count_leaves_a_client_that_personalises() -> None:
    grid, method = grid_of("fedavgplus"), toys.method("fedavgplus")
    for client in (MEMBER, LATECOMER):
        reply = ask(grid, client, request("tune", toys.start(method), -1, 1, method=method), "tune")
        assert set(reply.content) == {"body"}
    reply = ask(grid, MEMBER, request("fit", toys.start(method), method=method))
    assert set(reply.content) == {"body", "metrics"}


def test_an_answer_that_is_not_finite_leaves_a_memory_as_it_was() -> None:
    grid, method = grid_of("ditto"), toys.method("ditto")
    state = toys.start(method)
    assert ask(grid, MEMBER, request("fit", state, method=method)).has_content()
    before = unpack(grid.context(grid.node(0, MEMBER)).state["memory"])
    broken = tree.map(lambda leaf: leaf * torch.nan, state)
    assert (
        refusal(ask(grid, MEMBER, request("fit", broken, 1, method=method))) == "This client's answer was not finite."
    )
    assert toys.same(before, unpack(grid.context(grid.node(0, MEMBER)).state["memory"]))


# what a server does not take


class Tampering:
    """A grid on which one client's replies are changed on the way."""

    def __init__(self, change: Callable[[RecordDict], RecordDict] | None, node: int | None = None) -> None:
        self.inner, self.change, self.source = grid_of(), change, node

    def node(self, run: int, client: int) -> int:
        return self.inner.node(run, client)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = list(self.inner.send_and_receive(messages))
        for reply in replies:
            if reply.metadata.src_node_id == self.node(0, MEMBER):
                if self.change is not None:
                    reply.content = self.change(reply.content)
                if self.source is not None:
                    reply.metadata.__dict__["_src_node_id"] = self.source
        return replies


def leaf(content: RecordDict, change: Callable[[np.ndarray], np.ndarray]) -> RecordDict:
    """Another '1.bias'."""
    return letters.with_arrays(content, lambda arrays: arrays.update({"1.bias": change(arrays["1.bias"])}))


def weight(value: Any) -> Callable[[RecordDict], RecordDict]:
    return lambda content: RecordDict({**content, "metrics": MetricRecord({"weight": value})})


def saying(**told: Any) -> Callable[[RecordDict], RecordDict]:
    return lambda content: letters.lying(content, "1.bias", **told)


def with_body(blob: bytes) -> Callable[[RecordDict], RecordDict]:
    return lambda content: letters.with_blob(content, lambda _: blob)


def renamed(content: RecordDict) -> RecordDict:
    return letters.with_arrays(content, lambda arrays: arrays.update({"one.bias": arrays.pop("1.bias")}))


def fewer(content: RecordDict) -> RecordDict:
    return letters.with_arrays(content, lambda arrays: arrays.pop("1.bias"))


def more(content: RecordDict) -> RecordDict:
    return letters.with_arrays(content, lambda arrays: arrays.update({"x": np.ones(1)}))


REPLIES: dict[str, tuple[Callable[[RecordDict], RecordDict], str]] = {
    "another kind": (
        lambda content: leaf(content, lambda x: x.astype(np.float64)),
        "'1.bias' is float64 of shape (8,)",
    ),
    "whole numbers": (lambda content: leaf(content, lambda x: x.astype(np.int64)), "'1.bias' is int64 of shape (8,)"),
    "another shape": (lambda content: leaf(content, lambda x: x[:7]), "'1.bias' is float32 of shape (7,)"),
    "turned": (lambda content: leaf(content, lambda x: x[None]), "'1.bias' is float32 of shape (1, 8)"),
    "not finite": (lambda content: leaf(content, lambda x: x * np.nan), "It is not finite."),
    "infinite": (lambda content: leaf(content, lambda x: x + np.inf), "It is not finite."),
    "a leaf renamed": (renamed, "It lacks '1.bias'."),
    "a leaf missing": (fewer, "It lacks '1.bias'."),
    "a leaf more": (more, "It has an unknown 'x'."),
    "no leaf": (with_body(tensorfile.pack({})), "It lacks '1.bias'."),
    "nothing": (lambda content: RecordDict(), "It consists of nothing and should of 'body', 'metrics'."),
    "no reply": (lambda content: without(content, "body"), "It consists of 'metrics' and should of"),
    "no metrics": (lambda content: without(content, "metrics"), "It consists of 'body' and should of"),
    "a record more": (
        lambda content: RecordDict({**content, "more": ConfigRecord()}),
        "It consists of 'body', 'metrics', 'more'",
    ),
    "a reply of another sort": (
        lambda content: RecordDict({**content, "body": MetricRecord({"blob": 1})}),
        "The body of a message must be one blob of bytes.",
    ),
    "metrics of another sort": (
        lambda content: RecordDict({**content, "metrics": ConfigRecord()}),
        "Its metrics are not",
    ),
    "no weight": (lambda content: RecordDict({**content, "metrics": MetricRecord()}), "Its metrics are not one number"),
    "several weights": (weight([1, 2]), "Its metrics are not one number, the weight."),
    "a weight of NaN": (weight(float("nan")), "Its weight is nan and must be from 0 to 10000000."),
    "a weight of infinity": (weight(float("inf")), "Its weight is inf and must"),
    "a weight below zero": (weight(-1000), "Its weight is -1000 and must"),
    "a weight above all": (weight(10**9), "Its weight is 1000000000 and must"),
    "objects": (saying(dtype="OBJECT"), "A message cannot be read: its header is damaged."),
    "a pickle": (with_body(pickle.dumps(Trap())), "A message cannot be read: its header is cut off."),
    "a pickle of NumPy's": (with_body(pickled()), "A message cannot be read: its header is cut off."),
    "fewer bytes": (saying(shape=[4]), "A message cannot be read: the place of tensor '1.bias' is wrong."),
    "no array": (with_body(b""), "A message cannot be read: its header is cut off."),
    "too many bytes": (with_body(bytes(10**6)), "A message has 1000000 bytes, and at most 3"),
}


def mean(grid: Any, ids: torch.Tensor = IDS, **options: Any) -> tuple[Tree, Clients]:
    clients = Clients(Flower(METHOD, grid), ids, 0)
    return clients.mean(METHOD.fit, shared=STATE, by="examples", **options), clients  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", REPLIES)
def test_a_reply_that_is_not_one_is_silence_and_its_client_is_named(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    change, sentence = REPLIES[case]
    found, clients = mean(Tampering(change))
    survivors, _ = mean(Tampering(None), IDS[IDS != MEMBER])
    assert toys.same(found, survivors)
    assert (int(clients.ledger[0].asked.sum()), int(clients.ledger[0].answered.sum())) == (3, 2)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"Client 3 counts as silent at 'fit' in round 0: {sentence}")


def test_a_reply_from_somebody_else_is_silence(caplog: pytest.LogCaptureFixture) -> None:
    _, clients = mean(Tampering(None, node=99))
    assert int(clients.ledger[0].answered.sum()) == 2
    assert "Client 3 counts as silent at 'fit' in round 0: Node 99 answered in its place." in caplog.text


def test_leaves_are_matched_by_name() -> None:
    def turned(content: RecordDict) -> RecordDict:
        backwards = dict(reversed(letters.arrays(content).items()))
        return letters.with_blob(content, lambda _: tensorfile.pack(backwards))

    assert toys.same(mean(Tampering(turned))[0], mean(Tampering(None))[0])


def test_a_reply_that_is_too_large_is_never_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[int] = []
    arrays_of = replies_.arrays_of
    monkeypatch.setattr(
        replies_, "arrays_of", lambda blob, longest: (unpacked.append(len(blob)), arrays_of(blob, longest))[1]
    )
    large = np.ones((2000, 1000), np.float32)  # 8 MB, which travel as an array
    for change in (with_body(bytes(10**5)), lambda content: leaf(content, lambda x: large)):
        assert int(mean(Tampering(change))[1].ledger[0].answered.sum()) == 2
    assert max(unpacked) < 10_000


def test_a_large_number_is_finite_and_stays() -> None:
    found, clients = mean(Tampering(lambda content: leaf(content, lambda x: np.full_like(x, 1e38))))
    assert int(clients.ledger[0].answered.sum()) == 3
    assert found["1.bias"].abs().max() > 1e36


def test_what_a_reply_must_look_like_is_found_out_once_for_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, made = Flower(METHOD, grid_of()), []
    monkeypatch.setattr(flower, "made_up", lambda *known: (made.append(known[1]), blank.made_up(*known))[1])
    for number in range(3):
        Clients(engine, IDS, number).run(METHOD.fit, shared=STATE)  # type: ignore[attr-defined]
    assert made == ["fit"]
    Clients(engine, IDS, -1).run(METHOD.score, shared=STATE)
    assert made == ["fit", "score"]


def test_a_step_that_cannot_be_done_is_said_before_anybody_is_asked() -> None:
    engine = Flower(METHOD, grid_of())
    whole = tree.map(torch.Tensor.long, STATE)
    with pytest.raises(
        StepError, match=r"^Step 'fit' failed on a made-up client, which shows what a reply looks like: "
    ):
        Clients(engine, IDS, 0).run(METHOD.fit, shared=whole)  # type: ignore[attr-defined]
    assert engine.carried == {"down": 0, "up": 0}
