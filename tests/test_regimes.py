"""The map of regimes: winners, margins and ties worked out by hand, and what it makes of runs that do not belong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from latecomer.errors import RunError, SettingError
from latecomer.study.analyses import Analysis, analyse
from latecomer.study.figure import Panels, Tiles
from latecomer.study.recipe import Recipe
from latecomer.study.tune import table

CLASSES = {"partition": "classes", "examples": 5}


def fabricate(folder: Path, method: str, late: list[float], watched: list[float] | None = None, **run: Any) -> Path:
    """A run with a member and some latecomers; `watched` are their means at rounds 10, 20 and 30, each of two seeds.

    Validation likes round 20 best.
    """
    path = folder / f"{method}-{len([*folder.iterdir()])}"
    path.mkdir(parents=True)
    rows = ["seed,client,accuracy,own_classes,role,classes"]
    for seed in (0, 1):
        rows += [f"{seed},0,50,50,member,0:1"]
        rows += [f"{seed},{k + 1},{score},{score},latecomer,0:1" for k, score in enumerate(late)]
    (path / "clients.csv").write_text("\n".join(rows) + "\n")
    told = {"partition": "iid", "examples": 0, "unseen_labelled": True, "permutations": 0} | run
    data = told.pop("data", "digits")
    splits = told.pop("splits", ["a", "b"])
    words = "\n".join(f"{key} = {json.dumps(value)}" for key, value in told.items())
    (path / "settings.toml").write_text(f"[run]\nmethod = '{method}'\n{words}\n[about]\nsplits = {splits}\n")
    (path / "result.json").write_text(
        json.dumps({"method": method, "data": data, "rounds": 30, "seeds": [0, 1], "seconds": 1.0})
    )
    lines = []
    for number, validation, score in zip((10, 20, 30), (40.0, 60.0, 50.0), watched or (0.0, 0.0, 0.0), strict=True):
        late_now = {"unseen": {"accuracy": score}} if watched else {}
        each = [{"seed": seed, "validation": validation, **late_now} for seed in (0, 1)]
        lines.append(json.dumps({"round": number, "runs": each}))
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return path


def found(*runs: Path, **settings: Any) -> Analysis:
    return analyse("regimes", runs, settings)


def tiles(analysis: Analysis) -> dict[str, Tiles]:
    assert isinstance(analysis.figure, Panels)
    return {one.title: one for one in analysis.figure.figures if isinstance(one, Tiles)}


def test_a_winner_that_can_be_told_apart_has_the_field_to_itself(tmp_path: Path) -> None:
    """Differences to the second are 9, 10, 11 twice: mean 10, deviation 0.894; one of two intervals, so Student's t is
    at 1 - 0.025 / 2, and 3.163 * 0.894 / sqrt(6) = 1.155."""
    runs = [
        fabricate(tmp_path, "local", [20, 30, 40], **CLASSES),
        fabricate(tmp_path, "pefll", [49, 60, 71], **CLASSES),
        fabricate(tmp_path, "fedavg", [40, 50, 60], **CLASSES),
    ]
    analysis = found(*runs)
    expected = ["classes", "with labels", "5", 30, "pefll", 60.0, "fedavg", "+10.0 [+8.8, +11.2]", ""]
    assert analysis.rows == [expected]
    (tile,) = tiles(analysis)["classes, latecomers with labels"].tiles
    assert (tile.names, tile.text) == (["pefll"], "pefll 60.0\n+10.0 to fedavg")
    assert analysis.notes[0] == "Fields: 1. pefll leads in 1."


def test_a_tie_is_shown_as_one(tmp_path: Path) -> None:
    """More for a client and less for another: nobody can tell. The third is some 30 behind on each, and told apart."""
    runs = [
        fabricate(tmp_path, "fedavg", [50, 52], permutations=4),
        fabricate(tmp_path, "pefll", [60, 44], permutations=4),
        fabricate(tmp_path, "local", [29, 15], permutations=4),
    ]
    analysis = found(*runs)
    assert analysis.rows[0][0] == "permuted labels"
    assert analysis.rows[0][4:7] == ["pefll", 52.0, "fedavg"]
    assert analysis.rows[0][8] == "fedavg"
    (tile,) = tiles(analysis)["permuted labels, latecomers with labels"].tiles
    assert (tile.names, tile.text) == (["pefll", "fedavg"], "pefll 52.0\ntie of 2")
    assert analysis.notes[0] == "Fields: 1. ties: 1."


def test_runs_of_a_field_that_differ_besides_are_said(tmp_path: Path) -> None:
    some = {"partition": "rotations", "cohort": 5, "model": "mlp"}
    one = fabricate(tmp_path, "fedavg", [50, 52], **some)
    assert found(one, fabricate(tmp_path, "pefll", [60, 44], **some)).notes[2:] == []
    other = fabricate(tmp_path, "flowdup", [60, 44], **some | {"cohort": 50, "model": "lenet"})
    assert found(one, other).notes[2:] == [
        "Runs of one field differ in --cohort, --model, too, not in their methods alone."
    ]


def test_shorter_trainings_are_read_off_the_round_that_validation_selects(tmp_path: Path) -> None:
    """At 10 rounds 30 against 20, at 20 rounds 40 against 70; what came at round 30 validation did not select."""
    runs = [
        fabricate(tmp_path, "fedavg", [40, 40], [30, 40, 99], partition="rotations"),
        fabricate(tmp_path, "pefll", [70, 70], [20, 70, 10], partition="rotations"),
    ]
    rows = found(*runs, shares="0.34,0.7,0.99").rows
    assert [row[3:6] for row in rows] == [
        [10, "fedavg", 30.0],
        [21, "pefll", 70.0],
        [30, "pefll", 70.0],
    ]
    assert rows[0][0] == "turned images"


def test_latecomers_choose_no_round(tmp_path: Path) -> None:
    """Validation likes round 20 best, at which 40 stands against 70, though at round 10 it was 90 against 20."""
    runs = [
        fabricate(tmp_path, "fedavg", [40, 40], [90, 40, 0], partition="rotations"),
        fabricate(tmp_path, "pefll", [70, 70], [20, 70, 0], partition="rotations"),
    ]
    assert found(*runs, shares="0.7").rows[0][3:7] == [21, "pefll", 70.0, "fedavg"]


def test_panels_have_a_place_for_every_kind_and_sort_of_latecomer(tmp_path: Path) -> None:
    runs = [
        fabricate(tmp_path, "fedavg", [40, 41], **CLASSES),
        fabricate(tmp_path, "fedavg", [40, 41], **CLASSES | {"examples": 20}),
        fabricate(tmp_path, "flowdup", [40, 41], permutations=2, unseen_labelled=False),
    ]
    analysis = found(*runs)
    panels = tiles(analysis)
    assert list(panels) == [
        "classes, latecomers with labels",
        "permuted labels, latecomers with labels: no runs",
        "classes, latecomers without labels: no runs",
        "permuted labels, latecomers without labels",
    ]
    assert panels["classes, latecomers with labels"].columns == ["5", "20", "all"]
    assert panels["permuted labels, latecomers without labels"].tiles[0].text == "flowdup 40.5\nalone"
    written, missed = analysis.save(tmp_path / "out", "map")
    assert [path.name for path in written] == ["map.json"] + ["map.svg"] * (not missed)
    assert all(path.stat().st_size for path in written)


def test_runs_that_do_not_belong_are_refused(tmp_path: Path) -> None:
    one = fabricate(tmp_path, "fedavg", [40, 41])
    with pytest.raises(SettingError, match="runs of one method in one regime"):
        found(one, fabricate(tmp_path, "fedavg", [1, 2]))
    with pytest.raises(SettingError, match="One map is of one data set"):
        found(one, fabricate(tmp_path, "pefll", [1, 2], data="mnist"))
    with pytest.raises(SettingError, match="had no latecomers"):
        found(fabricate(tmp_path, "local", []))
    with pytest.raises(SettingError, match="did not watch latecomers"):
        found(one, shares="0.5")
    with pytest.raises(RunError, match="their clients are no pairs"):
        found(one, fabricate(tmp_path, "local", [1, 2], splits=["c", "d"]))


def test_the_recipe_has_rows_in_some_columns_and_columns_that_are_tuned_elsewhere() -> None:
    recipe = Recipe.find("regimes/fashion-mnist")
    there = {(cell.row, cell.column) for cell in recipe.cells()}
    assert len({row for row, _ in there}) >= 6
    assert ("local", "classes-5") in there
    assert ("local", "classes-5-unlabelled") not in there
    assert ("odpflhn", "classes-5-unlabelled") in there
    searched = {cell.column for cell in table.cells(recipe, False, ())}
    assert searched == {f"{kind}-{n}{free}" for kind in ("classes", "turned", "permuted") for n in (20, 100)
                        for free in ("", "-unlabelled")}  # fmt: skip
    assert not any("tuned_at" in cell.settings or "columns" in cell.settings for cell in recipe.cells())


def test_columns_that_are_searched_elsewhere_say_so() -> None:
    recipe = Recipe.find("regimes/fashion-mnist")
    with pytest.raises(SettingError, match=r"Of classes-5 nothing is searched: .* are searched at classes-20"):
        table.cells(recipe, False, ["classes-5"])
    assert {cell.column for cell in table.cells(recipe, False, ["classes-5", "turned-20"])} == {"turned-20"}
