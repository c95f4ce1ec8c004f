"""The server of a deployment, with nodes in this process: who takes part, how it goes on, who gets a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.run import Run as FlowerRun
from flwr.superlink.grid.http_grid import HttpGrid

import latecomer
from console import Command
from latecomer import tree
from latecomer.data import Federation
from latecomer.deploy import news, project
from latecomer.deploy.nodes import Nodes
from latecomer.deploy.server import Deployment
from latecomer.engines.flower.app import client_app
from latecomer.engines.flower.fleet import Letter, Parcel
from latecomer.engines.flower.grid import LocalGrid
from latecomer.engines.flower.hello import Welcome
from latecomer.engines.flower.link import Link
from latecomer.engines.flower.wire import pack
from latecomer.errors import RunError
from latecomer.runs.experiment import Experiment
from latecomer.runs.folder import Folder
from latecomer.runs.run import Run

SMALL = {"rounds": 4, "cohort": 3, "evaluate_every": 2, "clients": 4, "model": "mlp", "threads": 1}
OWN = {"pefll": {"steps": 2}, "flowdup": {"dimension": 50}, "fedper": {}, "fedavg": {"secure_mean": True}}


class Killed(BaseException):
    """In the place of kill -9."""


class Nodes4:
    """Flower's grid, and behind it nodes that have a client's rows each. They answer as soon as they are asked."""

    def __init__(self, method: Any, federation: Federation, present: Iterable[int], scores: bool = True) -> None:
        self.app = client_app(method, [federation], simulated=True)
        self.local, self.federation, self.scores = LocalGrid(self.app), federation, scores
        self.clients = {1000 - 7 * client: client for client in present}
        self.contexts: dict[int, Context] = {}
        self.replies: dict[str, Message] = {}
        self.asked: list[str] = []
        self.kept: list[int] = []
        self.refuses: dict[int, str] = {}
        self.dies_at = -1
        self.claims = 0

    def get_node_ids(self) -> list[int]:
        return list(self.clients)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        found = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self.replies[message.metadata.message_id] = self.answer(message)
            found.append(message.metadata.message_id)
        return found

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        return [self.replies.pop(number) for number in numbers if number in self.replies]

    def answer(self, message: Message) -> Message:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type.removeprefix("query.")
        self.asked.append(kind)
        if len(self.asked) == self.dies_at:
            raise Killed
        if node in self.refuses:
            return Message(Error(2, self.refuses[node]), reply_to=message)
        if kind == "hello":
            sizes = {
                split: int(self.federation.rows(split).sizes[self.clients[node]]) for split in ("train", "val", "test")
            }
            hidden = {} if self.scores else {"val": 0, "test": 0}
            hidden |= {"train": self.claims} if self.claims else {}
            told = {
                "version": latecomer.__version__,
                "prefers": self.clients[node],
                "labelled": True,
                **sizes,
                **hidden,
            }
            return Message(RecordDict({"body": ConfigRecord(told)}), reply_to=message)
        if kind == "keep_model":
            self.kept.append(int(message.content["header"]["client"]))
            return Message(RecordDict({"body": pack({})}), reply_to=message)
        empty = Context(
            run_id=1, node_id=node, node_config={"partition-id": self.clients[node]}, state=RecordDict(), run_config={}
        )
        return self.app(message, self.contexts.setdefault(node, empty))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latecomer.engines.flower.link.SHORTEST", 0.0)
    monkeypatch.setattr("latecomer.deploy.server.LOOK", 0.01)


def simulated(tmp_path: Path, method: str) -> tuple[Run, Federation]:
    """The same training on one machine."""
    asked = {**SMALL, **OWN[method], "engine": "loop", "out": str(tmp_path), "name": "one", "device": "cpu"}
    experiment = Experiment.parse(method, {"unseen": 0, "labelled": 1, "split": "pefll", "partition": "iid", **asked})
    run = Run.begin(experiment)
    run.go()
    return run, run.training.federations[0]


def app(tmp_path: Path, method: str) -> str:
    project.new(tmp_path / "app", method, {**SMALL, **OWN[method]})
    return (tmp_path / "app" / "settings.toml").read_text()


def deployed(tmp_path: Path, settings: str, nodes: Nodes4, wait: float = 0.0) -> Deployment:
    return Deployment(settings, Link(nodes), tmp_path / "run", wait)


@pytest.mark.parametrize("method", OWN)
def test_a_deployed_run_is_the_simulated_one(tmp_path: Path, method: str) -> None:
    run, federation = simulated(tmp_path, method)
    settings = app(tmp_path, method)
    nodes = Nodes4(run.training.methods[0], federation, range(4))
    deployed(tmp_path, settings, nodes).go()
    one, other = (Folder.open(tmp_path / name) for name in ("one", "run"))
    (ours, _), (theirs, _) = other.load(), one.load()
    for path, leaf in tree.flatten(theirs["0"]["state"]).items():
        torch.testing.assert_close(tree.flatten(ours["0"]["state"])[path], leaf, rtol=1e-5, atol=1e-5)
    lines = [
        [json.loads(line) for line in (folder.path / "ledger.jsonl").read_text().splitlines()]
        for folder in (one, other)
    ]
    sent = [[(line["round"], line["step"], line["down"], line["up"]) for line in some] for some in lines]
    assert sent[0] == sent[1]
    assert sorted(nodes.kept) == [0, 1, 2, 3], "everybody has a model"
    results = [json.loads((folder.path / "result.json").read_text()) for folder in (one, other)]
    assert results[0]["seen"] == results[1]["seen"]


@pytest.mark.parametrize(
    ("method", "dies_at"), [*(("fedper", place) for place in (6, 21, 35, 42)), ("fedavg", 12), ("fedavg", 15)]
)
def test_a_server_that_is_killed_goes_on_as_if_nothing_had_happened(tmp_path: Path, method: str, dies_at: int) -> None:
    """In a round, in an evaluation, and while it hands out the models. FedPer's clients keep something of their own.

    In FedAvg's secure mean, when the second client masks its numbers, and when it is to give its shares.
    """
    run, federation = simulated(tmp_path, method)
    settings, nodes = app(tmp_path, method), Nodes4(run.training.methods[0], federation, range(4))
    nodes.dies_at = dies_at
    with pytest.raises(Killed):
        deployed(tmp_path, settings, nodes).go()
    deployed(tmp_path, settings, nodes).go()
    (ours, _), (theirs, _) = (Folder.open(tmp_path / name).load() for name in ("run", "one"))
    for path, leaf in tree.flatten(theirs["0"]["state"]).items():
        torch.testing.assert_close(tree.flatten(ours["0"]["state"])[path], leaf, rtol=1e-5, atol=1e-5)
    assert {*nodes.kept} == {0, 1, 2, 3}


def test_whoever_comes_later_gets_a_model_and_a_number_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, federation = simulated(tmp_path, "pefll")
    settings, nodes = app(tmp_path, "pefll"), Nodes4(run.training.methods[0], federation, range(4))
    deployed(tmp_path, settings, nodes).go()
    late = Nodes4(run.training.methods[0], federation.behind(4), range(4))
    late.clients = {5: 4, 3: 5}  # their nodes prefer the places behind the members
    late.app = client_app(run.training.methods[0], [federation.behind(4)], simulated=True)
    late.federation, late.contexts = federation.behind(4), {}
    capsys.readouterr()
    deployed(tmp_path, settings, late).go()
    assert late.kept == [4, 5]
    assert {*late.asked} == {"hello", "describe_fully", "keep_model"}
    told = [news.heard(line) for line in capsys.readouterr().out.splitlines()]
    assert told[-1]["given"] == [4, 5]
    assert told[-1]["without"] == []
    before = len(late.asked)
    deployed(tmp_path, settings, late).go()
    assert len(late.asked) == before, "who has a model is left in peace"
    assert len(Nodes.load(tmp_path / "run")) == 6
    x = load_example(federation)
    assert latecomer.load(tmp_path / "run").personalise(*x).predict(x[0]).shape == (len(x[0]),)


def load_example(federation: Federation) -> tuple[Any, Any]:
    rows = federation.train[0].long()
    return federation.examples.x[rows].numpy(), federation.examples.y[rows].numpy()


def test_too_few_nodes_are_one_sentence_that_tells_who_refused_and_nothing_is_written(tmp_path: Path) -> None:
    run, federation = simulated(tmp_path, "pefll")
    settings, nodes = app(tmp_path, "pefll"), Nodes4(run.training.methods[0], federation, range(4))
    nodes.refuses[993] = "x in mine.npz holds float32 [3]; this run was trained on uint8 [8, 8, 1]."
    with pytest.raises(
        RunError, match=r"Of 4 nodes 3 came within 0 seconds. Node 993 said: x in mine.npz holds float32"
    ):
        deployed(tmp_path, settings, nodes).go()
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_its_own_settings_alone(tmp_path: Path) -> None:
    run, federation = simulated(tmp_path, "pefll")
    settings, nodes = app(tmp_path, "pefll"), Nodes4(run.training.methods[0], federation, range(4))
    deployed(tmp_path, settings, nodes).go()
    with pytest.raises(RunError, match=r"began with seed 0, and the app says 1; give this run another --name"):
        deployed(tmp_path, settings.replace("seed = 0\n", "seed = 1\n", 1), nodes).go()


def test_one_machine_does_not_go_on_with_nodes(tmp_path: Path, command: Command) -> None:
    (tmp_path / "nodes.json").touch()
    done = command("resume", tmp_path)
    assert (done.code, "`latecomer flower run` goes on with it" in done.err) == (2, True)


def test_clients_that_report_no_scores_are_not_asked_for_any(tmp_path: Path) -> None:
    run, federation = simulated(tmp_path, "pefll")
    settings = app(tmp_path, "pefll")
    nodes = Nodes4(run.training.methods[0], federation, range(4), scores=False)
    deployed(tmp_path, settings, nodes).go()
    assert "score" not in nodes.asked
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["seen"]["accuracy"] is None
    assert result["seen"]["failed"] == 0


@pytest.mark.parametrize("missing", ["never", "late", "twice"])
def test_replies_that_go_astray(missing: str) -> None:
    """A node that is gone, or answers after the time is over, or twice, or in another's place."""
    LocalGrid(SimpleNamespace())  # messages need a process with an identity
    message = Message(RecordDict(), dst_node_id=7, message_type="query.fit")

    class Grid:
        def push_messages(self, messages: list[Message]) -> list[str]:
            messages[0].metadata.__dict__["_message_id"] = "asked"
            return ["asked"]

        def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
            reply = Message(RecordDict(), reply_to=message)
            return {"never": [], "late": [], "twice": [reply, reply]}[missing]

    found = list(Link(Grid()).send_and_receive([message], timeout=0.05))
    assert len(found) == (missing == "twice")


@pytest.mark.parametrize("answered", ["the copy", "both"])
def test_a_message_that_a_killed_node_has_lost_is_sent_once_more(answered: str) -> None:
    LocalGrid(SimpleNamespace())
    asked = [Message(RecordDict({"body": pack({})}), dst_node_id=node, message_type="query.fit") for node in (7, 8, 9)]

    class Grid:
        """Node 7 loses its message and is there again, 8 answers at once, and 9 never."""

        def __init__(self) -> None:
            self.sent: list[Message] = []

        def push_messages(self, messages: list[Message]) -> list[str]:
            for message in messages:
                message.metadata.__dict__["_message_id"] = f"{len(self.sent)}"
                self.sent.append(message)
            return [message.metadata.message_id for message in messages]

        def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
            there = [1] if len(self.sent) == 3 else [0, 3] if answered == "both" else [3]
            return [Message(RecordDict(), reply_to=self.sent[k]) for k in there if f"{k}" in numbers]

    grid = Grid()
    found = list(Link(grid).send_and_receive(asked, timeout=0.2))
    assert [reply.metadata.reply_to_message_id for reply in found] == ["1", "0"], "each once, to what was asked"
    assert [message.metadata.dst_node_id for message in grid.sent] == [7, 8, 9, 7, 9]
    assert grid.sent[3].content == asked[0].content


class Records(HttpGrid):
    """Flower's grid over HTTP, without the network: replies as nodes uploaded them, part by part."""

    def __init__(self) -> None:
        super().__init__(token="none")
        self.set_run(FlowerRun.create_empty(1))
        self.heads: list[Any] = []
        self.trees: list[Any] = []
        self.objects: dict[str, bytes] = {}
        self.confirmed: list[str] = []
        self._client = self  # type: ignore[assignment]

    def upload(self, reply: Message, spoil: bytes | None = None, lacks: bool = False, **says: Any) -> None:
        """With other bytes in the place of its content's, with a part that is missing, or with lies about itself."""
        head = message_to_proto(reply)  # what the SuperLink has checked
        vars(reply.metadata).update({f"_{name}": value for name, value in says.items()})
        parcel = Parcel.of(Letter(1, "", ()), reply, 0.0)
        head.metadata.message_id = ObjectTree.FromString(parcel.tree).object_id
        parts = dict(parcel.objects)
        for name, part in parcel.objects.items():
            if part.startswith(b"ConfigRecord") and spoil is not None:
                parts[name] = b"ConfigRecord  %d\x00" % len(spoil) + spoil
            if part.startswith(b"ConfigRecord") and lacks:
                del parts[name]
        self.heads.append(head)
        self.trees.append(ObjectTree.FromString(parcel.tree))
        self.objects |= parts

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"to {message.metadata.dst_node_id}"
        return [message.metadata.message_id for message in messages]

    def PullMessages(self, ask: Any) -> Any:  # noqa: N802
        heads, self.heads = self.heads, []
        return SimpleNamespace(messages_list=heads, message_object_trees=self.trees)

    def PullObject(self, ask: Any) -> Any:  # noqa: N802
        content = self.objects.get(ask.object_id)
        return SimpleNamespace(object_found=True, object_available=content is not None, object_content=content)

    def ConfirmMessageReceived(self, ask: Any) -> None:  # noqa: N802
        self.confirmed.append(ask.message_object_id)


def asked_and_answered(*nodes: int) -> tuple[list[Message], list[Message]]:
    LocalGrid(SimpleNamespace())
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query.fit") for node in nodes]
    Records().push_messages(asked)
    return asked, [Message(RecordDict({"body": ConfigRecord({"of": k})}), reply_to=one) for k, one in enumerate(asked)]


def test_replies_that_flower_cannot_read_are_silence_and_cost_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """No record; a part that never comes; too many parts; one that says it comes from another, for another."""
    asked, replies = asked_and_answered(1, 2, 3, 4, 5)
    grid = Records()
    grid.upload(replies[4])
    grid.trees[0].children.extend([grid.trees[0].children[0]] * 1000)
    grid.upload(replies[0], spoil=b"\xff\xff nonsense")
    grid.upload(replies[1], lacks=True)
    grid.upload(replies[2], src_node_id=4, reply_to_message_id="to 4")
    grid.upload(replies[3])
    found = list(Link(grid).send_and_receive(asked, timeout=0.5))
    assert [(reply.metadata.reply_to_message_id, reply.metadata.src_node_id) for reply in found] == [
        ("to 3", 3),
        ("to 4", 4),
    ]
    assert [reply.content["body"]["of"] for reply in found] == [2, 3]
    assert len(grid.confirmed) == 4
    assert "A reply of node 1 cannot be read" in caplog.text
    assert "A reply of node 5 cannot be read (ProtocolError)" in caplog.text


def test_what_nodes_say_they_have_is_not_computed_with(tmp_path: Path) -> None:
    """One that claims millions of examples does not make the server train on as many to see what a reply looks like."""
    run, federation = simulated(tmp_path, "fedper")
    settings, nodes = app(tmp_path, "fedper"), Nodes4(run.training.methods[0], federation, range(4))
    nodes.claims = 10**7
    deployed(tmp_path, settings, nodes).go()
    assert json.loads((tmp_path / "run" / "nodes.json").read_text())["clients"][0]["train"] == 10**7


def test_the_noise_of_a_deployed_server_is_secret(tmp_path: Path) -> None:
    run, federation = simulated(tmp_path, "fedper")
    deployment = deployed(tmp_path, app(tmp_path, "fedper"), Nodes4(run.training.methods[0], federation, range(4)))
    members = Nodes("t", 4).joined({node: greeting() for node in range(4)})
    noise = [deployment._training(members, deployment.experiment)._noise(0, "fit", 3, torch.float32) for _ in range(2)]
    assert not torch.equal(*noise)


# who is who


def greeting(prefers: int = -1) -> Welcome:
    return Welcome(version="1", prefers=prefers, labelled=True, train=3, val=0, test=0)


def test_numbers_are_given_as_nodes_prefer_and_then_by_node() -> None:
    nodes = Nodes("t", 3).joined({30: greeting(), 10: greeting(2), 20: greeting(2)})
    assert nodes.places == {0: 20, 1: 30, 2: 10}
    assert nodes.joined({5: greeting(0), 4: greeting(4)}).places == {0: 20, 1: 30, 2: 10, 3: 5, 4: 4}


@pytest.mark.parametrize("text", ["", "{}", '{"training": "t", "members": 1, "clients": [{"node": -1}]}', "[1]"])
def test_a_damaged_table_of_nodes_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "nodes.json").write_text(text)
    with pytest.raises(RunError, match="is damaged"):
        Nodes.load(tmp_path)


# the command line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--clients", 4], "Say which method"),
        (["--method", "pefl", "--clients", 4], "did you mean 'pefll'"),
        (["--method", "pefll"], "--clients is needed"),
        (["--method", "pefll", "--clients", 4, "--partition", "iid"], "nodes bring their own"),
        (["--method", "pefll", "--clients", 4, "--seeds", 3], "for a run on one machine"),
        (
            ["--method", "pefll", "--clients", 4, "--cohort", 5],
            "--cohort must be at most the number of training clients, 4",
        ),
        (["--method", "fedavg", "--clients", 4, "--cohort", 3, "--min-replies", 4], "--min-replies must be at most"),
        (["--method", "pefll", "--clients", 4, "--rounds", -1], "--rounds must be at least 0"),
        (["--method", "pefll", "--clients", 4, "--data", "npz:none.npz"], "There is no file"),
    ],
)
def test_an_app_that_cannot_be_is_one_sentence(tmp_path: Path, command: Command, words: list[Any], says: str) -> None:
    done = command("flower", "new", tmp_path / "app", *words)
    assert done.code == 2
    assert says in done.err
    assert not (tmp_path / "app").exists()


def test_an_app_is_four_files_whose_form_is_that_of_a_client(tmp_path: Path, command: Command) -> None:
    np.savez(tmp_path / "mine.npz", x=np.zeros((6, 5), np.float32), y=np.arange(6) % 3)
    done = command(
        *("flower", "new", tmp_path / "app", "pefll", "--clients", 2, "--data", f"npz:{tmp_path / 'mine.npz'}"),
        *("--classes", 4, "--cohort", 2, "--model", "mlp"),
    )
    assert done.code == 0, done.err
    assert sorted(path.name for path in (tmp_path / "app").iterdir()) == [
        ".gitignore",
        "app.py",
        "pyproject.toml",
        "settings.toml",
    ]
    assert project.read(tmp_path / "app").settings.engine == "flower"
    assert "classes = 4" in (tmp_path / "app" / "settings.toml").read_text()
    again = command("flower", "new", tmp_path / "app", "pefll", "--clients", 2, "--cohort", 2)
    assert (again.code, "exists already" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Give --root-certificates FILE, or --insecure"),
        (["--insecure", "--superlink", "127.0.0.1:9"], "There is no SuperLink to talk to at 127.0.0.1:9"),
        (["--root-certificates", "nothing.crt"], "nothing.crt cannot be used: No such file"),
        (["--root-certificates", __file__], "holds no certificate"),
        (["--insecure", "--name", "../x"], "--name must be a plain name"),
        (["--insecure", "--wait", "0"], "--wait must be greater than 0"),
    ],
)
def test_a_run_that_cannot_begin_is_one_sentence(tmp_path: Path, command: Command, words: list[str], says: str) -> None:
    app(tmp_path, "fedper")
    done = command("flower", "run", tmp_path / "app", *words)
    assert done.code == 2
    assert says in done.err
    nothing = command("flower", "run", tmp_path, "--insecure")
    assert (nothing.code, "is no app" in nothing.err) == (2, True)


def test_what_a_server_tells_is_heard_among_other_lines(capsys: pytest.CaptureFixture[str]) -> None:
    news.tell(round=1, validation=float("nan"))
    line = capsys.readouterr().out.strip()
    assert news.heard(f"INFO : {line}") == {"round": 1, "validation": None}
    assert news.heard("INFO : something else") == news.heard("latecomer> {") == news.heard("latecomer> 3") == {}
