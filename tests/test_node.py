"""A client's own machine: what it agrees to, what it keeps, and what of it survives being killed at any moment."""

from __future__ import annotations

import importlib
import re
import shutil
import threading
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree

import letters
import toys
from console import Command
from latecomer import __version__, tree
from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.engines import make
from latecomer.engines.flower.engine import Flower
from latecomer.engines.flower.fleet import Fleet, Letter, Over, Parcel, Refused, Strange
from latecomer.engines.flower.grid import LocalGrid
from latecomer.engines.flower.hello import Hello, Welcome
from latecomer.engines.flower.keys import new_key
from latecomer.engines.flower.participant import Participant, for_server
from latecomer.engines.flower.spending import ledger
from latecomer.engines.flower.wire import unpack
from latecomer.errors import LatecomerError, LinkError, RunError, SettingError
from latecomer.handover.personal import Personal
from latecomer.method import Method
from latecomer.node import desk as desks
from latecomer.node.desk import Desk
from latecomer.node.host import Host, understood
from latecomer.node.settings import Stay
from latecomer.node.stay import Node
from latecomer.node.stock import client_app
from latecomer.runs.experiment import Experiment
from latecomer.settings import parse

SPLIT = {"clients": 6, "unseen": 0.2, "rounds": 3, "cohort": 2, "batch": 64, "engine": "loop", "device": "cpu"}
PRIVATE = {"epsilon": 1.0, "pool": "mean", "bound": 1.0, "encoder": "dense", "hidden": 8}
OWN: dict[str, dict[str, Any]] = {"ditto": {}, "pefll": {"steps": 2}, "odpflhn": PRIVATE}


@cache
def trained(name: str) -> tuple[str, Method, Federation]:
    """A settings.toml, what the server makes of it, and all that the clients have."""
    experiment = Experiment.parse(name, SPLIT | OWN[name])
    federations = experiment.federations()
    return experiment.toml(federations), experiment.method(federations), federations[0]


def write_data(path: Path, name: str, client: int, **changes: Any) -> Path:
    """What one client of the simulation has, in a file."""
    federation = trained(name)[2]
    x, y, arrays = federation.examples.x.numpy(), federation.examples.y.numpy(), {}
    for split, ending in (("train", ""), ("val", "_val"), ("test", "_test")):
        rows = federation.rows(split)[client].numpy()
        arrays |= {f"x{ending}": x[rows], f"y{ending}": y[rows]}
    np.savez(path, **arrays | changes)
    return path


def stay(path: Path, name: str = "ditto", client: int = 1, **settings: Any) -> Stay:
    path.mkdir(exist_ok=True)
    data = settings.pop("data", None) or write_data(path / "mine.npz", name, client)
    given = {"superlink": "127.0.0.1:1", "insecure": True, "data": str(data), "client": client, **settings}
    return parse(Stay, given)


def hello(name: str, **changes: Any) -> RecordDict:
    settings, method, _ = trained(name)
    told = {"version": __version__, "training": "a-test", "method": type(method).__name__, "settings": settings}
    return Hello(**told | changes).pack()


def occasions(name: str, client: int = 1, rounds: int = 3) -> list[tuple[str, RecordDict]]:
    """What a server could ask one client for, one after the other."""
    _, method, _ = trained(name)
    state, found = toys.start(method), [("hello", hello(name))]
    for number in range(rounds):
        if name == "odpflhn":
            sent, step, turn = {"encoder": state["learned"]["encoder"]}, "request", -1 - number
        else:
            sent, step, turn = state, "fit", number
        found.append((step, letters.request(method, step, sent, turn, client=client)))
    return found


class SuperLink:
    """What a node sees of one: a message is delivered once, and kept until it is confirmed."""

    address = "nowhere"

    def __init__(self, messages: Iterable[tuple[str, RecordDict]]) -> None:
        LocalGrid(None)  # type: ignore[arg-type]  # messages need a process with an identity
        self.waiting = [letter(*one) for one in messages]
        self.kept: dict[str, Letter] = {}
        self.replies: dict[str, Parcel] = {}
        self.node: Node | None = None

    def register(self) -> None: ...
    def deactivate(self, node: int) -> None: ...
    def close(self) -> None: ...

    def activate(self, before: int | None) -> int:
        assert before in (None, 7)
        return 7

    def beat(self, node: int) -> bool:
        return True

    def receive(self, node: int) -> Letter | None:
        if not self.waiting:
            assert self.node is not None
            self.node.stop()
            return None
        found = self.waiting.pop(0)
        self.kept[found.name] = found
        return Letter(found.run, found.name, found.parts)

    def fetch(self, node: int, letter: Letter) -> Letter:
        if letter.name not in self.kept:
            raise Over("It is gone.")
        return self.kept[letter.name]

    def confirm(self, node: int, letter: Letter) -> None:
        self.kept.pop(letter.name, None)

    def send(self, node: int, parcel: Parcel) -> None:
        before = self.replies.setdefault(parcel.answers, parcel)
        assert before.objects == parcel.objects, "a reply was sent twice, and was another one"

    def copy(self) -> SuperLink:
        made = SuperLink(())
        made.waiting, made.kept, made.replies = [*self.waiting], {**self.kept}, {**self.replies}
        return made


def letter(step: str, content: RecordDict) -> Letter:
    message = Message(content, 7, f"query.{step}")
    parts = get_all_nested_objects(message)
    names = [part.object_id for part in iterate_object_tree(get_object_tree(message))]
    return Letter(1, message.object_id, names, {name: part.deflate() for name, part in parts.items()})


def work(settings: Stay, superlink: SuperLink) -> SuperLink:
    """Until all is answered."""
    node = Node(settings)
    node.fleet, superlink.node = superlink, node  # type: ignore[assignment]
    node.run()
    return superlink


def bodies(superlink: SuperLink) -> list[list[bytes]]:
    """Of each reply what was written by us and not by Flower, which writes times."""
    found = (parcel.objects.values() for parcel in superlink.replies.values())
    return [sorted(part for part in parts if not part.startswith((b"Message", b"RecordDict"))) for parts in found]


def sentences(superlink: SuperLink) -> list[str]:
    """Why messages were not answered."""
    heads = [MessageProto.FromString(parcel.head) for parcel in superlink.replies.values()]
    return [head.error.reason.partition(": ")[2] for head in heads]


def kept(path: Path, training: str = "a-test") -> RecordDict:
    desk = Desk(path)
    try:
        return desk.training(training)[0]
    finally:
        desk.close()


# what it answers


class Owners:
    """A grid of clients that have their own data, and nobody else's."""

    def __init__(self, path: Path, name: str) -> None:
        self.local, self.states, self.participants = LocalGrid(None), {}, {}  # type: ignore[arg-type, var-annotated]
        for client in range(len(trained(name)[2])):
            host = Host(stay(path / str(client), name, client, report_scores=True))
            self.participants[client], self.states[client] = Participant(host), RecordDict()
            self.deliver(Message(hello(name, training="here"), client, "query.hello"))

    def node(self, run: int, client: int) -> int:
        return client

    def deliver(self, message: Message) -> Message:
        client = message.metadata.dst_node_id
        return self.participants[client].answer(message, self.states[client])  # type: ignore[no-any-return]

    def send_and_receive(self, messages: list[Message], *, timeout: float | None = None) -> list[Message]:
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = str(number)
        return [self.deliver(message) for message in messages]


@pytest.mark.parametrize("name", ["ditto", "pefll"])
def test_clients_with_data_of_their_own_do_what_simulated_ones_do(name: str, tmp_path: Path) -> None:
    _, method, federation = trained(name)
    found = []
    for engine in (make("loop", method, [federation], "cpu"), Flower(method, Owners(tmp_path, name))):  # type: ignore[arg-type]
        state = toys.start(method)
        for number in range(2):
            state = method.round(state, Clients(engine, torch.tensor([2, 0]), number))
        clients = Clients(engine, torch.arange(len(federation)), -1, scratch=1)
        scores = Clients(engine, clients.ids, -1, scratch=1, held=clients.held)
        found.append((state, scores.send(method.score, method.personalise(state, clients)).each))
    for one, other in zip(*(tree.leaves({"state": state, "scores": scores}) for state, scores in found), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_hello_is_answered_with_what_the_owner_tells(tmp_path: Path) -> None:
    federation = trained("ditto")[2]
    counts = [len(federation.rows(split)[1]) for split in ("train", "val", "test")]
    for scores in (False, True):
        settings = stay(tmp_path / str(scores), report_scores=scores)
        told = Host(settings).welcome(Hello.unpack(hello("ditto")))
        expected = dict(zip(("train", "val", "test"), counts if scores else [counts[0], 0, 0], strict=True))
        assert told == Welcome(version=__version__, prefers=1, labelled=True, **expected)
        assert Welcome.unpack(told.pack()) == told


def test_the_model_it_is_given_predicts(tmp_path: Path, command: Command) -> None:
    settings, (_, method, federation) = stay(tmp_path), trained("ditto")
    asked = [("keep_model", letters.request(method, "keep_model", {}, -1, scratch=1, client=1))]
    superlink = work(settings, SuperLink([*occasions("ditto", rounds=1), *asked, *asked]))
    assert sentences(superlink) == [""] * 4
    place = tmp_path / "mine.node/models/ditto-a-test"
    model = Personal.open(place)
    rows = federation.test[1].long()
    x = federation.examples.x[rows].numpy()
    own = unpack(kept(settings.desk)["memory"])["params"]
    logits = method.logits(own, model.form.prepare(federation.examples.x[rows]))
    assert np.allclose(model.logits(x), logits.detach().numpy(), atol=1e-5)
    np.savez(tmp_path / "new.npz", x=x)
    done = command("predict", place, "--data", tmp_path / "new.npz", "-o", tmp_path / "labels.csv")
    assert done.code == 0, done.err
    assert model.facts["sent"] == {"up": 0, "down": 0, "steps": []}


REFUSALS: dict[str, tuple[Callable[[Path], tuple[Stay, RecordDict]], str]] = {
    "another shape": (
        lambda path: (
            stay(
                path, data=write_data(path / "x.npz", "ditto", 1, x=np.zeros((5, 9, 9), np.uint8), y=np.zeros(5, int))
            ),
            hello("ditto"),
        ),
        "x in your data holds uint8 [9, 9, 1]; this run was trained on uint8 [8, 8, 1].",
    ),
    "another kind": (
        lambda path: (
            stay(path, data=write_data(path / "x.npz", "ditto", 1, x=np.zeros((5, 8, 8, 1)), y=np.zeros(5, int))),
            hello("ditto"),
        ),
        "x in your data holds float32 [8, 8, 1]; this run was trained on uint8 [8, 8, 1].",
    ),
    "no labels": (
        lambda path: (
            stay(path, data=write_data(path / "x.npz", "ditto", 1, x=np.zeros((1, 8, 8), np.uint8), y=np.array([-1]))),
            hello("ditto"),
        ),
        "Ditto needs labels to make a client's model; give y, or take a run of one that needs none:",
    ),
    "a method that the owner does not want": (
        lambda path: (stay(path, allow="pefll, odpflhn"), hello("ditto")),
        "This node's owner does not take part in ditto, only in pefll, odpflhn.",
    ),
    "another version": (
        lambda path: (stay(path), hello("ditto", version="99")),
        f"The server runs latecomer 99, and this node {__version__}.",
    ),
    "settings of another method": (
        lambda path: (stay(path), hello("ditto", method="PeFLL")),
        "A hello for 'PeFLL' has settings of 'Ditto'.",
    ),
    "no settings": (
        lambda path: (stay(path), hello("ditto", settings="nonsense")),
        "The server's settings cannot be read as settings: Expected '=' after a key",
    ),
    "no task": (
        lambda path: (stay(path), hello("ditto", settings=trained("ditto")[0].partition("[task]")[0])),
        "The server's settings do not say what is trained: 'task'.",
    ),
    "members that cannot be": (
        lambda path: (
            stay(path),
            hello("ditto", settings=re.sub(r"members = \d+", "members = -1", trained("ditto")[0])),
        ),
        "The server's settings do not say what is trained: -1 of ",
    ),
    "a training that is a path": (
        lambda path: (stay(path), hello("ditto", training="../../x")),
        "A training cannot be called '../../x'; letters, digits, - and _ make its name.",
    ),
    "half a hello": (
        lambda path: (stay(path), RecordDict({"header": ConfigRecord({"training": "x"}), "body": ConfigRecord()})),
        "A hello must tell version, training, method, settings and nothing else.",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_hello_is_refused_in_a_sentence_and_others_are_not(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_up, sentence = REFUSALS[case]
    settings, content = make_up(tmp_path)
    superlink = work(settings, SuperLink([("hello", content), ("hello", content)]))
    assert [told.startswith(sentence) for told in sentences(superlink)] == [True, True]
    assert any(sentence in record.getMessage() for record in caplog.records), "its owner can read it, too"
    assert not [*(settings.desk / "trainings").iterdir()]


def test_a_server_is_told_neither_numbers_nor_paths_of_a_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever chooses what the classes are could ask for one label after the other."""
    odd = write_data(tmp_path / "x.npz", "ditto", 1, x=np.zeros((1, 8, 8), np.uint8), y=np.array([10]))
    superlink = work(stay(tmp_path, data=odd), SuperLink([("hello", hello("ditto"))]))
    unsaid = "Something on this client's side does not fit; its own log says what."
    assert sentences(superlink) == [unsaid]
    assert "y in your data holds the label 10; the classes are 0 to 9" in caplog.text
    assert str(for_server(RunError(f"{tmp_path} cannot be used."))) == unsaid


def test_steps_are_for_trainings_that_said_hello_and_for_one_number(tmp_path: Path) -> None:
    settings, (_, method, _) = stay(tmp_path), trained("ditto")
    participant, state, sent = Participant(Host(settings)), RecordDict(), toys.start(method)
    LocalGrid(None)  # type: ignore[arg-type]

    def ask(step: str, content: RecordDict) -> str:
        try:
            participant.answer(Message(content, 7, f"query.{step}"), state)
        except LatecomerError as error:
            return str(error)
        return ""

    assert ask("fit", letters.request(method, "fit", sent)) == "Nobody has said hello here for the training 'a-test'."
    assert not ask("hello", hello("ditto"))
    assert not ask("fit", letters.request(method, "fit", sent, client=3))
    assert ask("fit", letters.request(method, "fit", sent, 1, client=2)) == (
        "This is client 3 of the training 'a-test', not 2."
    )
    assert ask("build", letters.request(method, "build", {}, 2)) == "Ditto has no step 'build'."
    assert "does not report scores" in ask("score", letters.request(method, "score", sent, -1, scratch=1))
    assert "only in personalise" in ask("keep_model", letters.request(method, "keep_model", sent, 1))


def test_a_stock_supernode_gives_the_same_answers(tmp_path: Path) -> None:
    """Each message in a process of its own: nothing but the context is left from one to the next."""
    settings = stay(tmp_path)
    config: Any = {"data": settings.data, "partition-id": 1, "report-scores": True}
    context = Context(run_id=1, node_id=7, node_config=config, state=RecordDict(), run_config={})
    participant, state = Participant(Host(settings)), RecordDict()
    for step, content in occasions("ditto"):
        message = Message(content, 7, f"query.{step}")
        found, expected = client_app()(message, context).content, participant.answer(message, state).content
        assert found == expected if step == "fit" else Welcome.unpack(found).test > 0
    assert context.state == state
    context.node_config.clear()
    with pytest.raises(SettingError, match="This node was started without data"):
        client_app()(message, context)


# what survives


@pytest.mark.parametrize("name", ["ditto", "odpflhn"])
def test_killed_between_any_two_writes_it_comes_back_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots of the desk, and of what the SuperLink knows, before and after each write; each one goes on.

    But for one instant: a message that the SuperLink takes for delivered, and of which nothing is on the desk yet.
    The server sends that one once more.
    """
    settings, snapshots = stay(tmp_path / "whole", name), []
    whole = SuperLink(occasions(name))

    def snapshot() -> None:
        if whole.kept and not (settings.desk / "letter").exists():
            return
        place = tmp_path / f"desk {len(snapshots)}"
        shutil.copytree(settings.desk, place)
        snapshots.append((place, whole.copy()))

    def watched(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*words: Any) -> Any:
            snapshot()
            done = change(*words)
            snapshot()
            return done

        return changed

    monkeypatch.setattr(Desk, "_write", watched(Desk._write))
    monkeypatch.setattr(Desk, "answered", watched(Desk.answered))
    work(settings, whole)
    monkeypatch.undo()
    assert len(whole.replies) == 4
    assert len(snapshots) == 4 + 7 * 4, "a place and a key; a message in two steps, its reply, and that it is done"
    for place, superlink in snapshots:
        again = work(stay(tmp_path / "again", name, state=str(place)), superlink)
        assert again.replies.keys() == whole.replies.keys()
        found, expected = kept(place), kept(settings.desk)
        assert len(ledger(found).entries) == len(ledger(expected).entries) == (3 if name == "odpflhn" else 0)
        if name == "ditto":  # whose replies have no secret noise
            assert bodies(again) == bodies(whole)
            assert found == expected


def test_what_was_released_counts_in_all_trainings(tmp_path: Path) -> None:
    settings, asked = stay(tmp_path, "odpflhn"), occasions("odpflhn", rounds=1)
    _, method, _ = trained("odpflhn")
    other = letters.request(method, "request", {"encoder": toys.start(method)["learned"]["encoder"]}, -1, client=4)
    other["header"]["training"] = "another"
    work(settings, SuperLink([*asked, ("hello", hello("odpflhn", training="another")), ("request", other)]))
    assert [len(ledger(kept(settings.desk, name)).entries) for name in ("a-test", "another", "a-third")] == [2, 2, 2]


def test_a_message_that_ends_every_process_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, superlink = stay(tmp_path), SuperLink(occasions("ditto", rounds=1))

    def taking_all_memory(*_: Any) -> None:
        raise KeyboardInterrupt  # in the place of the kernel

    with monkeypatch.context() as patched:
        patched.setattr(Participant, "answer", taking_all_memory)
        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                work(settings, superlink)
    work(settings, superlink)
    assert sentences(superlink)[0] == "This client has been stopped 5 times at this message, and lets it be."
    assert len(superlink.replies) == 2


def test_a_desk_is_of_one_owner_at_a_time(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "desk")
    with pytest.raises(RunError, match="Another node is at work in"):
        Desk(tmp_path / "desk")
    desk.close()
    Desk(tmp_path / "desk").close()
    (tmp_path / "desk/trainings/x").write_bytes(b"nonsense")
    with pytest.raises(RunError, match=r"trainings/x is damaged: its header is"):
        Desk(tmp_path / "desk")


def test_a_desk_has_room_for_so_many_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desks, "MOST", 1)
    superlink = work(stay(tmp_path), SuperLink([("hello", hello("ditto", training=name)) for name in "ab"]))
    assert sentences(superlink) == [
        "",
        "This node has been in 1 trainings; its owner can start it with another --state.",
    ]


def test_who_is_forgotten_comes_back_and_who_is_unheard_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, arrived = stay(tmp_path), []
    superlink = SuperLink(occasions("ditto", rounds=1))
    node = Node(settings)
    node.fleet, superlink.node = superlink, node  # type: ignore[assignment]
    send, refused = superlink.send, [LinkError("Nobody answers.")]
    monkeypatch.setattr(superlink, "activate", lambda before: (arrived.append(before), 7)[1])
    monkeypatch.setattr(
        superlink, "send", lambda *words: (refused and (_ for _ in ()).throw(refused.pop())) or send(*words)
    )
    monkeypatch.setattr("latecomer.node.stay.LONGEST", 0.01)
    receive = superlink.receive
    monkeypatch.setattr(
        superlink, "receive", lambda place: (len(arrived) == 1 and node.forgotten.set(), receive(place))[1]
    )
    node.run()
    assert arrived == [None, 7]
    assert len(superlink.replies) == 2


@pytest.mark.parametrize("kind", [Refused, Strange])
def test_a_message_of_a_run_that_nobody_knows_is_let_go(
    kind: type[LinkError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a SuperLink that was started afresh; other messages are answered."""
    settings, superlink = stay(tmp_path), SuperLink(occasions("ditto", rounds=1))
    send, lost = superlink.send, superlink.waiting[0].name
    monkeypatch.setattr("latecomer.node.stay.LONGEST", 0.0)

    def refusing(node: int, parcel: Parcel) -> None:
        if parcel.answers == lost:
            raise kind("There is no such run.")
        send(node, parcel)

    monkeypatch.setattr(superlink, "send", refusing)
    work(settings, superlink)
    assert len(superlink.replies) == 1
    assert Desk(settings.desk).letter() is None


def test_the_rest_of_a_reply_is_sent_whose_upload_was_cut_off() -> None:
    """The SuperLink knows the reply already and asks for nothing, and the server waits for its parts."""
    uploaded: list[tuple[str, str]] = []
    fleet = Fleet("127.0.0.1:1", None, load_ssh_private_key(new_key(), None), insecure=True)  # type: ignore[arg-type]
    fleet.client = SimpleNamespace(  # type: ignore[assignment]
        PushMessages=lambda ask: SimpleNamespace(objects_to_push=[], session_id="new"),
        PushObject=lambda ask: uploaded.append((ask.object_id, ask.session_id)),
    )
    fleet.send(7, Parcel("asked", 1, 0.0, {"a": b"1", "b": b"2"}, b"", b""))
    assert uploaded == [("a", ""), ("b", "")]


# bad input

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no superlink": ({"superlink": ""}, "--superlink is needed"),
    "no port": ({"superlink": "somewhere"}, "--superlink must be HOST:PORT; got 'somewhere'."),
    "nobody there": ({}, "There is no SuperLink at 127.0.0.1:1, or it speaks TLS and --insecure must go"),
    "both": ({"root_certificates": "ca.crt"}, "--root-certificates is for TLS, which --insecure does without"),
    "no certificates": (
        {"insecure": False, "root_certificates": "/nowhere"},
        "--root-certificates /nowhere: No such file",
    ),
    "no data": ({"data": "/nowhere.npz"}, "There is no file '/nowhere.npz'; an .npz with x"),
    "no key": ({"key": "/nowhere"}, "The key /nowhere cannot be read: No such file or directory."),
    "no such method": ({"allow": "pefl"}, "There is no method 'pefl'; did you mean 'pefll'?"),
    "no such size": ({"budget": "XL"}, "There is no size 'XL'"),
    "no folder": ({"state": "/dev/null/x"}, "/dev/null/x cannot be used: Not a directory."),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(case: str, tmp_path: Path) -> None:
    given, sentence = BAD[case]
    with pytest.raises(LatecomerError) as raised:
        Node(stay(tmp_path, **given)).run()
    assert str(raised.value).startswith(sentence)
    assert threading.active_count() == 1 or all(thread.daemon for thread in threading.enumerate()[1:])


@pytest.mark.parametrize("text", [b"", b"no key", b"-----BEGIN OPENSSH PRIVATE KEY-----\nnonsense"])
def test_a_file_that_is_no_key_is_one_sentence(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(text)
    with pytest.raises(SettingError, match="holds no private key that can be read without a password"):
        Node(stay(tmp_path, key=str(tmp_path / "key")))


def test_the_command_line_says_it_and_ends(tmp_path: Path, command: Command) -> None:
    done = command(
        "node", "--superlink", "127.0.0.1:1", "--insecure", "--data", write_data(tmp_path / "x.npz", "ditto", 1)
    )
    assert done.code == 2
    assert done.err.strip().splitlines()[-1].startswith("latecomer: There is no SuperLink at 127.0.0.1:1")
    assert "--superlink" in command("node", "--help").out


def test_understanding_a_hello_reads_no_file_of_the_servers_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = trained("ditto")[0].replace('data = "digits"', 'data = "npz:/etc/passwd"')
    monkeypatch.setattr("builtins.open", lambda *words, **more: pytest.fail(f"{words[0]} was opened"))
    assert understood(settings).method.members == trained("ditto")[1].members


def test_names_that_flower_does_not_promise_are_there() -> None:
    """All of them are in one file; it was written for this version."""
    import flwr

    fleet = importlib.import_module("latecomer.engines.flower.fleet")
    assert flwr.__version__ == "1.41.0"
    verbs = "ActivateNode DeactivateNode RegisterNode SendNodeHeartbeat PullMessages PullObject ConfirmMessageReceived"
    for verb in f"{verbs} PushMessages PushObject".split():
        assert callable(getattr(fleet.FleetHttpClient, verb))
    assert fleet.TaskIdentity.__annotations__.keys() >= {"_run_id", "_node_id", "_task_id"}
