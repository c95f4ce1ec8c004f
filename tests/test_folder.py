"""A run folder: what appears, appears whole, and a crash loses nothing that was there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from latecomer import folder as module
from latecomer.errors import RunError
from latecomer.folder import Folder


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
    assert files(folder.path.parent) == {"x/settings.toml", "x/metrics.jsonl", "x/ledger.jsonl"}
    assert Folder.open(folder.path).settings == "a = 1\n"


def test_a_folder_is_made_once(folder: Folder) -> None:
    with pytest.raises(RunError, match="exists already"):
        Folder.create(folder.path, "a = 2\n")
    assert Folder.open(folder.path).settings == "a = 1\n"


def test_a_folder_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be made"):
        Folder.create(tmp_path / "file" / "x", "")
    (tmp_path / "full").mkdir()
    with pytest.raises(RunError, match="cannot be made: File name too long"):
        Folder.create(tmp_path / "full" / ("x" * 250), "")
    assert files(tmp_path) == {"file"}


def test_no_settings_no_run_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunError, match="is not a run folder"):
            Folder.open(path)


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
        raise OSError("No space left on device")

    def no_text(self: Path, *_: Any, **__: Any) -> int:
        self.write_bytes(b'{"format"')
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*((module, "save_file", half) if culprit == "tensors" else (Path, "write_text", no_text)))
        with pytest.raises(OSError, match="No space left"):
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
    folder.load()
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]
    assert (folder.path / "ledger.jsonl").read_text() == ""


def test_logs_hold_nothing_that_json_does_not_know(folder: Folder) -> None:
    folder.append("metrics.jsonl", [{"runs": [{"validation": float("nan"), "seen": 1.5}]}])
    assert (folder.path / "metrics.jsonl").read_text() == '{"runs": [{"validation": null, "seen": 1.5}]}\n'


def test_without_a_checkpoint_the_logs_begin_anew(folder: Folder) -> None:
    folder.append("metrics.jsonl", [{"round": 1}])
    assert folder.load() is None
    assert (folder.path / "metrics.jsonl").read_text() == ""


def test_a_log_shorter_than_the_checkpoint_says_is_refused(folder: Folder) -> None:
    folder.append("metrics.jsonl", [{"round": 1}])
    folder.save(tensors(1.0), facts(2))
    (folder.path / "metrics.jsonl").write_text("{")
    with pytest.raises(RunError, match=r"metrics\.jsonl is cut short: it has 1 bytes, not 13"):
        folder.load()


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
    with pytest.raises(RunError, match=f"has format {module.FORMAT + 1}; .* so update it"):
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


def test_two_cannot_work_in_one_folder(folder: Folder) -> None:
    other = Folder.open(folder.path)
    with folder.held(), pytest.raises(RunError, match="Another process is at work"), other.held():
        pass
    with other.held():
        pass


def test_a_result_comes_after_its_table(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not folder.finished
    folder.write_result({"rounds": 3}, [{"client": 0, "test": 90.5}, {"client": 1, "test": 80.0}])
    assert folder.finished
    assert (folder.path / "clients.csv").read_text().splitlines() == ["client,test", "0,90.5", "1,80.0"]
    assert json.loads((folder.path / "result.json").read_text()) == {"rounds": 3}
