"""Hostile and clumsy users of reproduce, results, analyse, report and tune: a sentence, and the rest is still told."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from console import Command
from latecomer import data
from latecomer.cli import reproduce as verb
from latecomer.cli.streams import PLAIN
from latecomer.errors import LatecomerError, RunError
from latecomer.study import analyses, jobs, reproduce, results, results_page
from latecomer.study.compare import unpaired
from latecomer.study.finished import Finished
from latecomer.study.leaders import best_simple
from latecomer.study.recipe import Recipe
from latecomer.study.tune.search import Range
from latecomer.study.tune.trials import Trials
from test_report import COLUMNS, fabricate
from test_results import cell, told

RECIPE = """
title = "Mine"
metrics = ["seen.accuracy", "unseen.accuracy"]
claims = ["seen.accuracy: local > fedavg"]
simple = ["local"]
[settings]
clients = 8
unseen = 0.25
cohort = 3
rounds = 4
evaluate_every = 2
engine = "vector"
[rows.local]
steps = 2
[rows.fedavg]
epochs = 1
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# runs


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        text = (run / name).read_text("utf-8")
        assert old in text
        (run / name).write_text(text.replace(old, new, 1), "utf-8")

    return damage


def table(**tensors: Any) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / "descriptors").mkdir()
        save_file(tensors, run / "descriptors" / "selected.safetensors")

    return damage


def lost(run: Path) -> None:
    """A run that says what its clients came to; then one of them is no more in the table."""
    means = {"seen": {"accuracy": 5.0, "own_classes": 45.0}, "unseen": {"accuracy": 25.0, "own_classes": 65.0}}
    replaced("result.json", '"rounds": 20', f'"rounds": 20, {json.dumps(means)[1:-1]}')(run)
    assert Finished.read(run).means("unseen") == [25.0]
    lines = (run / "clients.csv").read_text().splitlines(keepends=True)
    (run / "clients.csv").write_text("".join(lines[:-1]))


DAMAGED = {
    "a client lost": (lost, "its latecomers' mean accuracy is 25 in result.json, and 20 in clients.csv"),
    "a score that is none": (replaced("clients.csv", "0,1,10,50", "0,1,1e308,50"), "accuracy is 1e308"),
    "no number": (replaced("clients.csv", "0,1,10,50", ",1,10,50"), "no seed, or no client's number"),
    "a negative client": (replaced("clients.csv", "0,1,10,50", "0,-1,10,50"), "no seed, or no client's number"),
    "a client twice": (replaced("clients.csv", "0,1,10,50", "0,0,10,50"), "stands there twice"),
    "another seed": (replaced("clients.csv", "0,1,10,50", "7,1,10,50"), "clients of seed 7"),
    "no role": (replaced("clients.csv", "member", "king"), "role is 'king'"),
    "no columns": (replaced("clients.csv", "seed,client", "sed,cliant"), "no seed, or no client's number"),
    "a billion classes": (replaced("clients.csv", "0:12", "999999999999:12"), "of classes"),
    "an endless field": (replaced("clients.csv", "0:12", "0:12" + " " * 200_000), "field larger than"),
    "a row cut short": (replaced("clients.csv", ",10,1:12 3:8\n", "\n"), "a row is cut short"),
    "a last line cut short": (
        lambda run: os.truncate(run / "clients.csv", (run / "clients.csv").stat().st_size - 1),
        "its last line is cut short",
    ),
    "no clients": (lambda run: (run / "clients.csv").write_text(COLUMNS + "\n"), "clients.csv has no client of seed 0"),
    "no seeds": (replaced("result.json", '"seeds"', '"sedes"'), "does not name its seeds"),
    "seeds of text": (replaced("result.json", '"seeds": [0]', '"seeds": ["0"]'), "does not name its seeds"),
    "no seconds": (replaced("result.json", "2.5", '"long"'), "how long it trained"),
    "endless seconds": (replaced("result.json", "2.5", "1e999"), "how long it trained"),
    "no rounds": (replaced("result.json", '"rounds"', '"grounds"'), "how long it trained"),
    "no evaluation": (replaced("metrics.jsonl", '"runs"', '"rums"'), "line 1 of metrics.jsonl is no evaluation"),
    "a line cut short": (replaced("metrics.jsonl", "}]}\n", ""), "metrics.jsonl cannot be read"),
    "a validation of text": (replaced("metrics.jsonl", '"seed": 0', '"validation": "x"'), "that is no number"),
    "about is no table": (replaced("settings.toml", "[about]\nsplits = ['a']", "[[about]]"), "what was run"),
    "splits are no list": (replaced("settings.toml", "['a']", "7"), "does not name its splits"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_run_is_named_and_the_rest_is_told(case: str, here: Path, command: Command) -> None:
    damage, sentence = DAMAGED[case]
    good, bad = fabricate(here / "good"), fabricate(here / "bad")
    damage(bad)
    with pytest.raises(RunError, match=r"^The run in .*bad is damaged: ") as caught:
        Finished.read(bad)
    assert sentence in str(caught.value)
    done = command("report", bad, good)
    assert (done.code, done.out) == (0, "report.html\n")
    assert sentence in done.err


UNTOLD = {
    "an endless number": (replaced("result.json", '"down": 3000000', '"down": 1' + "0" * 400), "what was sent"),
    "bytes in words": (replaced("result.json", '{"down": 3000, "up": 1000}', '"few"'), "what a client was sent"),
    "a round selected": (replaced("result.json", '"selected_rounds": [20]', '"selected_rounds": 20'), "were selected"),
}


@pytest.mark.parametrize("case", UNTOLD)
def test_a_run_without_what_the_page_tells_is_named(case: str, here: Path, command: Command) -> None:
    damage, sentence = UNTOLD[case]
    good, bad = fabricate(here / "good"), fabricate(here / "bad")
    damage(bad)
    done = command("report", bad, good)
    assert (done.code, done.out) == (0, "report.html\n")
    assert "bad is damaged" in done.err
    assert sentence in done.err


DESCRIPTORS = {
    "NaN": (np.full((4, 2), np.nan, np.float32), "not all finite"),
    "too large to square": (np.full((4, 2), 1e300), "not all finite"),
    "of another shape": (np.zeros(4, np.float32), "no row of numbers"),
    "too few": (np.zeros((2, 2), np.float32), "not a descriptor for every client"),
}


@pytest.mark.parametrize("case", DESCRIPTORS)
def test_damaged_descriptors_cost_a_map(case: str, here: Path, command: Command) -> None:
    rows, sentence = DESCRIPTORS[case]
    run = fabricate(here / "x")
    table(**{"0": rows})(run)
    done = command("report", run)
    assert (done.code, done.out) == (0, "report.html\n")
    assert "There is no map of x: " in done.err
    assert sentence in done.err


def test_names_of_clients_may_have_ends_of_lines(here: Path) -> None:
    run = fabricate(here / "x", name='"a\nb\u2028c\x0bd"')
    assert {row["name"] for row in Finished.read(run).rows} == {"a\nb\u2028c\x0bd"}


def test_tags_in_names_stay_text(here: Path, command: Command) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    runs = [fabricate(here / f"{k}{evil.replace('/', '')}", k, name=evil, method=evil) for k in range(2)]
    assert command("report", *runs).code == 0
    page = (here / "report.html").read_text("utf-8")
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_what_would_colour_a_terminal_is_shown_and_does_nothing(here: Path, command: Command) -> None:
    evil = "\x1b[31m\x07red\x9b2J"
    for name in (evil, "good"):
        fabricate(here / name, splits=f"of {name[-4:]}")
    replaced("settings.toml", "lr_schedule = 'constant'", 'lr_schedule = "\\u001b]0;x\\u0007"')(here / evil)
    for words in (
        ("report", here / evil, here / "good"),
        ("analyse", "along", here / evil, here / "good", "--by", "lr_schedule"),
        ("analyse", "part", here / evil, here / "good"),
        ("analyse", "quality", here / evil),
    ):
        done = command(*words)
        assert "red" in done.out + done.err
        assert not {"\x1b", "\x07", "\x9b"} & {*done.out, *done.err}


def test_an_analysis_tells_of_the_runs_that_are_whole(here: Path) -> None:
    good, bad = fabricate(here / "good"), fabricate(here / "bad")
    (bad / "result.json").unlink()
    found = analyses.analyse("variation", [bad, good])
    assert found.about["runs"] == [str(good)]
    assert found.notes[-1].startswith(f"The run in {bad} is not finished")


def test_runs_of_other_data_without_latecomers_are_no_pairs() -> None:
    assert str(unpaired([], [1.0])) == "none to compare"
    assert not unpaired([2.0, 2.0], [1.0, 1.0]).told, "without a spread nobody knows"


def test_a_name_that_no_disk_takes(here: Path, command: Command) -> None:
    done = command("report", "x" * 300)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "File name too long" in done.err


# recipes


WRONG = {
    "an unknown key": ('title = "Mine"', 'title = "Mine"\nrwos = 1', "did you mean 'rows'?"),
    "an unknown metric": ('"seen.accuracy", ', '"seen.acuracy", ', "'seen.acuracy'; one is GROUP.SCORE"),
    "a claim of another row": ("local > fedavg", "locale > fedavg", "did you mean 'local'?"),
    "a claim that is none": ("local > fedavg", "local >= fedavg", "is not METRIC: ROW"),
    "a row that is no table": ("[rows.local]\nsteps = 2", "[rows]\nlocal = 3", "cannot be read"),
    "an unknown method": ("[rows.fedavg]", "[rows.fedaverage]", "did you mean 'fedavg'?"),
    "a row with a comma": ("[rows.fedavg]", '[rows."fedavg,2"]', "without blanks, commas and @"),
    "an unknown analysis": ("[settings]", '[analysis]\nname = "speerman"\n[settings]', "did you mean 'spearman'?"),
    "an analysis of no row": (
        "[settings]",
        '[analysis]\nname = "spearman"\nrows = ["pefl"]\n[settings]',
        "There is no row of",
    ),
    "a quick row that is none": ("[settings]", '[quick]\nrows = ["lokal"]\n[settings]', "did you mean 'local'?"),
    "a row of a parent": ("[rows.fedavg]", '[rows.fedavg]\n[rows."../fedavg"]', "begin neither with a dot"),
    "two cells of one folder": (
        "[settings]",
        '[rows.a-b]\nmethod = "local"\n[rows.a]\nmethod = "local"\n[columns.c]\n[columns.b-c]\n[settings]',
        "would have one folder",
    ),
    "numbers of no row": ("[settings]", '[numbers.pefll]\n"" = ["1", "2"]\n[settings]', "There is no row of"),
    "numbers that are none": ("[settings]", '[numbers.local]\n"" = ["1", "much"]\n[settings]', "could not convert"),
    "an unknown word of a search": ("[settings]", "[tune]\ntrails = 3\n[settings]", "did you mean 'trials'?"),
    "a search of no row": ("[settings]", "[tune.search.lokal]\nlr = ''\n[settings]", "did you mean 'local'?"),
    "like one elsewhere": ('title = "Mine"', 'like = "../mine"', "is called by its name alone"),
    "runs of the folder above": ('title = "Mine"', 'title = "Mine"\nruns = ".."', "which is no name of a recipe"),
    "no end of brackets": ('title = "Mine"', "title = " + "[" * 20000, "is not TOML"),
    "no TOML": ('title = "Mine"', "title = Mine", "is not TOML"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_recipe_that_is_wrong_is_a_sentence(case: str, here: Path, command: Command) -> None:
    old, new, sentence = WRONG[case]
    (here / "mine.toml").write_text(RECIPE.replace(old, new, 1))
    done = command("reproduce", "mine.toml")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert sentence in done.err
    assert not (here / "runs").exists()


def test_a_recipe_that_is_like_a_wrong_one_is_a_sentence(here: Path, command: Command) -> None:
    (here / "mine.toml").write_text('like = "other"\n[settings]\nclients = 8\n')
    for wrong in ("settings = 3", "tune = 3", 'rows = [3]\n[tune.search.local]\nlr = ""', "like = 5"):
        (here / "other.toml").write_text(f'title = "Mine"\nmetrics = []\n{wrong}\n')
        done = command("reproduce", "mine.toml")
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "cannot be read" in done.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pefll/tabel-1"], "did you mean 'pefll/table-1'?"),
        (["nowhere.toml"], "No such file"),
        (["mine.toml", "--only", "lokal"], "did you mean 'local'?"),
        (["mine.toml", "--only", "99,@"], "There is no row or column of mine '99'; there are: fedavg, local."),
        (["mine.toml", "--jobs", "0"], "--jobs must be at least 1"),
        (["mine.toml", "--out", "file", "--jobs", "2"], "cannot be made: Not a directory"),
        (["mine.toml", "--out", "file"], "cannot be made: Not a directory"),
    ],
)
def test_words_that_are_wrong(words: list[str], sentence: str, here: Path, command: Command) -> None:
    (here / "mine.toml").write_text(RECIPE)
    (here / "file").touch()
    done = command("reproduce", *words)
    assert done.code == 2
    assert sentence in done.err


def test_data_that_are_not_there_are_looked_for_once(here: Path, command: Command) -> None:
    rows = "[rows.fedper]\n[rows.digits]\nmethod = 'local'\ndata = 'npz:elsewhere.npz'\n"
    (here / "mine.toml").write_text(RECIPE.replace("clients = 8", 'clients = 8\ndata = "npz:nowhere.npz"') + rows)
    done = command("reproduce", "mine.toml")
    assert (done.code, done.err.count("There is no file 'nowhere.npz'")) == (2, 1), done.err
    assert "fedavg, fedper: likewise without npz:nowhere.npz." in done.err
    assert "elsewhere.npz" in done.err


def test_interrupted_and_once_more(here: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in its second cell it says so; the same command goes on there, and does the first no more."""
    (here / "mine.toml").write_text(RECIPE)
    train, begun = verb.train, list[tuple[str, int]]()

    def interrupted(run: Any, label: str) -> bool:
        begun.append((label, run.training.round))
        if label == "local":
            return train(run, label)
        return run.go(lambda *_: setattr(run, "stop", True)) is not None

    monkeypatch.setattr(verb, "train", interrupted)
    done = command("reproduce", "mine.toml")
    assert (done.code, done.out) == (130, "")
    assert "Interrupted; the same command goes on where it was." in done.err

    def whole(run: Any, label: str) -> bool:
        begun.append((label, run.training.round))
        return train(run, label)

    monkeypatch.setattr(verb, "train", whole)
    done = command("reproduce", "mine.toml")
    assert (done.code, done.out.splitlines()[-1]) == (0, "runs/mine/summary.json")
    assert begun == [("local", 0), ("fedavg", 0), ("fedavg", 1)]

    # some of it is shown, and the summary still has all: a part of it would be taken for the whole
    done = command("reproduce", "mine.toml", "--only", "fedavg")
    assert "fedavg" in done.out
    assert "local " not in done.out.replace("More than local", "")
    cells = json.loads((here / "runs" / "mine" / "summary.json").read_text())["cells"]
    assert [cell["row"] for cell in cells] == ["local", "fedavg"]
    asked = [cell.fingerprint for cell in Recipe.find("mine.toml").cells()]
    assert [cell["settings"] for cell in cells] == asked, "a record knows what a row was asked for"
    assert len({*asked}) == 2
    local, fedavg = (cell["scores"]["seen.accuracy"][0] for cell in cells)
    gain = f"{fedavg - local:+.1f} ".replace("-", "\N{MINUS SIGN}")
    assert cells[1]["gain"]["seen.accuracy"].startswith(gain), "compared with a row that was not asked for"

    # of a recipe that has changed, earlier runs are no part, whoever would have run them
    (here / "mine.toml").write_text(RECIPE.replace("steps = 2", "steps = 3"))
    for count in ("1", "2"):
        done = command("reproduce", "mine.toml", "--jobs", count)
        assert done.code == 2
        assert done.err.count("Note: local: runs/mine/local was run with another steps than mine has now") == 1
        assert "local" not in done.out
    assert [cell["row"] for cell in json.loads((here / "runs/mine/summary.json").read_text())["cells"]] == ["fedavg"]
    (here / "mine.toml").write_text(RECIPE)

    # somebody else is at work there, or it is damaged: the others are still told
    (here / "runs" / "mine" / "fedavg" / "clients.csv").unlink()
    done = command("reproduce", "mine.toml")
    assert done.code == 2
    assert "Note: fedavg: The run in runs/mine/fedavg is damaged: it has no clients.csv." in done.err
    assert "local" in done.out

    # and a figure that cannot be made costs the figure alone
    def fails(*_: object) -> None:
        raise RunError("no descriptors.")

    monkeypatch.setattr(verb, "analysed", fails)
    (here / "runs" / "mine" / "summary.json").unlink()
    done = command("reproduce", "mine.toml", "--only", "local")
    assert (done.code, done.out.splitlines()[-1]) == (2, "runs/mine/summary.json")
    assert "There is no figure: no descriptors." in done.err


BUDGETS = {
    "trials = 'many'": "--trials must be a whole number; got 'many'",
    "rounds = -1": "--tune-rounds must be at least 0",
    "validators = 2": "--validators must be",
    "search = 3": "The recipe mine.toml cannot be read",
    "search = {local = 3}": "The recipe mine.toml cannot be read",
    "seed = 0": "mine would tune on seed 0, which it reports; give [tune] another seed",
    "[columns.few]\nsearch = {rl = '1|2'}": "There is no searched setting of mine 'rl'; did you mean 'lr'?",
    "[columns.few]\nsearch = 3": "The recipe mine.toml cannot be read",
}


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_search_that_a_recipe_cannot_have(budget: str, here: Path, command: Command) -> None:
    searched = "" if budget.startswith("search") else "[tune.search.local]\nlr = '0.01:0.1'\n"
    (here / "mine.toml").write_text(RECIPE.replace("[settings]", f"[tune]\n{budget}\n{searched}[settings]"))
    done = command("tune", "--recipe", "mine.toml")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert BUDGETS[budget] in done.err


def test_a_simple_row_is_chosen_by_validation_alone(here: Path) -> None:
    """Also where one of them has no validation score; and nobody is the best where none has."""
    (here / "mine.toml").write_text(RECIPE.replace('simple = ["local"]', 'simple = ["local", "fedavg"]'))
    recipe = Recipe.find("mine.toml")
    local, fedavg = (Finished.read(fabricate(here / name)) for name in ("local", "fedavg"))
    for known, chosen in (((None, 30.0), "fedavg"), ((40.0, 30.0), "local"), ((None, None), None)):
        for run, score in zip((local, fedavg), known, strict=True):
            run.metrics[:] = [{"round": 1, "runs": [{"validation": score}]}]
        assert best_simple(recipe.simple, "", {("local", ""): local, ("fedavg", ""): fedavg}) == chosen


def test_jobs_of_a_file_of_ones_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes are told the file, and what one of them says last is told."""
    (here / "mine.toml").write_text(RECIPE)
    recipe, commands = Recipe.find("mine.toml"), list[list[str]]()

    class Ended:
        def __init__(self, words: list[str], stdout: Any, **_: Any) -> None:
            commands.append(words[2:])
            stdout.write("fedavg: round 0 of 4\nlatecomer: fedavg: --lr must be greater than 0; got -1.0.\n")

        def wait(self, _: float | None) -> int:
            return 2

    monkeypatch.setattr(jobs.subprocess, "Popen", Ended)
    words, cells = ["mine.toml", "--out", "runs"], recipe.chosen(False, ["fedavg"])
    (missed,) = reproduce.side_by_side(recipe, cells, False, here / "runs", 2, math.inf, words)
    assert missed == "fedavg: --lr must be greater than 0; got -1.0."
    assert commands == [["latecomer", "reproduce", "mine.toml", "--only=fedavg", "--out", "runs", "--runs-only"]]


def test_interrupted_among_several_processes(here: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell begins after Ctrl-C, which those at work are told by the terminal."""
    (here / "mine.toml").write_text(RECIPE + "".join(f"[rows.r{k}]\nmethod = 'local'\n" for k in range(20)))
    begun = list[str]()

    def started(words: list[str], **_: Any) -> None:
        begun.append(words[5])
        time.sleep(0.2 * (len(begun) > 1))  # else they could all have begun before the first is heard of
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs.subprocess, "Popen", started)
    done = command("reproduce", "mine.toml", "--jobs", "2")
    assert (done.code, done.err) == (130, "latecomer: Interrupted; the same command goes on where it was.\n")
    assert len(begun) < 22


def test_several_processes_look_for_data_that_are_not_there_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"[rows.r{k}]\nmethod = 'local'\n" for k in range(9))
    (here / "mine.toml").write_text(RECIPE.replace("clients = 8", 'clients = 8\ndata = "npz:nowhere.npz"') + rows)
    looked, load = list[str](), data.load
    monkeypatch.setattr(data, "load", lambda name: (looked.append(name), load(name))[1])
    recipe = Recipe.find("mine.toml")
    first, *rest = reproduce.side_by_side(recipe, recipe.cells(), False, here / "runs", 2, math.inf, ["mine.toml"])
    assert looked == ["npz:nowhere.npz"]
    assert "There is no file 'nowhere.npz'" in first
    assert len(rest) == len(recipe.cells()) - 1
    assert all(sentence.endswith(": likewise without npz:nowhere.npz.") for sentence in rest)


# records


def record(**other: Any) -> dict[str, Any]:
    return told(cell("a", 80, 1)) | other


HOSTILE = {
    "a path": record(recipe="../../../etc/passwd\0"),
    "a line": record(recipe="x\n\n# Injected"),
    "nothing": record(recipe=""),
    "dots": record(recipe=".."),
    "metrics": record(metrics=[{}]),
    "an analysis": record(analysis={"rows": 5}),
    "too much": told(cell("a", 80, 1, seconds=10**400)),
    "a score": told(cell("a", 1e200, 1)),
    "simple rows": record(simple=["a"]),
    "a simple row": record(simple={"": None}),
    "bytes": told(cell("a", 80, 1, bytes={"down": "many"})),
    "bytes of nothing": told(cell("a", 80, 1, bytes=[3])),
    "a claim": record(claims=["a > b"]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_record_is_left_out(case: str, here: Path, command: Command) -> None:
    (here / "good.json").write_text(json.dumps(record()))
    (here / "evil.json").write_text(json.dumps(HOSTILE[case]))
    done = command("results", "evil.json", "good.json", "-o", "page.md", "--record", "kept")
    assert (done.code, done.out) == (2, "page.md\n")
    assert "Note: evil.json is no" in done.err
    assert os.listdir(here / "kept") == ["x-table-1.json"]
    assert "| a | 80.0" in (here / "page.md").read_text("utf-8")


def test_texts_of_records_stay_text(here: Path) -> None:
    evil = "<img src=x onerror=alert(1)>\n\n# Injected\n[here](javascript:alert(1)) [a]: http://x"
    claim = dict.fromkeys(("claim", "verdict", "difference", "over"), evil)
    analysis = {"title": evil, "columns": [evil], "rows": [[evil]], "notes": [evil]}
    cells = [cell(evil, 80, 1, column=evil, machine=evil, commit=evil)]
    hostile = told(*cells) | {"title": evil, "paper": evil, "claims": [claim], "analysis": analysis}
    text = results_page.page([results.Record(hostile)], here / "page.md")
    for tag in ("<img", "\n# Injected", "](javascript", "]: http"):
        assert tag not in text
    assert "&lt;img src=x" in text


def test_half_a_character_keeps_nobody_from_a_page(here: Path, command: Command) -> None:
    (here / "x.json").write_text(json.dumps(record(title="x\ud800y")))
    done = command("results", "x.json", "-o", "page.md", "--record", "kept")
    assert (done.code, done.out) == (0, "page.md\n"), done.err
    assert "x\\ud800y" in (here / "page.md").read_text("utf-8")
    assert results.read(here / "kept" / "x-table-1.json").told["title"] == "x\ud800y"


def test_a_figure_that_leads_elsewhere_is_not_published(here: Path) -> None:
    (here / "secret").write_text("my key")
    (here / "x.json").write_text(json.dumps(record()))
    (here / "x.svg").symlink_to(here / "secret")
    results.keep([results.read(here / "x.json")], here / "kept")
    assert os.listdir(here / "kept") == ["x-table-1.json"]


# tune


def test_trials_of_somebody_else_are_refused(here: Path) -> None:
    space = {"lr": Range(0.1, 1.0)}
    Trials(here / "trials.db", space).study.ask()  # begun and never scored
    with pytest.raises(RunError, match="trial 0 is not one of this search, or has no scores"):
        Trials(here / "trials.db", space)


def test_a_disk_that_is_full_is_a_sentence(here: Path) -> None:
    trials = Trials(here / "trials.db", {"lr": Range(0.1, 1.0)})
    (first,) = trials.next(0, 1, {"lr": 0.5}, [], 0)
    first.scores[1] = 10.0
    with sqlite3.connect(here / "trials.db") as other:
        other.execute("drop table trials")
    with pytest.raises(RunError, match=r"trials.db cannot be written: .*; the same command goes on"):
        trials.add([first])


def test_what_a_locale_cannot_write_is_still_a_number() -> None:
    assert [PLAIN[sign] for sign in "\N{PLUS-MINUS SIGN}\N{MINUS SIGN}\N{EN DASH}"] == ["+-", "-", "-"]
    assert issubclass(RunError, LatecomerError)
