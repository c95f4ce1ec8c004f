"""A training that goes on in another run: who keeps what, who is new, and what cannot go on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import toys
from console import Command
from latecomer import methods, tree
from latecomer.runs.experiment import Experiment
from latecomer.runs.folder import Folder
from latecomer.runs.run import Run
from latecomer.settings import settings_of

SMALL = {
    "examples": 8,
    "clients": 8,
    "unseen": 0.25,
    "cohort": 3,
    "evaluate_every": 2,
    "engine": "vector",
    "graphs": False,
}


def begin(out: Path, name: str, method: str, **values: Any) -> Run:
    return Run.begin(Experiment.parse(method, {"out": str(out), "name": name, **values}))


def small(method: str) -> dict[str, Any]:
    """Settings that make its rounds cheap."""
    own = {key: toys._small(key, field) for key, field in settings_of(methods.get(method)).items()}
    return {**SMALL, **own}


def train(out: Path, name: str, method: str, **values: Any) -> Path:
    run = begin(out, name, method, **{**small(method), **values})
    assert run.go() is not None
    return run.folder.path


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def velocity(state: tree.Tree) -> tree.Tree:
    return tree.unravel(state["optimiser"]["velocity"], state["learned"])


def test_the_table_of_pfedhn_grows(tmp_path: Path) -> None:
    a = train(tmp_path, "a", "pfedhn", rounds=3, seeds=2)
    before = content(a)
    run = begin(tmp_path, "b", "pfedhn", continue_from=a, rounds=5, clients=12)
    assert (run.training.round, run.training.federations[0].members) == (3, 9)
    assert run.experiment.settings.sized_for == 8, "an embedding is as long as 8 clients made it"
    for part, state in zip(Folder.open(a).peek().values(), run.training.states, strict=True):
        old = part["state"]
        table = old["learned"]["embedding"]
        assert state["learned"]["embedding"][:6].equal(table)
        assert state["learned"]["embedding"][6:].equal(table.mean(0).expand(3, -1))
        assert toys.same(state["learned"]["hyper"], old["learned"]["hyper"])
        assert toys.same(velocity(state)["hyper"], velocity(old)["hyper"])
        assert velocity(state)["embedding"][:6].equal(velocity(old)["embedding"])
        assert not velocity(state)["embedding"][6:].any()
        assert state["ids"].tolist() == list(range(9))
    result = run.go()
    assert result is not None
    assert result["rounds"] == 5
    rounds = [json.loads(line)["round"] for line in (tmp_path / "b" / "ledger.jsonl").read_text().splitlines()]
    assert set(rounds) == {3, 4}, "batches are a function of the round: none of those before comes again"
    assert content(a) == before, "it is left alone"


def test_latecomers_join_and_everybody_keeps_their_examples(tmp_path: Path) -> None:
    a = train(tmp_path, "a", "pfedhn", rounds=1)
    training = begin(tmp_path, "b", "pfedhn", continue_from=a, rounds=2, unseen=0).training
    (old,) = Folder.open(a).peek().values()
    assert training.federations[0].members == len(old["data"]) == 8
    assert training.federations[0].fingerprints.equal(old["data"])
    assert len(old["data"].unique()) == 8
    assert not [note for note in training.notes if str(a) in note]
    assert training.states[0]["learned"]["embedding"][:6].equal(old["state"]["learned"]["embedding"])


def test_new_embeddings_may_be_drawn(tmp_path: Path) -> None:
    a = train(tmp_path, "a", "pfedhn", rounds=1, novel_start="random")
    (state,) = begin(tmp_path, "b", "pfedhn", continue_from=a, rounds=2, clients=16).training.states
    drawn = state["learned"]["embedding"][6:]
    assert len(drawn.unique(dim=0)) == len(drawn) == 6


@pytest.mark.parametrize("kind", ["pefll", "pfedhn", "fedper", "odpflhn-private", "odpflhn-phases"])
def test_with_nobody_added_it_is_as_if_never_stopped(kind: str, tmp_path: Path) -> None:
    method, own = toys.VARIANTS.get(kind, (kind, {}))
    values = {**own, "seeds": 2, "faults": "drop=0.1"}
    if kind == "pefll":
        values |= {"faults": "", "graphs": True}  # whole rounds are replayed
    whole = train(tmp_path, "whole", method, rounds=4, **values)
    part = train(tmp_path, "part", method, rounds=2, **values)
    run = begin(tmp_path, "rest", method, continue_from=part, rounds=4)
    assert not [note for note in run.training.notes if str(part) in note]
    run.go()

    def left(folder: Path) -> tuple[dict[str, Tensor], list[Any]]:
        kept = {seed: tree.without(seed_part, ["best"]) for seed, seed_part in Folder.open(folder).peek().items()}
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return tree.flatten(kept), [line["runs"] for line in lines if line["round"] > 2]

    (one, scores), (other, again) = left(whole), left(tmp_path / "rest")
    assert one.keys() == other.keys()
    assert all(one[name].equal(other[name]) for name in one)
    assert scores
    assert scores == again


@pytest.mark.parametrize("kind", [*methods.names(), "pfedhn-pc", "pfedhn-fixed", "odpflhn-phases", "odpflhn-private"])
def test_every_method_goes_on_with_clients_added(kind: str, tmp_path: Path) -> None:
    method, own = toys.VARIANTS.get(kind, (kind, {}))
    a = train(tmp_path, "a", method, rounds=1, cohort=0, **own)
    run = begin(tmp_path, "b", method, continue_from=a, rounds=2, clients=12)
    (old,) = Folder.open(a).peek().values()
    if "memory" in old:  # new members have none yet
        assert toys.same(run.training.engine.memories(0), old["memory"])
    if "released" in old:
        spent = run.training.tally.released[0].answers
        assert spent[:8].equal(old["released"]["answers"])
        assert spent[:8].any()
        assert not spent[8:].any()
    result = run.go()
    assert result is not None
    assert (result["answered"], result["rounds"]) == (1.0, 2)


def test_new_members_of_a_clustered_federation_join_the_largest_cluster() -> None:
    method = toys.method("clusteredfl")
    state = toys.start(method) | {"cluster": torch.tensor([0, 1, 1, 1, 0, 2, 1])}
    state |= {"heard": torch.ones(7, dtype=torch.bool), "weight": torch.arange(7.0)}
    carried = method.carry_over(state, {}, torch.tensor([5, -1, 0]))
    assert carried["cluster"].tolist() == [2, 1, 0]
    assert carried["heard"].tolist() == [True, False, True]
    assert carried["weight"].tolist() == [5, 0, 0]


# clients with names


def write(path: Path, writers: list[str]) -> str:
    """Every writer's examples are its own, wherever in the file they lie."""
    x, y, client = [], [], []
    for name in writers:
        random = np.random.default_rng(list(name.encode()))
        x.append(random.integers(0, 256, (20, 8, 8), dtype=np.uint8))
        y.append(np.arange(20) % 4)
        client += [name] * 20
    both = {"x_train": np.concatenate(x), "y_train": np.concatenate(y), "client_train": np.array(client)}
    np.savez(path, **both, **{f"{key.removesuffix('_train')}_test": value for key, value in both.items()})
    return f"npz:{path}"


def test_clients_with_names_are_known_by_them(tmp_path: Path) -> None:
    data = write(tmp_path / "mine.npz", list("abcdef"))
    natural = {"data": data, "partition": "natural", "clients": 0, "unseen": 0, "validation": 0, "cohort": 2}
    a = train(tmp_path, "a", "pfedhn", rounds=2, personal_head=True, examples=0, **natural)
    (old,) = Folder.open(a).peek().values()
    was = [str(name) for name in json.loads((a / "checkpoint" / "latest.json").read_text())["names"][0]]
    table = dict(zip(was, old["state"]["learned"]["embedding"], strict=True))
    write(tmp_path / "mine.npz", list("zfedcb"))  # z is new, a has left
    run = begin(tmp_path, "b", "pfedhn", continue_from=a, rounds=3)
    (federation,), (state,) = run.training.federations, run.training.states
    for name, row in zip(federation.names, state["learned"]["embedding"], strict=True):
        assert row.equal(table.get(str(name), torch.stack([*table.values()]).mean(0)))
    assert [str(name) for name in federation.names] != was
    kept = run.training.engine.memories(0)
    rows = dict(zip((was[k] for k in old["memory"]["ids"]), old["memory"]["rows"]["head"]["head.bias"], strict=True))
    assert {str(federation.names[k]) for k in kept["ids"]} == rows.keys() - {"a"}
    for client, head in zip(kept["ids"].tolist(), kept["rows"]["head"]["head.bias"], strict=True):
        assert head.equal(rows[str(federation.names[client])])
    assert [note for note in run.training.notes if str(a) in note] == [
        f"1 of the 6 members of {a} are not here, and what was learned for them alone is left out."
    ]
    assert run.go() is not None


def test_all_may_have_left(tmp_path: Path) -> None:
    data = write(tmp_path / "mine.npz", list("abc"))
    a = train(tmp_path, "a", "fedper", rounds=1, data=data, partition="natural", clients=0, unseen=0, cohort=2)
    write(tmp_path / "mine.npz", list("xyz"))
    run = begin(tmp_path, "b", "fedper", continue_from=a, rounds=2)
    assert run.training.engine.memories(0) == {}
    assert f"3 of the 3 members of {a} are not here" in " ".join(run.training.notes)
    assert toys.same(run.training.states[0], Folder.open(a).peek()["0"]["state"])
    assert run.go() is not None


def test_who_was_trained_cannot_come_late(tmp_path: Path, command: Command) -> None:
    data = write(tmp_path / "mine.npz", list("abcdef"))
    a = train(tmp_path, "a", "fedavg", rounds=1, data=data, partition="natural", clients=0, unseen=0)
    done = command("run", "fedavg", "--continue-from", a, "--unseen", 0.5, "--rounds", 2, "--out", tmp_path / "out")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "cannot come late any more; change --clients, --unseen, --validators or --seed." in done.err
    assert not (tmp_path / "out").exists()


# in its folder


def test_from_the_command_line(tmp_path: Path, command: Command) -> None:
    a = train(tmp_path, "a", "fedper", rounds=2, lr=0.02, rotations=(0, 90))
    done = command("run", "--continue-from", a, "--clients", 12, "--rounds", 3, "--out", tmp_path, "--name", "b")
    assert done.code == 0, done.err
    assert f"Note: 6 of the 6 members of {a} have other training examples here, so what is held out" in done.err
    experiment = Experiment.read((tmp_path / "b" / "settings.toml").read_text(), tmp_path / "b")
    assert experiment.own["lr"] == 0.02
    settings = experiment.settings
    assert (settings.rotations, settings.clients, settings.continue_from) == ((0, 90), 12, str(a))
    words = ["--settings", tmp_path / "b" / "settings.toml", "--name", "c"]
    assert command("run", *words).code == 0
    assert (tmp_path / "b" / "clients.csv").read_bytes() == (tmp_path / "c" / "clients.csv").read_bytes()


def test_it_can_be_resumed(tmp_path: Path) -> None:
    a = train(tmp_path, "a", "fedper", rounds=2)
    whole = begin(tmp_path, "whole", "fedper", continue_from=a, rounds=4, clients=12)
    whole.go()
    begun = begin(tmp_path, "b", "fedper", continue_from=a, rounds=4, clients=12)
    begun.folder.release()
    again = Run.resume(tmp_path / "b")  # before its first checkpoint
    assert again.training.round == 2
    again.stop = True
    assert again.go() is None
    shutil.rmtree(a)  # from its own checkpoint on it needs the earlier run no more
    last = Run.resume(tmp_path / "b")
    assert last.training.round == 3
    assert last.go() is not None
    assert (tmp_path / "b" / "clients.csv").read_bytes() == (tmp_path / "whole" / "clients.csv").read_bytes()


def test_a_stopped_run_goes_on_and_a_schedule_is_said(tmp_path: Path) -> None:
    stopped = begin(tmp_path, "a", "fedavg", **small("fedavg"), rounds=4, lr_schedule="cosine")
    stopped.stop = True
    assert stopped.go() is None
    run = begin(tmp_path, "b", "fedavg", continue_from=tmp_path / "a")
    assert run.training.round == 1
    assert "The cosine schedule is one of 4 rounds, 1 of them over." in run.training.notes


def test_what_cannot_go_on(tmp_path: Path, command: Command) -> None:
    def refused(fragment: str, *words: object) -> None:
        done = command("run", *words, "--out", tmp_path / "out")
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert fragment in done.err
        assert not (tmp_path / "out").exists()

    a = train(tmp_path, "a", "local", rounds=2)
    more = ["local", "--continue-from", a, "--rounds", 3]
    refused("missing is not a run folder: it has no settings.toml.", "--continue-from", "missing")
    refused("is one of local, which fedavg cannot continue; say latecomer run local.", "fedavg", *more[1:])
    refused("has had 2 rounds, and --rounds counts them: it must be greater than 2; got 2.", *more[:3])
    refused("has trained 6 members, and 3 would go on", *more, "--clients", 4)
    refused("has --seeds 1, each to go on; got 2.", *more, "--seeds", 2)
    refused("begins with --start or goes on with --continue-from; got both.", *more, "--start", a)
    refused("weights in a model, it has 7510, these are", *more, "--model", "lenet")
    data = write(tmp_path / "mine.npz", list("abcdefgh"))
    refused("classes, it has 10, these are 4.", *more, "--data", data, "--partition", "iid", "--clients", 8)
    begun = begin(tmp_path, "young", "local", **small("local"), rounds=2)
    begun.folder.release()
    refused("has no checkpoint yet; let it go on with: latecomer resume", "--continue-from", tmp_path / "young")
    b = train(tmp_path, "b", "odpflhn", rounds=1)
    refused("'learned/embedding' is nothing there, and (6, 2) here", *_on(b), "--training", "two-phases")
    refused("'learned/hyper/0.weight' is (12, 2) there, and (12, 5) here.", *_on(b), "--descriptor", 5)


def _on(folder: Path) -> list[object]:
    return ["--continue-from", folder, "--rounds", 9]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("members", 9, "members in latest.json cannot be right"),
        ("names", [["a"]], "names in latest.json cannot be right"),
        ("clients", None, "clients in latest.json cannot be right"),
        ("task", ..., "latest.json lacks task"),
    ],
)
def test_a_checkpoint_that_says_too_little(
    key: str, value: object, problem: str, tmp_path: Path, command: Command
) -> None:
    a = train(tmp_path, "a", "local", rounds=1)
    latest = a / "checkpoint" / "latest.json"
    facts = {**json.loads(latest.read_text()), key: value}
    latest.write_text(json.dumps({name: fact for name, fact in facts.items() if fact is not ...}))
    done = command("run", *_on(a), "--out", tmp_path / "out")
    assert (done.code, done.err) == (2, f"latecomer: The run in {a} cannot be continued: {problem}.\n")
    assert not (tmp_path / "out").exists()
