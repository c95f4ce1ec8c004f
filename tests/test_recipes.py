"""Recipes: that every file is one, and what `latecomer reproduce` makes of a small one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from console import Command
from latecomer import methods
from latecomer.cli.columns import grid, pages
from latecomer.errors import LatecomerError, SettingError, UnknownName
from latecomer.runs.experiment import Experiment
from latecomer.runs.run import Run
from latecomer.settings import parse, settings_of
from latecomer.study import analyses, recipe_file, reproduce
from latecomer.study.claims import FigureClaim
from latecomer.study.finished import Finished
from latecomer.study.recipe import Recipe
from latecomer.study.recipe_checks import ANALYSIS
from latecomer.study.recipe_file import number
from latecomer.study.tune import table as tuning
from latecomer.study.tune.search import Choice

NAMES = recipe_file.names()
SMALL = ("digits", "mnist", "fashion-mnist", "omniglot")  # and shakespeare:STEP


@pytest.mark.parametrize("name", NAMES)
def test_recipe_is_complete(name: str) -> None:
    found = Recipe.find(name)
    assert found.title
    assert found.about
    assert found.metrics
    assert found.paper or name.startswith(("fair/", "regimes/")), "a table of a paper says of which"
    assert found.explained(quick=True), "a quick version says what it has in the place of the paper's"
    assert len({cell.name for cell in found.cells()}) == len(found.cells()), "folders would collide"
    for key, texts in found.numbers.items():
        assert all(text == "" or 0 <= number(text)[0] <= 100 for text in texts), key
    asked = found.told["quick"].get("claims", found.told.get("claims"))
    assert bool(found.claims(quick=True)) == bool(asked), "no claim is about a cell of the quick version"
    there = {(cell.row, cell.column) for cell in found.cells()}
    assert {*found.numbers} <= there, "a number of the paper's is of no cell"
    for text in found.told.get("claims", []):
        alone = replace(found, told={**found.told, "claims": [text]})
        assert alone.claims(), f"{text} is about no cell, and would be left out without a word"


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_can_be_run(name: str) -> None:
    """Settings exist and have values that are allowed; no data are read."""
    found, seen = Recipe.find(name), list[dict[str, Any]]()
    for quick in (False, True):
        for cell in found.cells(quick):
            values = dict(cell.settings)
            if values not in seen:
                seen.append(values)
                experiment = Experiment.parse(cell.settings["method"], _without(values, "method"))
                small = experiment.settings.data.partition(":")[0] in (*SMALL, "shakespeare")
                assert small or not quick, f"{cell} is not quick on {experiment.settings.data}"


@pytest.mark.parametrize(
    ("name", "theirs", "column", "own"),
    [
        ("flowdup/table-10", "pefll/table-1", "500", "flowdup/table-1"),
        ("flowdup/table-10-femnist", "pefll/table-1-femnist", "", "flowdup/table-2-femnist"),
    ],
)
def test_a_table_made_of_two_others_has_their_settings(name: str, theirs: str, column: str, own: str) -> None:
    def settings(name: str, column: str) -> dict[str, dict[str, Any]]:
        found = {cell.row: dict(cell.settings) for cell in Recipe.find(name).cells() if cell.column == column}
        read = {row: Experiment.parse(some["method"], _without(some, "method")) for row, some in found.items()}
        return {row: asdict(one.settings) | dict(one.own) for row, one in read.items()}

    there = {**settings(theirs, column), "flowdup": settings(own, "1.0")["flowdup"]}
    here = settings(name, "")
    assert here == {row: there[row] for row in here}


@pytest.mark.parametrize("name", [name for name in NAMES if Recipe.find(name).tune])
def test_every_search_can_be_made(name: str) -> None:
    found = Recipe.find(name)
    rows = {cell.row: cell for cell in tuning.cells(found, False, ())}  # the last column stands for all
    assert {*rows} == {*found.tune["search"]} or "runs" in found.told, "rows that are searched are rows of the table"
    for cell in rows.values():
        search = tuning.search(found, cell, {})
        combinations = math.prod(
            len(some.values) for name in search.fixed if isinstance(some := search.space[name], Choice)
        )
        assert search.space
        assert combinations <= search.tuning.trials, f"{cell.row}: each of {search.fixed} has its turn"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("fair/", "regimes/"))])
def test_who_counts_passes_may_make_as_many_as_others(name: str) -> None:
    found = Recipe.find(name)
    for row, searched in found.tune["search"].items():
        own = settings_of(methods.get(row.partition("-")[0]))
        if passes := {"epochs", "body_epochs"} & own.keys():
            assert {"1|5|20", "5|20"} & {searched.get(key) for key in passes}, row


def test_a_column_narrows_the_search_of_every_row() -> None:
    """With 400 examples, 20 passes are five times the steps that others make."""
    found = Recipe.find("fair/cifar10")
    tried = {(cell.row, cell.column): tuning.search(found, cell, {}).space for cell in tuning.cells(found, False, ())}
    for (row, column), space in tried.items():
        for name in {"epochs", "body_epochs", "adapt_epochs"} & space.keys():
            assert str(space[name]) == ("1|5" if column == "100" else "1|5|20"), (row, column)
        assert {*space} == {*tried[row, "1000"]}


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("share = 0.25", (10, 3, 7)),
        ("rounds = 20", (20, 8, 15)),
        ("rounds = 20\nevaluate_every = 5", (20, 5, 15)),
        ("share = 2", "share = 2 in [tune]; it is above 0 and at most 1"),
        ("share = 0.25\nrounds = 20", "has share and rounds in [tune]"),
    ],
)
def test_a_trial_has_a_share_of_the_rounds(tmp_path: Path, budget: str, expected: tuple[int, int, int] | str) -> None:
    """Or as many as are told; with a share, it is evaluated after each quarter of them."""
    path = tmp_path / "own.toml"
    path.write_text(
        f"""title = "One method"
metrics = ["seen.accuracy"]
[settings]
rounds = 40
evaluate_every = 8
[rows.lgfedavg]
warmup = 30
[tune]
{budget}
[tune.search.lgfedavg]
lr = "0.1:1"
""",
        encoding="utf-8",
    )
    found = Recipe.find(str(path))
    if isinstance(expected, str):
        with pytest.raises(SettingError, match=re.escape(expected)):
            tuning.search(found, found.cells()[0], {})
        return
    asked = tuning.search(found, found.cells()[0], {})
    assert (asked.tuning.tune_rounds, asked.base.settings.evaluate_every, asked.base.own["warmup"]) == expected


@pytest.mark.parametrize("name", [name for name in NAMES if Recipe.find(name).analysis])
def test_every_figure_can_be_made(name: str) -> None:
    """The analysis exists and takes its settings; its rows are the table's."""
    found = Recipe.find(name)
    for quick in (False, True):
        wanted = found.analysed(quick)
        kind = analyses.get(str(wanted["name"]))
        parse(kind.Settings, wanted["settings"])
        assert {*wanted.get("rows", ())} <= {*found.rows}
        assert wanted.keys() <= ANALYSIS
        runs = {cell.name for cell in found.cells(quick)}
        for text in wanted.get("claims", []):
            named = {side["run"] for side in FigureClaim.read(text).sides if "run" in side}
            assert named <= runs, f"{text} could never be told"


# a recipe of the test's own

OWN = """
title = "Two methods"
paper = "Nobody: Nothing, Table 1"
metrics = ["seen.accuracy"]
claims = ["seen.accuracy: untrained > local"]
[settings]
data = "digits"
clients = 4
cohort = 0
rounds = 2
evaluate_every = 1
threads = 1
engine = "vector"
steps = 20
lr = 0.05
[rows.local]
[rows.untrained]
method = "local"
lr = 1e-9
[numbers.local]
"" = ["97.5 ± 0.5"]
[quick]
[quick.settings]
clients = 5
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    return path


def _without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in names}


def _training(stop: str = "") -> tuple[list[tuple[str, int]], Callable[[Run, str], bool]]:
    """What was trained, with the round it began at; the cell of that name is stopped after a round."""
    trained: list[tuple[str, int]] = []

    def train(run: Run, label: str) -> bool:
        trained.append((label, run.training.round))

        def watch(training: Any, metrics: Any) -> None:
            run.stop = label == stop

        return run.go(watch) is not None

    return trained, train


def test_what_is_missing_is_run_and_what_was_interrupted_goes_on(own: Path) -> None:
    found, out = Recipe.find(str(own)), own.parent / "runs"
    cells = found.chosen(False, ())
    for stop, expected in (("untrained", [("local", 0), ("untrained", 0)]), ("", [("untrained", 1)]), ("", [])):
        trained, train = _training(stop)
        with pytest.raises(KeyboardInterrupt, match="goes on where it was") if stop else nullcontext():
            assert reproduce.run_missing(found, cells, False, out, train, {"device": "cpu"}) == []
        assert trained == expected
    measured = {cell.row: cell for cell in reproduce.gather(found, False, out).cells}
    ours = measured["local"].scores["seen.accuracy"][0]
    assert measured["local"].difference("seen.accuracy") == pytest.approx(ours - 97.5)
    assert math.isnan(measured["untrained"].difference("seen.accuracy")), "of which the paper says nothing"


def test_a_claim_that_is_false_does_not_hold(own: Path, command: Command) -> None:
    """Whoever has not trained is not better than who has, and the page says so; twice, and trained once."""
    words = ("reproduce", own, "--out", own.parent / "runs", "--device", "cpu")
    first, again = command(*words, "--quick"), command(*words, "--quick")
    assert first.code == again.code == 0
    assert "untrained > local: does not hold" in " ".join(first.out.split())
    assert "local: round" in first.err
    assert "round" not in again.err
    assert first.out == again.out
    (path,) = own.parent.glob("runs/*-quick/summary.json")
    told = json.loads(path.read_text(encoding="utf-8"))
    assert [claim["verdict"] for claim in told["claims"]] == ["does not hold"]
    assert told["quick"]
    assert told["cells"][0]["paper"] == {"seen.accuracy": [None, None]}, "the paper's numbers are of other data"
    full = command(*words, "--only", "local")
    ours = json.loads(next(own.parent.glob("runs/*own/local/result.json")).read_text())["seen"]["accuracy"]
    assert f"{ours - 97.5:+.1f}" in full.out
    assert "97.5 ± 0.5" in full.out


def test_what_searches_found_is_of_what_they_searched(own: Path, command: Command) -> None:
    told = OWN.replace(
        "[numbers", '[tune.search.local]\nlr = "0.01|0.1"\n[tune.search.untrained]\nlr = "1|2"\n[numbers'
    )
    own.write_text(told)
    beside = own.with_name("own.tuned.toml")
    for found, said in (
        ("[rows.lokal]\nlr = 0.1", "local"),
        ("[rows.local]\nrounds = 9", "searched setting of local"),
        ("[rows.local.at.x]\nlr = 0.1", "column"),
    ):
        beside.write_text(found)
        with pytest.raises(UnknownName, match=said):
            Recipe.find(str(own))
    beside.write_text("[rows.local]\nlr = 0.1\n")
    recipe = Recipe.find(str(own))
    assert [cell.settings["lr"] for cell in recipe.cells()] == [0.1, 1e-9]
    assert [cell.settings["lr"] for cell in recipe.cells(quick=True)] == [0.05, 1e-9], "of the full version alone"
    done = command("reproduce", own, "--out", own.parent / "runs")
    assert done.code == 2
    assert "not fair yet: settings of untrained were not searched, those of others were" in done.err
    summary = json.loads(next(own.parent.glob("runs/*/summary.json")).read_text())
    assert [cell["searched"] for cell in summary["cells"]] == [True, False]


def test_a_row_of_another_table_has_what_was_found_there(own: Path) -> None:
    there = Recipe.find("pefll/table-1")
    assert there.was_searched(there.cells()[0], quick=False), "else this test says nothing"
    own.write_text(OWN + '[tuned_as]\nlocal = "pefll/table-1@500"\n')
    found = Recipe.find(str(own))
    (rate,) = (cell.settings["lr"] for cell in there.cells() if cell.key == ("local", "500"))
    assert found.cells()[0].settings["lr"] == rate
    assert found.was_searched(found.cells()[0], quick=False)
    assert found.cells(quick=True)[0].settings["lr"] == 0.05, "a quick version is of other data"
    assert found.was_searched(found.cells(quick=True)[0], quick=True) is None
    columns = OWN.replace('"" =', "100 =") + '[columns.100]\n[columns.500]\n[tuned_as]\nlocal = "pefll/table-1"\n'
    own.write_text(columns, encoding="utf-8")
    rates = {cell.key: cell.settings["lr"] for cell in there.cells() if cell.row == "local"}
    assert rates["local", "100"] != rates["local", "500"], "else this test says nothing"
    for cell in Recipe.find(str(own)).cells():
        assert cell.row == "untrained" or cell.settings["lr"] == rates[cell.key], "that of its own column"
    for row, place, said in (
        ("local", "pefll/tabel-1", "pefll/table-1"),
        ("local", "pefll/table-1@50", "500"),
        ("lokal", "pefll/table-1@500", "local"),
    ):
        own.write_text(OWN + f'[tuned_as]\n{row} = "{place}"\n')
        with pytest.raises(UnknownName, match=f"did you mean '{said}'"):
            Recipe.find(str(own))
    own.write_text(OWN + '[tuned_as]\nuntrained = "pefll/table-1@500"\n')
    with pytest.raises(UnknownName, match="row of tuned_as of pefll/table-1 'untrained'"):
        Recipe.find(str(own))
    own.write_text(OWN + '[tuned_as]\nlocal = "pefll/table-1"\n')
    with pytest.raises(UnknownName, match="column of tuned_as of pefll/table-1 ''"):
        Recipe.find(str(own))


def test_a_figure_that_cannot_be_made_leaves_the_table(own: Path, command: Command) -> None:
    own.write_text(OWN + '[analysis]\nname = "spearman"\n', encoding="utf-8")
    done = command("reproduce", own, "--quick", "--only", "local", "--out", own.parent / "runs", "--device", "cpu")
    assert done.code == 2
    assert "There is no figure: The run in" in " ".join(done.err.split())
    (path,) = own.parent.glob("runs/*-quick/summary.json")
    assert "no figure" in json.loads(path.read_text(encoding="utf-8"))["missing"][0]


@pytest.mark.parametrize("room", range(44, 120, 7))
def test_tables_are_cut_into_pages_and_no_number_is(room: int) -> None:
    names = [("", ["fedavgplus", "odpflhn"])]
    blocks = [[(f"seen\nown {k}", ["81.9 ± 10.0", "8.1 ± 2.0"]), ("paper", ["81.9 ± 2.0", ""])] for k in range(5)]
    made = pages(names, blocks, room)
    shown = Console(width=room, no_color=True)
    with shown.capture() as screen:
        for page in made:
            shown.print(grid(page))
    told = screen.get()
    assert "…" not in told
    assert told.count("81.9 ± 10.0") == 5
    widest = max(map(len, told.splitlines()))
    assert widest <= room < 44 + widest, "as many beside each other as there is room for"


def test_data_that_are_not_there_are_named(own: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell lacks its data: the sentence says what to put where, and the other cell is shown."""
    monkeypatch.setenv("LATECOMER_DATA", str(own.parent))
    own.write_text(OWN.replace("lr = 1e-9", 'data = "omniglot"'), encoding="utf-8")
    done = command("reproduce", own, "--out", own.parent / "runs", "--device", "cpu")
    said = " ".join(done.err.split())
    assert done.code == 2
    assert "untrained: The data set 'omniglot' was not found" in said
    assert "omniglot.npz" in said
    assert "97.5 ± 0.5" in done.out


def test_gap_is_of_latecomers_less_members(tmp_path: Path, command: Command) -> None:
    words = ("--clients", 6, "--unseen", 0.5, "--cohort", 0, "--rounds", 1, "--threads", 1, "--alone", 1)
    assert command("run", "local", *words, "--data", "digits", "--seeds", 2, "--out", tmp_path, "--name", "a").code == 0
    run = Finished.read(tmp_path / "a")
    late, members = run.measure("unseen.accuracy"), run.measure("seen.accuracy")
    assert run.measure("gap.accuracy") == [a - b for a, b in zip(late, members, strict=True)]
    assert len(late) == 2


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        ('title = "Two methods"', "", SettingError, "'title'"),
        ("[rows.local]", "[rows.lokal]", LatecomerError, "lokal"),
        ('["97.5 ± 0.5"]', '["97.5", "1"]', SettingError, "2 numbers for local, and 1 metrics"),
        ('["97.5 ± 0.5"]', '["ninety"]', SettingError, "ninety"),
        ("untrained > local", "untrained < local", SettingError, "METRIC: ROW"),
        ("untrained > local", "untrained > lokal", UnknownName, "local"),
        ("[quick.settings]", "[quick.setting]", UnknownName, "settings"),
        ("[quick.settings]", "[quick.row.lokal]", UnknownName, "local"),
        ("[quick.settings]", "[quick.column.x]", UnknownName, "column of"),
        ("[rows.local]", "[rows.local.at.x]", UnknownName, "column of"),
        ("untrained > local", "untrained@x > local", SettingError, "a column on one side only"),
        ('"seen.accuracy"]\nclaims', '"all.accuracy"]\nclaims', SettingError, "GROUP.SCORE"),
    ],
)
def test_a_recipe_that_is_wrong_is_one_sentence(
    own: Path, old: str, new: str, kind: type[Exception], said: str
) -> None:
    assert old in OWN
    own.write_text(OWN.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(kind, match=re.escape(said)):
        Recipe.find(str(own))
