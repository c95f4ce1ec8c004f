"""What papers say of figures, on a table by hand; and recipes that are like others."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from latecomer.errors import SettingError, UnknownName
from latecomer.study.claims import FigureClaim
from latecomer.study.recipe import Recipe

COLUMNS = ["run", "k", "accuracy", "other"]
ROWS = [["a", 1, 50.0, 1.0], ["a", 2, 60.0, 99.0], ["b", 1, 70.0, 1.0], ["b", 2, 65.0, 2.0]]


def told(text: str) -> list[str]:
    return [sentence.rpartition(": ")[2] for sentence in FigureClaim.read(text).checked(COLUMNS, ROWS)]


def test_a_claim_is_about_every_run_it_does_not_tell_apart() -> None:
    assert FigureClaim.read("accuracy: k=2 > k=1").checked(COLUMNS, ROWS) == [
        "a; accuracy: k=2 > k=1: holds (60.0 and 50.0)",
        "b; accuracy: k=2 > k=1: does not hold (65.0 and 70.0)",
    ]
    assert told("accuracy: run=b, k=1 > run=a, k=1") == ["holds (70.0 and 50.0)"]


def test_a_pair_has_the_same_words() -> None:
    """However a table is sorted; where one of them is missing, the other's numbers are not held against it."""
    claim = FigureClaim.read("accuracy: k=2 > k=1")
    assert claim.checked(COLUMNS, [ROWS[3], ROWS[1], *ROWS[::2]]) == claim.checked(COLUMNS, ROWS)
    assert claim.checked(COLUMNS, [ROWS[1], ROWS[2], ROWS[0]]) == [
        "accuracy: k=2 > k=1: cannot be told, as not all of its rows are there"
    ]
    apart = [*ROWS[:2], ["c", 1, 70.0, 1.0], ["d", 2, 65.0, 2.0]]
    assert claim.checked(COLUMNS, apart) == ["accuracy: k=2 > k=1: cannot be told, as not all of its rows are there"]


def test_within_and_between_columns() -> None:
    assert told("accuracy: run=b, k=1 within 5 of run=b, k=2") == ["holds (70.0 and 65.0)"]
    assert told("accuracy: run=b, k=2 within 4.9 of run=b, k=1") == ["does not hold (65.0 and 70.0)"]
    assert told("other: run=a, k=2 > accuracy: run=a, k=2") == ["holds (99.0 and 60.0)"]
    assert FigureClaim.read("r: k=2 > k=1").checked(["k", "r"], [[1, 0.521], [2, 0.636]]) == [
        "r: k=2 > k=1: holds (0.636 and 0.521)"
    ]
    assert FigureClaim.read("r: k=2 > k=1").checked(["k", "r"], [[1, 94.47], [2, 94.5]]) == [
        "r: k=2 > k=1: cannot be told (94.5 and 94.5)"
    ]


def test_what_is_not_there_cannot_be_told() -> None:
    assert told("accuracy: k=3 > k=1") == ["cannot be told, as not all of its rows are there"]
    table = [["a", 1, math.nan], ["a", 2, 60.0], ["a", 3, "-"]]
    for text in ("accuracy: k=2 > k=1", "accuracy: k=1 > k=2", "accuracy: k=1 within 3 of k=2", "accuracy: k=3 > k=2"):
        (sentence,) = FigureClaim.read(text).checked(COLUMNS[:3], table)
        assert "cannot be told" in sentence
    with pytest.raises(UnknownName, match="accurracy"):
        told("accurracy: k=2 > k=1")
    for missing in (math.nan, None, ""):
        for text in ("r: k=2 > k=1", "r: k=1 > k=2", "r: k=2 within 1 of k=1"):
            (said,) = FigureClaim.read(text).checked(["k", "r"], [[1, missing], [2, 0.5]])
            assert ": cannot be told (" in said, "a score that nobody has refutes nothing"
    for text in ("accuracy", "accuracy: k > k", "accuracy: k=1 < k=2", "accuracy: k=1 within x of k=2"):
        with pytest.raises(SettingError, match="A claim about a figure is"):
            FigureClaim.read(text)


BASE = """
title = "T"
metrics = ["seen.accuracy"]
[settings]
lr = 0.1
rounds = 5
[columns.a]
alpha = 0.1
[rows.fedavg]
[quick.settings]
rounds = 2
clients = 7
"""


def test_a_recipe_like_another_adds_settings_and_replaces_the_rest(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(BASE)
    other = 'like = "base"\nruns = "base"\n[settings]\nrounds = 9\n[columns.b]\n[quick.settings]\nrounds = 3\n'
    (tmp_path / "other.toml").write_text(other)
    recipe = Recipe.read(tmp_path / "other.toml", "x/other")
    (cell,) = recipe.cells()
    assert (cell.column, cell.settings) == ("b", {"method": "fedavg", "lr": 0.1, "rounds": 9})
    assert recipe.cells(quick=True)[0].settings == {"method": "fedavg", "lr": 0.1, "rounds": 3, "clients": 7}
    assert (recipe.name, recipe.runs) == ("x/other", "x/base")


def test_a_recipe_like_itself_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('like = "b"')
    (tmp_path / "b.toml").write_text('like = "a"')
    with pytest.raises(SettingError, match="is like itself"):
        Recipe.read(tmp_path / "a.toml")
