"""A run folder: what appears, appears whole, and a crash loses nothing that was there."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from latecomer.errors import RunError
from latecomer.runs import folder as module
from latecomer.runs.files import Replacing
from latecomer.runs.folder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.create(tmp_path / "runs" / "x", "a = 1\n")


def tensors(value: float) -> dict[str, Any]:
    return {"0": {"state": {"w": torch.full((3,), value), "n": torch.tensor(2)}}}


def facts(number: int) -> dict[str, Any]:
    return {"round": number, "seconds": 0.5}


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def test_a_new_folder_has_its_settings(folder: Folder) -> None:
    begun = {"x/settings.toml", "x/metrics.jsonl", "x/ledger.jsonl", "x/checkpoint/latest.json"}
    assert files(folder.path.parent) == begun
    assert Folder.open(folder.path).settings == "a = 1\n"


def test_a_folder_is_made_once(folder: Folder) -> None:
    with pytest.raises(RunError, match="exists already"):
        Folder.create(folder.path, "a = 2\n")
    assert Folder.open(folder.path).settings == "a = 1\n"
    assert [Folder.create(folder.path, "", another=True).path.name for _ in range(2)] == ["x-2", "x-3"]
    assert {path.name for path in folder.path.parent.iterdir()} == {"x", "x-2", "x-3"}


def test_a_folder_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be made"):
        Folder.create(tmp_path / "file" / "x", "")
    (tmp_path / "full").mkdir()
    with pytest.raises(RunError, match="cannot be made: File name too long"):
        Folder.create(tmp_path / "full" / ("x" * 300), "")
    assert files(tmp_path) == {"file"}


def test_no_settings_no_run_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunError, match="is not a run folder"):
            Folder.open(path)
    with pytest.raises(RunError, match="cannot be read: File name too long"):
        Folder.open(tmp_path / ("x" * 300))


def test_a_checkpoint_comes_back(folder: Folder) -> None:
    assert folder.load() is None
    folder.save(tensors(1.5), facts(3))
    found = Folder.open(folder.path).load()
    assert found is not None
    assert found[0]["0"]["state"]["w"].tolist() == [1.5, 1.5, 1.5]
    assert found[1]["round"] == 3
    folder.save(tensors(2.5), facts(4))
    assert files(folder.path / "checkpoint") == {"latest.json", "round-00000004.safetensors"}


def test_order_and_empty_branches_come_back(folder: Folder) -> None:
    state = {"z": {"weight": torch.ones(2), "bias": torch.zeros(1)}, "optimiser": {}, "a": torch.tensor(3)}
    folder.save({"0": {"state": state}}, facts(1))
    found = folder.load()
    assert found is not None
    assert json.dumps(found[0], default=str) == json.dumps({"0": {"state": state}}, default=str)


@pytest.mark.parametrize("culprit", ["tensors", "latest"])
def test_a_save_that_fails_leaves_the_old_checkpoint(
    folder: Folder, culprit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save(tensors(1.0), facts(1))

    def half(_flat: Any, path: Path, _metadata: Any) -> None:
        path.write_bytes(b"half of a file")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    def no_text(self: Path, *_: Any, **__: Any) -> int:
        self.write_bytes(b'{"format"')
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*((module, "save_file", half) if culprit == "tensors" else (Path, "write_text", no_text)))
        with pytest.raises(RunError, match=r"x cannot be written to: No space left on device; .* latecomer resume"):
            folder.save(tensors(2.0), facts(2))
    found = Folder.open(folder.path).load()
    assert found is not None
    assert found[1]["round"] == 1
    assert found[0]["0"]["state"]["w"].tolist() == [1.0, 1.0, 1.0]
    assert not [name for name in files(folder.path) if name.endswith(".new")]
    folder.save(tensors(3.0), facts(3))
    assert files(folder.path / "checkpoint") == {"latest.json", "round-00000003.safetensors"}


def test_logs_are_cut_back_to_the_checkpoint(folder: Folder) -> None:
    folder.append("metrics.jsonl", [{"round": 1}, {"round": 2}])
    folder.save(tensors(1.0), facts(2))
    folder.append("metrics.jsonl", [{"round": 3}])
    with (folder.path / "ledger.jsonl").open("a") as file:
        file.write('{"round": 3, "st')  # a process killed in the middle of a line
    assert folder.load() is not None
    assert (folder.path / "ledger.jsonl").read_text(), "looking changes nothing"
    folder.rewind()
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]
    assert (folder.path / "ledger.jsonl").read_text() == ""


def test_logs_hold_nothing_that_json_does_not_know(folder: Folder) -> None:
    folder.append("metrics.jsonl", [{"runs": [{"validation": float("nan"), "seen": 1.5}]}])
    assert (folder.path / "metrics.jsonl").read_text() == '{"runs": [{"validation": null, "seen": 1.5}]}\n'


def test_without_a_checkpoint_the_logs_begin_anew(folder: Folder) -> None:
    folder.append("metrics.jsonl", [{"round": 1}])
    assert folder.load() is None
    folder.rewind()
    assert (folder.path / "metrics.jsonl").read_text() == ""


def test_a_log_shorter_than_the_checkpoint_says_is_refused(folder: Folder) -> None:
    folder.append("metrics.jsonl", [{"round": 1}])
    folder.save(tensors(1.0), facts(2))
    folder.append("ledger.jsonl", [{"round": 3}])
    (folder.path / "metrics.jsonl").write_text("{")
    with pytest.raises(RunError, match=r"metrics\.jsonl is cut short: it has 1 bytes, not 13"):
        folder.rewind()
    assert (folder.path / "ledger.jsonl").read_text(), "all of them are looked at before one is cut"


def edit_latest(folder: Folder, **changes: Any) -> None:
    path = folder.path / "checkpoint" / "latest.json"
    path.write_text(json.dumps({k: v for k, v in {**json.loads(path.read_text()), **changes}.items() if v is not None}))


def test_damage_is_told_in_one_sentence(folder: Folder) -> None:
    folder.save(tensors(1.0), facts(2))
    weights = folder.path / "checkpoint" / "round-00000002.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-7])
    with pytest.raises(RunError, match=f"is truncated: it has {len(whole) - 7} bytes, not {len(whole)}"):
        folder.load()
    weights.write_bytes(b"\xff" * len(whole))
    with pytest.raises(RunError, match=r"round-00000002\.safetensors is damaged"):
        folder.load()
    edit_latest(folder, bytes=None)
    with pytest.raises(RunError, match=r"latest\.json lacks bytes"):
        folder.load()
    edit_latest(folder, format=module.FORMAT + 1)
    with pytest.raises(RunError, match=f"has format {module.FORMAT + 1}; .* reads format {module.FORMAT}"):
        folder.load()
    for text in ("", "{", "[]", '"x"', '{"format": "new"}'):
        (folder.path / "checkpoint" / "latest.json").write_text(text)
        with pytest.raises(RunError, match=r"latest\.json cannot be read"):
            folder.load()


def test_changed_settings_are_noticed(folder: Folder) -> None:
    folder.save(tensors(1.0), facts(2))
    (folder.path / "settings.toml").write_text("a = 2\n")
    folder.save(tensors(1.0), facts(3))  # by the process that began with the old ones
    with pytest.raises(RunError, match="was changed after the run began"):
        Folder.open(folder.path).load()


def test_changed_settings_are_noticed_before_the_first_checkpoint(folder: Folder) -> None:
    (folder.path / "settings.toml").write_text("a = 2\n")
    with pytest.raises(RunError, match="was changed after the run began"):
        Folder.open(folder.path).load()


def test_two_cannot_work_in_one_folder(folder: Folder) -> None:
    other = Folder.open(folder.path)
    with pytest.raises(RunError, match="Another process is at work"):
        other.hold()  # a new folder is held by whoever made it
    folder.release()
    with other.held(), pytest.raises(RunError, match="Another process is at work"):
        folder.hold()
    folder.hold()
    folder.hold()


def test_a_flipped_bit_is_noticed(folder: Folder) -> None:
    folder.save(tensors(1.0), facts(2))
    weights = folder.path / "checkpoint" / "round-00000002.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1
    weights.write_bytes(content)
    for look in (folder.load, folder.peek):
        with pytest.raises(RunError, match=r"round-00000002\.safetensors is damaged: it is not what was saved\.$"):
            look()


HOSTILE: dict[str, dict[str, Any]] = {
    "logs": {"logs": {"../../theirs": 0}},
    "more logs": {"logs": {"metrics.jsonl": 0, "ledger.jsonl": 0, "../../theirs": 0}},
    "a log less": {"logs": {"metrics.jsonl": 0}},
    "no logs": {"logs": 3},
    "less than nothing of a log": {"logs": {"metrics.jsonl": -1, "ledger.jsonl": 0}},
    "a part of a byte": {"logs": {"metrics.jsonl": 0.5, "ledger.jsonl": True}},
    "tensors elsewhere": {"tensors": "../../../theirs"},
    "tensors elsewhere by a good name": {"tensors": "../round-00000001.safetensors"},
    "tensors of no name": {"tensors": ["round-00000001.safetensors"]},
    "bytes": {"bytes": "100"},
    "digest": {"digest": 5},
    "round": {"round": "2"},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_cannot_be_right_is_damage_and_nothing_is_cut(folder: Folder, changes: dict[str, Any]) -> None:
    theirs = folder.path.parent.parent / "theirs"
    theirs.write_text("dear to somebody")
    folder.append("metrics.jsonl", [{"round": 1}])
    folder.save(tensors(1.0), facts(2))
    edit_latest(folder, **changes)
    for work in (folder.load, folder.rewind, folder.peek):
        with pytest.raises(RunError, match=r"is damaged: \w+ in latest\.json cannot be right\.$"):
            work()
    assert theirs.read_text() == "dear to somebody"
    assert (folder.path / "metrics.jsonl").read_text()


@pytest.mark.parametrize("name", ["metrics.jsonl", "ledger.jsonl", "checkpoint"])
def test_a_link_is_not_followed(folder: Folder, name: str, tmp_path: Path) -> None:
    folder.save(tensors(1.0), facts(2))
    theirs = tmp_path / "theirs"
    (folder.path / name).rename(theirs)
    (folder.path / name).symlink_to(theirs)
    if name != "checkpoint":
        theirs.write_text("dear to somebody")
        with pytest.raises(RunError, match="cannot be written to"):
            folder.append(name, [{"round": 3}])
    for work in (folder.load, folder.rewind):
        with pytest.raises(RunError, match=f"{name} is not a (file|folder) of the run's own"):
            work()
    assert name == "checkpoint" or theirs.read_text() == "dear to somebody"


def test_a_draft_that_is_a_link_is_not_followed(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("dear to somebody")
    for draft in ("checkpoint/.latest.json.new", "checkpoint/.round-00000002.safetensors.new", ".result.json.new"):
        (folder.path / draft).symlink_to(tmp_path / "theirs")
    folder.save(tensors(1.0), facts(2))
    folder.write_result({}, [{"client": 0}])
    assert (tmp_path / "theirs").read_text() == "dear to somebody"
    assert folder.load() is not None


@pytest.mark.parametrize("gone", ["checkpoint", "checkpoint/latest.json", "metrics.jsonl"])
def test_what_is_missing_is_said_before_anything_is_cut(folder: Folder, gone: str) -> None:
    folder.append("ledger.jsonl", [{"round": 1}])
    folder.save(tensors(1.0), facts(1))
    folder.append("ledger.jsonl", [{"round": 2}])
    (folder.path / gone).rename(folder.path / "kept")
    for work in (folder.load, folder.rewind):
        with pytest.raises(RunError, match="put it back, or begin a new run"):
            work()
    assert (folder.path / "ledger.jsonl").read_text().count("\n") == 2


@pytest.mark.parametrize("work", [lambda folder: folder.rewind(), lambda folder: folder.save(tensors(2.0), facts(2))])
def test_what_a_killed_process_left_half_written_goes(folder: Folder, work: Callable[[Folder], None]) -> None:
    folder.save(tensors(1.0), facts(1))
    for draft in (".clients.csv.new", "checkpoint/.round-00000002.safetensors.new", "checkpoint/.tmpAbCdEf"):
        (folder.path / draft).write_bytes(b"half of a file")
    work(folder)
    names = {Path(name).name for name in files(folder.path)}
    assert not [name for name in names if name.startswith(".")]
    assert folder.load() is not None


@pytest.fixture
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002], indirect=True)
def test_all_files_have_the_same_mode(mask: int, tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "x", "a = 1\n")
    folder.save(tensors(1.0), facts(2))
    folder.write_result({}, [{"client": 0}])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.path.rglob("*") if path.is_file()}
    assert set(modes.values()) == {0o666 & ~mask}, modes


def test_a_folder_removed_meanwhile_is_one_sentence(folder: Folder) -> None:
    folder.path.rename(folder.path.with_name("elsewhere"))
    for work in (
        lambda: folder.append("metrics.jsonl", [{"round": 1}]),
        lambda: folder.save(tensors(1.0), facts(1)),
        lambda: folder.write_result({}, [{"client": 0}]),
    ):
        with pytest.raises(RunError, match="x was removed while the run was at work in it"):
            work()


def test_a_table_has_a_column_for_all_that_anybody_tells(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "x", "")
    folder.write_result({}, [{"client": 0}, {"client": 1, "told": 2}])
    assert (tmp_path / "x/clients.csv").read_text().split() == ["client,told", "0,", "1,2"]


def test_a_result_comes_after_its_table(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not folder.finished
    folder.write_result({"rounds": 3}, [{"client": 0, "test": 90.5}, {"client": 1, "test": 80.0}])
    assert folder.finished
    assert (folder.path / "clients.csv").read_text().splitlines() == ["client,test", "0,90.5", "1,80.0"]
    assert json.loads((folder.path / "result.json").read_text()) == {"rounds": 3}


def test_a_file_that_cannot_be_replaced_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError), Replacing(tmp_path / "taken") as draft:
        draft.write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
