"""A finished run is loaded, meets other clients, and makes them models; what is wrong is one sentence."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import latecomer
from console import Command
from latecomer import Experiment, Personal
from latecomer.data import Federation, federate
from latecomer.data.sources import REQUIRED, Source, load
from latecomer.errors import DataError, LatecomerError, ModelError, RunError, SettingError
from latecomer.handover.meet import Meeting, meet, unused
from latecomer.runs.run import Run

TINY: dict[str, Any] = {
    "data": "digits",
    "clients": 10,
    "unseen": 0.3,
    "rounds": 2,
    "cohort": 4,
    "evaluate_every": 2,
    "engine": "loop",
    "device": "cpu",
    "name": "run",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in made:
            out = tmp_path_factory.mktemp(name)
            steps = {"steps": 2} if name == "pefll" else {}
            assert Run.begin(Experiment.parse(name, {**TINY, "out": str(out), **steps})).go() is not None
            made[name] = out / "run"
        return made[name]

    return run


@pytest.fixture(scope="module")
def mine() -> tuple[Any, Any]:
    federation = federate("digits", partition="classes", clients=10, unseen=0.3)
    rows = federation.train[9].long()
    return federation.examples.x[rows].numpy(), federation.examples.y[rows].numpy()


def test_a_federation_behind_members_is_the_same_clients() -> None:
    federation = federate("digits", partition="classes", clients=6, unseen=0.5, rotations=(0, 90))
    late = federation.behind(7, first=3)
    assert (len(late), late.members, late.first_late) == (10, 7, 7)
    for split in ("train", "val", "test"):
        assert all(len(late.rows(split)[client]) == 0 for client in range(7))
        for client in range(3):
            assert torch.equal(late.rows(split)[7 + client], federation.rows(split)[3 + client])
    assert torch.equal(late.rotation[7:], federation.rotation[3:])
    assert torch.equal(late.weight[7:], federation.weight[3:])


def test_a_meeting_deals_what_no_member_had(runs: Callable[[str], Path]) -> None:
    loaded = latecomer.load(runs("pefll"))
    before = loaded.experiment.federations()[0]
    had = {before.examples.x[row].numpy().tobytes() for row in before.train.index[: before.train.start[7]].long()}
    (federation,) = meet(loaded, clients=4).federations
    new = {federation.examples.x[row].numpy().tobytes() for row in federation.train.index.long()}
    assert len(federation) > loaded.method.members
    assert new
    assert not had & new
    (all_of_it,) = meet(loaded, Meeting(fresh=False), clients=4).federations
    assert len(all_of_it.train.index) > len(federation.train.index)


def test_what_members_trained_on_is_used_wherever_the_source_has_it() -> None:
    """Some partitions pool training and test examples: rows 6 to 9 are the source's test examples."""
    x, y = np.arange(10, dtype=np.float32)[:, None], np.arange(10) % 2
    source = Source("own", x[:6], y[:6], x[6:], y[6:], 2)
    before = Federation.from_arrays(x, y, train=[[0, 6], [1, 7], [2, 8]], test=[[3], [4], [5]], members=2)
    left = unused(SimpleNamespace(federations=[before]), source, 0)  # type: ignore[arg-type]
    assert left.x_train[:, 0].tolist() == [2, 3, 4, 5]  # the third client is a latecomer
    assert left.x_test[:, 0].tolist() == [8, 9]
    assert (len(left.y_train), len(left.y_test)) == (4, 2)
    judged = Federation.from_arrays(
        x, y, train=[[0], [1], [2]], val=[[], [6], []], test=[[3], [4], [5]], members=1, validators=1
    )
    left = unused(SimpleNamespace(federations=[judged]), source, 0)  # type: ignore[arg-type]
    assert (left.x_train[:, 0].tolist(), left.x_test[:, 0].tolist()) == ([2, 3, 4, 5], [7, 8, 9]), "validators selected"


def test_naming_the_runs_own_data_deals_no_members_either(runs: Callable[[str], Path]) -> None:
    loaded = latecomer.load(runs("pefll"))
    (unnamed,), (named,) = (meet(loaded, Meeting(data=data), clients=4).federations for data in ("", "digits"))
    assert named.digest() == unnamed.digest()


def test_a_copy_of_the_runs_own_data_deals_no_members_either(runs: Callable[[str], Path], tmp_path: Path) -> None:
    """What is in a file counts, not what it is called: digits.npz of $LATECOMER_DATA is digits, too."""
    loaded, own = latecomer.load(runs("pefll")), load("digits")
    np.savez(tmp_path / "copy.npz", **{name: getattr(own, name) for name in REQUIRED})
    (unnamed,) = meet(loaded, clients=4).federations
    (copied,) = meet(loaded, Meeting(data=f"npz:{tmp_path / 'copy.npz'}"), clients=4).federations
    assert copied.digest() == unnamed.digest()


def test_data_that_changed_since_are_noticed(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    y = np.arange(200) % 4
    np.savez(tmp_path / "own.npz", x_train=x[:160], y_train=y[:160], x_test=x[160:], y_test=y[160:])
    own = {"data": f"npz:{tmp_path / 'own.npz'}", "model": "mlp", "out": str(tmp_path)}
    assert Run.begin(Experiment.parse("fedavg", {**TINY, **own})).go() is not None
    np.savez(tmp_path / "own.npz", x_train=x[:160], y_train=y[:160][::-1], x_test=x[160:], y_test=y[160:])
    for split in ({}, {"clients": 4}):
        with pytest.raises(DataError, match="not those that the run was trained on"):
            meet(latecomer.load(tmp_path / "run"), **split)


def test_a_meeting_has_the_settings_it_is_given(runs: Callable[[str], Path]) -> None:
    loaded = latecomer.load(runs("pefll"))
    met = meet(loaded, partition="dirichlet", alpha=0.5, clients=5, rotations=(45,))
    (federation,), late = met.federations, loaded.method.members
    assert federation.rotation[late:].tolist() == [45] * (len(federation) - late)
    assert len(met.scores[0].ids) == len(federation) - late
    (thin,) = meet(loaded, Meeting(share=0.5), clients=5).federations
    (thick,) = meet(loaded, clients=5).federations
    whole, half = thick.train.sizes[late:], thin.train.sizes[late:]
    assert ((half - whole / 2).abs() <= 1).all()
    assert torch.equal(thin.test.index, thick.test.index)


def test_a_meeting_writes_a_result_like_a_runs(command: Command, runs: Callable[[str], Path], tmp_path: Path) -> None:
    done = command("meet", str(runs("pefll")), "--clients", "4", "--out", str(tmp_path), "--name", "m")
    assert done.code == 0
    assert done.err == "Note: 1 of 4 clients had no example to train or to test on and were dropped.\n"
    assert done.out.splitlines()[-1] == str(tmp_path / "m")
    result = json.loads((tmp_path / "m" / "result.json").read_text())
    assert result["run"] == "run"
    assert 0 <= result["unseen"]["accuracy"] <= 100
    with (tmp_path / "m" / "clients.csv").open() as file:
        assert [row["role"] for row in csv.DictReader(file)] == ["latecomer"] * 3
    assert "clients = 4" in (tmp_path / "m" / "settings.toml").read_text()


def test_a_run_can_be_loaded_without_its_data(runs: Callable[[str], Path], tmp_path: Path, mine: Any) -> None:
    path = shutil.copytree(runs("fedavgplus"), tmp_path / "elsewhere")
    text = (path / "settings.toml").read_text()
    assert text.count('data = "digits"') == 1
    assert latecomer.load(path).describe()["needs_labels"] is True
    guesses = latecomer.load(path).predict(mine[0], *mine)
    assert guesses.shape == (len(mine[0]),)
    assert latecomer.load(path).score(*mine, *mine) == pytest.approx(100 * (guesses == mine[1]).mean())


def test_labels_are_held_out_as_in_training(runs: Callable[[str], Path], mine: Any) -> None:
    loaded, (x, y) = latecomer.load(runs("pefll")), mine
    facts = loaded.personalise(x, y).facts
    assert facts["held_out"]["examples"] == pytest.approx(0.2 * len(y), abs=1)
    assert facts["examples"] + facts["held_out"]["examples"] == len(y)
    assert loaded.personalise(x, y, held_out=(x[:0], y[:0])).facts["held_out"]["examples"] == 0
    unlabelled = latecomer.load(runs("flowdup")).personalise(x)
    assert unlabelled.facts["examples"] == len(x)
    assert unlabelled.facts["classes_seen"] == {}


def test_the_last_label_is_not_held_out_where_a_model_needs_one(runs: Callable[[str], Path], mine: Any) -> None:
    x, y = mine[0][:5], np.array([3, -1, -1, -1, -1])
    facts = latecomer.load(runs("pefll")).personalise(x, y).facts
    assert (facts["examples"], facts["held_out"]["examples"]) == (5, 0)


def wrong(kind: type[LatecomerError], words: str, work: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=words) as caught:
        work()
    assert "\n" not in str(caught.value)


def test_wrong_data_are_one_sentence(runs: Callable[[str], Path], mine: Any, tmp_path: Path) -> None:
    loaded, (x, y) = latecomer.load(runs("pefll")), mine
    wrong(DataError, "needs labels.*odpflhn", lambda: loaded.personalise(x))
    wrong(
        DataError, r"trained on uint8 \[8, 8, 1\]", lambda: loaded.personalise(np.zeros((3, 9, 9), np.uint8), [0] * 3)
    )
    wrong(DataError, "the label 10", lambda: loaded.personalise(x, y * 0 + 10))
    wrong(DataError, "is empty", lambda: loaded.personalise(x[:0], y[:0]))
    wrong(DataError, "one label for", lambda: loaded.personalise(x, y[1:]))
    wrong(DataError, "trained on uint8", lambda: loaded.personalise(x / 255.0, y))
    wide = x.astype(np.int64).reshape(-1, 8, 8, 1)
    wrong(DataError, "from 0 to 255", lambda: loaded.personalise(wide + 256, y))
    assert np.array_equal(loaded.personalise(wide, y).logits(x), loaded.personalise(x, y).logits(x))
    wrong(DataError, "not all alike", lambda: loaded.personalise([[1], [1, 2]], [0, 1]))
    wrong(SettingError, "no seed 5", lambda: loaded.personalise(x, y, seed=5))
    wrong(SettingError, "must be below", lambda: loaded.personalise(x, y, client=10**12))
    wrong(SettingError, "is a member", lambda: loaded.personalise(x, y, client=0))
    wrong(DataError, "no label", lambda: loaded.personalise(x, y).score(x, y * 0 - 1))
    wrong(SettingError, "members are not trained", lambda: meet(loaded, unseen=0.5))
    np.savez(
        tmp_path / "wide.npz",
        **{f"{k}_{s}": np.zeros((4, 9, 9) if k == "x" else 4, np.uint8) for k in "xy" for s in ("train", "test")},
    )
    wrong(DataError, "trained on uint8", lambda: meet(loaded, Meeting(data=f"npz:{tmp_path / 'wide.npz'}")))
    wrong(SettingError, "needs a client's labels", lambda: meet(loaded, unseen_labelled=False))


def test_a_wrong_run_is_one_sentence(runs: Callable[[str], Path], tmp_path: Path) -> None:
    wrong(RunError, "not a run folder", lambda: latecomer.load(tmp_path))
    unfinished = shutil.copytree(runs("pefll"), tmp_path / "unfinished")
    (unfinished / "result.json").unlink()
    wrong(RunError, "not finished", lambda: latecomer.load(unfinished))
    bare = shutil.copytree(runs("pefll"), tmp_path / "bare")
    text = (bare / "settings.toml").read_text()
    (bare / "settings.toml").write_text(text[: text.index("[task]")])
    wrong(RunError, "changed after", lambda: latecomer.load(bare))


def test_a_checkpoint_that_does_not_say_its_round_is_one_sentence(runs: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(runs("pefll"), tmp_path / "hostile")
    latest = json.loads((folder / "checkpoint" / "latest.json").read_text())
    for best in (3, None, [3], [{"x": 1}]):
        (folder / "checkpoint" / "latest.json").write_text(json.dumps(latest | {"best": best}))
        wrong(RunError, "is damaged", lambda: latecomer.load(folder))


def test_a_folder_is_whole_or_not_there(runs: Callable[[str], Path], mine: Any, tmp_path: Path) -> None:
    model = latecomer.load(runs("pefll")).personalise(*mine)
    folder = model.save(tmp_path / "mine", onnx=False)
    wrong(ModelError, "exists already", lambda: model.save(folder))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
    (folder / "model.safetensors").write_bytes(b"")
    wrong(ModelError, "damaged", lambda: Personal.open(folder))
    (folder / "config.json").write_text("[]")
    wrong(ModelError, "cannot be read as a model", lambda: Personal.open(folder))
    wrong(ModelError, "cannot be read as a model", lambda: Personal.open(tmp_path / "nowhere"))


def test_the_command_line_makes_a_model_and_predicts(
    command: Command, runs: Callable[[str], Path], mine: Any, tmp_path: Path
) -> None:
    x, y = mine
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    folder, table = str(tmp_path / "model"), tmp_path / "labels.csv"
    done = command("personalise", str(runs("pefll")), "--data", str(tmp_path / "mine.npz"), "-o", folder, "--no-onnx")
    assert done.code == 0
    assert done.out.splitlines()[-1] == folder
    assert "checkpoint" in Path(folder, "README.md").read_text()
    done = command("predict", folder, "--data", str(tmp_path / "mine.npz"), "-o", str(table))
    assert done.code == 0
    with table.open() as file:
        labels = [int(row["label"]) for row in csv.DictReader(file)]
    assert labels == Personal.open(folder).predict(x).tolist()
    assert f"{100 * (np.array(labels) == y).mean():.1f} %" in done.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("personalise",), "Say what it is about"),
        (("personalise", "RUN"), "--data is needed"),
        (("personalise", "RUN", "--data", "nowhere.npz", "-o", "x"), "There is no file"),
        (("predict", "nowhere", "--data", "nowhere.npz", "-o", "x"), "cannot be read as a model"),
        (("meet", "nowhere"), "not a run folder"),
        (("meet", "RUN", "--name", "a/b"), "plain name"),
        (("meet", "RUN", "--name", ".."), "plain name"),
        (("meet", "RUN", "--partition", "clases"), "did you mean 'classes'"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    command: Command,
    words: tuple[str, ...],
    sentence: str,
    runs: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*(runs("pefll") if word == "RUN" else word for word in words))
    assert done.code == 2
    assert sentence in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
