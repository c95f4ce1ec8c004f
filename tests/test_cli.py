"""The command line: what it prints, what it refuses, and how it stops."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from console import Command, environment, start
from latecomer import engines, methods
from latecomer.cli import VERBS, catalogue, completion, demo, drive, flags, main, screen
from latecomer.data import partitions, sources
from latecomer.errors import SettingError
from latecomer.nets import models
from latecomer.runs.experiment import Experiment, surroundings
from latecomer.runs.folder import FORMAT
from latecomer.runs.run import Run
from latecomer.runs.settings import Settings
from latecomer.settings import settings_of
from latecomer.train import Training

SMALL = ["--clients", "10", "--rounds", "4", "--evaluate-every", "2", "--steps", "2", "--engine", "vector"]


# what can be seen without torch


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--help"],
        ["--version"],
        ["list"],
        ["list", "data"],
        ["show"],
        ["run", "-h"],
        ["completion", "zsh"],
        ["completion", "words", "run", "pefll", "--"],
    ],
)
def test_what_needs_no_torch_does_not_import_it(words: list[str]) -> None:
    code = f"import sys; from latecomer.cli import main; main({words}); print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "False\n"
    assert done.stdout


def test_the_lists_are_those_of_the_library() -> None:
    assert list(catalogue.KINDS["data"]()) == [
        "digits",
        *sorted(set(sources.names()) - {"digits"}),
        "shakespeare:STEP",
        "npz:PATH",
        "leaf:FOLDER",
        "hf:ID_OR_FOLDER",
    ]
    assert catalogue.KINDS["partitions"]().keys() == partitions.PARTITIONS.keys()
    assert catalogue.KINDS["models"]().keys() == models.MODELS.keys()
    assert catalogue.KINDS["engines"]() == engines.NAMES
    for names in catalogue.KINDS.values():
        assert all(names().values()), "every name has a meaning"


def test_usage_names_every_command(command: Command) -> None:
    for words in ([], ["--help"], ["-h"]):
        done = command(*words)
        assert done.code == 0
        assert all(f"  {verb} " in done.out for verb in VERBS)
    for verb in VERBS:
        done = command(verb, "--help")
        assert (done.code, done.err) == (0, "")
        assert f"Usage: latecomer {verb}" in done.out


def test_list_is_grouped(command: Command) -> None:
    done = command("list")
    assert [line for line in done.out.splitlines() if line and line[0] != " "] == [
        "Methods",
        "Data",
        "Partitions",
        "Models",
        "Engines",
    ]
    assert re.search(r"^  fedavg +FedAvg: one model for all\.", command("list", "methods").out, re.MULTILINE)


@pytest.mark.parametrize("words", [["show", "pfedhn"], ["run", "pfedhn", "--help"]])
def test_show_tells_all_about_a_method(command: Command, words: list[str]) -> None:
    out = command(*words).out
    assert "The hypernetwork never travels." in out
    assert re.search(r"--server-lr +0\.01 +learning rate of hypernetwork and embeddings \[above 0\]", out)
    assert "Run settings of its paper\n  --split   pfedhn\n  --cohort  1\n" in out
    assert "select" not in out.split("Run settings of its paper")[1].split("\n\n")[0], "one rule for all methods"
    assert re.search(r"--cohort +1 +clients a round.* \[at least 0\]", out), "the paper's default is the default"


def test_a_closed_pipe_is_no_error() -> None:
    line = f"'{sys.executable}' -m latecomer list | head -n 1"
    done = subprocess.run(
        ["sh", "-c", line], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("Methods\n", "")


# flags

NAMES, SWITCHES = ("rounds", "watch_unseen", "name", "novel_rounds"), ("watch_unseen",)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--rounds 5 --name=a=b", {"rounds": "5", "name": "a=b"}),
        ("--rounds -5", {"rounds": "-5"}),
        ("--name=", {"name": ""}),
        ("--watch-unseen --rounds 5", {"watch_unseen": "true", "rounds": "5"}),
        ("--watch_unseen False", {"watch_unseen": "False"}),
        ("--watch-unseen=maybe", {"watch_unseen": "maybe"}),
        ("--no-watch-unseen --novel-rounds 3", {"watch_unseen": "false", "novel_rounds": "3"}),
    ],
)
def test_flags(line: str, expected: dict[str, str]) -> None:
    assert flags.read(line.split(), NAMES, SWITCHES) == expected


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--rounds", "--rounds needs a value."),
        ("--rounds --name a", "--rounds needs a value."),
        ("--rounds 5 --rounds=6", "--rounds is given twice."),
        ("--watch-unseen --no-watch-unseen", "--watch-unseen is given twice."),
        ("--no-watch-unseen=true", "--no-watch-unseen takes no value; got 'true'."),
        ("--rounds 5 6", "'6' is one word too many; settings are given as --name value."),
        ("-rounds 5", "'-rounds' is one word too many; settings are given as --name value."),
        ("--watch-unsen", "There is no setting 'watch-unsen'; did you mean 'watch-unseen'?"),
        ("--no-rounds", "There is no setting 'no-rounds'; did you mean 'novel-rounds'?"),
        ("--", "There is no setting ''; there are: name, novel-rounds, rounds, watch-unseen."),
    ],
)
def test_flags_that_make_no_sense(line: str, sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        flags.read(line.split(), NAMES, SWITCHES)
    assert str(caught.value) == sentence


# one sentence, exit code 2, and no run folder


def refused(done: Any, fragment: str) -> None:
    assert done.code == 2, done.err
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert done.err.startswith("latecomer: ")
    assert done.err.endswith((".\n", "?\n"))
    assert fragment in done.err


BAD_COMMANDS = {
    "launch": "There is no command 'launch'",
    "rum pefll": "There is no command 'rum'; did you mean 'run'?",
    "--rounds 5": "A command comes first, not '--rounds'",
    "run": "Say which method to run",
    "run --rounds 5": "Say which method to run",
    "run peffl": "There is no method 'peffl'; did you mean 'pefll'?",
    "run pefll fedavg": "'fedavg' is one word too many",
    "run pefll --data digit": "There is no data set 'digit'; did you mean 'digits'?",
    "run pefll --partition clases": "There is no partition 'clases'; did you mean 'classes'?",
    "run pefll --model lennet": "There is no model 'lennet'; did you mean 'lenet'?",
    "run pefll --engine vektor": "There is no value for --engine 'vektor'; did you mean 'vector'?",
    "run pefll --device gpu": "--device must be cpu, cuda or auto; got 'gpu'.",
    "run pefll --rouns 5": "There is no setting 'rouns'; did you mean 'rounds'?",
    "run pefll --server-rl 5": "There is no setting 'server-rl'; did you mean 'server-lr'?",
    "run pefll --method fedavg": "There is no setting 'method'",
    "run pefll --rounds": "--rounds needs a value.",
    "run pefll --rounds 5 --rounds 6": "--rounds is given twice.",
    "run pefll --rounds many": "--rounds must be a whole number; got 'many'.",
    "run pefll --rounds 2.5": "--rounds must be a whole number; got '2.5'.",
    "run pefll --rounds 0": "--rounds must be at least 1, or 0 to take the model of --start as it is; got 0.",
    "run pefll --rounds -1": "--rounds must be at least 0; got -1.",
    "run pefll --unseen 1.5": "--unseen must be at least 0 and at most 0.99; got 1.5.",
    "run pefll --lr -1": "--lr must be greater than 0; got -1.0.",
    "run pefll --lr nan": "--lr must be greater than 0; got nan.",
    "run pefll --seed 99999999999999999999": "--seed must be",
    "run pefll --watch-unseen=maybe": "--watch-unseen must be true or false; got 'maybe'.",
    "run pefll --threads 99999999999": "--threads must be at least 0 and at most 1024; got 99999999999.",
    "run pefll --batch 99999999999999999999": "--batch must be a whole number below 2^63; got 99999999999999999999.",
    "run pefll --name ../x": "--name must be a plain name, without slashes and not '.' or '..'; got '../x'.",
    "run pefll --name a/b": "--name must be a plain name",
    "run pefll --name .": "--name must be a plain name",
    "run pefll --name ..": "--name must be a plain name",
    "tune fedavg --name ..": "--name must be a plain name",
    "run pefll --rotations 0,ninety": "--rotations must be a whole number; got 'ninety'.",
    "run pefll --rotations 720": "--rotations must be at least -360 and at most 360; got 720.",
    "run pfedhn --budgets S,XL": "There is no value for --budgets 'XL'; there are: L, M, S.",
    "run fedavg --budgets S,L": "FedAvg gives all clients models of one size; leave --budgets out.",
    "run pfedhn --budgets S,M,L --clients 4 --unseen 0.5": "budgets names 3 sizes for 2 training clients",
    "run pfedhn --budgets S,L --personal-head --model mlp": "head.weight, head.bias differ in shape from size to size",
    "run pfedhn --representation shares": "did you mean 'class-shares'?",
    "run pfedhn --representation class-shares --embedding 3": "--embedding is 10 with class shares",
    "run pefll --clients 0": "clients is 0",
    "run pefll --clients 99999": "clients is 99999, but 'digits' has only",
    "run pefll --clients 10 --cohort 11": "--cohort must be at most the number of training clients, 10; got 11.",
    "run flowdup --clients 10 --dimension 7511": "--dimension must be at most the number of the model's",
    "run flowdup --clients 10 --unseen 0.2 --split flowdup": "they must not have labels; give --unseen-labelled false.",
    "run fedavg --clients 10 --validators 0.01": "validators is 0.01, which of 10 clients leaves no validator;",
    "run pefll --partition natural": "has no client ids",
    "run pefll --data npz:missing.npz": "There is no file 'missing.npz'",
    "run pefll --data npz:": "There is no data set 'npz:'",
    "run pefll --settings missing.toml": "--settings missing.toml cannot be read: No such file or directory.",
    "run odpflhn --epsilon -1": "--epsilon must be at least 0; got -1.0.",
    "run odpflhn --epsilon inf": "--epsilon must be at least 0; got inf.",
    "run odpflhn --delta 1": "--delta must be greater than 0 and at most 0.999; got 1.0.",
    "run odpflhn --epsilon 1": "--epsilon needs a --bound on the features, 1 say, with --pool mean.",
    "run odpflhn --epsilon 1 --bound 1": "--bound goes with --pool mean",
    "run odpflhn --epsilon 1 --bound 1 --pool max": "There is no value for --pool 'max'",
    "run local --unseen 0.2 --no-unseen-labelled": "Local needs a latecomer's labels",
    "run knnper --neighbours 0": "--neighbours must be at least 1; got 0.",
    "run knnper --neighbours 5,0": "--neighbours must be at least 1; got 0.",
    "run knnper --neighbours=": "--neighbours needs at least one value.",
    "run knnper --sigma 0": "--sigma must be greater than 0; got 0.0.",
    "run knnper --blends 0,1.1": "--blends must be at least 0 and at most 1; got 1.1.",
    "run knnper --capacity 0": "--capacity must be greater than 0 and at most 1; got 0.0.",
    "run knnper --weak 2": "--weak must be at least 0 and at most 1; got 2.0.",
    "run knnper --weak-capacity -1": "--weak-capacity must be at least 0 and at most 1; got -1.0.",
    "run knnper --datastore fifi": "There is no value for --datastore 'fifi'; did you mean 'fifo'?",
    "run knnper --first 1.5": "--first must be at least 0 and at most 1; got 1.5.",
    "run knnper --kernel cosine": "There is no value for --kernel 'cosine'",
    "run knnper --prototypes -1": "--prototypes must be at least 0; got -1.",
    "run knnper --search fais": "There is no value for --search 'fais'; did you mean 'faiss'?",
    "run knnper --search faiss --engine vector": "--search faiss searches for one client at a time on a CPU",
    "run knnper --start missing": "missing is not a run folder: it has no settings.toml.",
    "run fedavg --clients 10 --labelled 0": "None of the 10 training clients has a labelled example",
    "run pefll --clients 10 --labelled 0.04 --seeds 2": "None of the 10 training clients has a labelled example",
    "list nets": "There is no list of 'nets'",
    "list data models": "takes one word at most",
    "show pefl": "There is no method 'pefl'; did you mean 'pefll'?",
    "show pefll fedavg": "takes one method at most",
    "resume": "latecomer resume takes one run folder; got none.",
    "resume a b": "latecomer resume takes one run folder; got a b.",
    "resume missing": "missing is not a run folder: it has no settings.toml.",
    "completion": "latecomer completion takes one shell: bash, zsh, fish; got ''.",
    "completion bsh": "There is no script for the shell 'bsh'; did you mean 'bash'?",
    f"resume {'x' * 300}": "cannot be read: File name too long.",
    "demo --rounds 3": "There is no setting 'rounds'",
    "demo --seed -1": "--seed must be at least 0",
}


@pytest.mark.parametrize("line", BAD_COMMANDS)
def test_a_bad_command_is_one_sentence(
    command: Command, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(command(*line.split()), BAD_COMMANDS[line])
    assert not list(tmp_path.iterdir())


def arrays(**changes: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    made = {
        "x_train": random.integers(0, 255, (40, 8, 8), np.uint8),
        "y_train": np.arange(40) % 4,
        "x_test": random.integers(0, 255, (20, 8, 8), np.uint8),
        "y_test": np.arange(20) % 4,
        **changes,
    }
    return {key: value for key, value in made.items() if value is not None}


BAD_ARRAYS: dict[str, dict[str, Any]] = {
    "lacks y_test": {"y_test": None},
    "x_train has 41 entries, but y_train has 40": {"x_train": np.zeros((41, 8, 8), np.uint8)},
    "x_train and x_test differ": {"x_test": np.zeros((20, 9, 8), np.uint8)},
    "holds the label -7": {"y_train": np.arange(40) % 4 - 7},
    "labels that are not whole numbers": {"y_train": np.arange(40) / 8},
    "values that are NaN or infinite": {"x_train": np.full((40, 64), np.nan), "x_test": np.zeros((20, 64))},
    "x_train in data.npz is empty": {"x_train": np.zeros((0, 8, 8), np.uint8), "y_train": np.zeros(0, int)},
    "None of the 4 training clients has examples both to train and to test on": {
        "y_train": np.arange(40) % 2,
        "y_test": 2 + np.arange(20) % 2,
    },
}


@pytest.mark.parametrize("fragment", BAD_ARRAYS)
def test_bad_data_is_one_sentence(
    command: Command, fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", **arrays(**BAD_ARRAYS[fragment]))
    done = command("run", "fedavg", "--data", "npz:data.npz", "--clients", "4", "--classes-per-client", "1")
    refused(done, fragment)
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_data_without_labels_are_one_sentence(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", **arrays(y_train=np.full(40, -1)))
    done = command("run", "fedavg", "--data", "npz:data.npz", "--partition", "iid", "--clients", "4", "--cohort", "2")
    refused(done, "None of the 4 training clients has a labelled example, so there is nothing to learn")
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_damaged_files_are_one_sentence(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("whole.npz", **arrays())
    content = Path("whole.npz").read_bytes()
    for size in (0, 100, len(content) // 2, len(content) - 30):
        Path("cut.npz").write_bytes(content[:size])
        refused(command("run", "fedavg", "--data", "npz:cut.npz"), "'cut.npz' cannot be read as an .npz")
    monkeypatch.setenv("LATECOMER_DATA", ".")
    np.savez("mnist.npz", **arrays(y_test=np.full(20, 12)))
    refused(command("run", "fedavg", "--data", "mnist"), "mnist.npz holds the label 12; labels are numbered 0 to 9")
    Path("bad.toml").write_text("rounds = = 3")
    refused(command("run", "fedavg", "--settings", "bad.toml"), "--settings bad.toml is not TOML")
    Path("bad.toml").write_text("rouns = 3")
    refused(command("run", "fedavg", "--settings", "bad.toml"), "There is no setting 'rouns'; did you mean 'rounds'?")
    Path("bad.toml").write_text("rounds = 3.5")
    refused(command("run", "--settings=bad.toml", "fedavg"), "Say which method to run")
    refused(command("run", "fedavg", "--settings=bad.toml"), "--rounds must be a whole number; got 3.5.")
    assert not Path("runs").exists()


def test_a_folder_that_exists_or_cannot_be_made(command: Command, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "file").touch()
    refused(command("run", "local", *SMALL, "--out", tmp_path, "--name", "x"), "exists already; choose another --name")
    refused(command("run", "local", *SMALL, "--out", tmp_path / "file"), "cannot be made: Not a directory.")
    assert not list((tmp_path / "x").iterdir())
    refused(
        command("run", "local", *SMALL, "--out", tmp_path, "--name", "x" * 300), "cannot be made: File name too long."
    )
    refused(command("run", "local", *SMALL, "--out", tmp_path, "--name", " "), "--name must be a plain name")
    (tmp_path / "local").mkdir()
    refused(command("demo", "--out", tmp_path), "exists already; choose another --out")


def test_a_real_process_says_one_sentence_too(process: Command, tmp_path: Path) -> None:
    refused(process("run", "peffl"), "did you mean 'pefll'?")
    refused(process("run", "fedavg", "--clients", "10", "--cohort", "11"), "--cohort must be at most")
    assert not list(tmp_path.iterdir())


def test_debug_shows_where(command: Command) -> None:
    done = command("run", "--debug", "peffl")
    assert done.code == 2
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1] == "latecomer: There is no method 'peffl'; did you mean 'pefll'?"


def test_a_surprise_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> None:
        raise ZeroDivisionError("a surprise\nin two lines")

    monkeypatch.setattr(methods, "get", fail)
    done = command("run", "pefll")
    assert (done.code, done.out) == (1, "")
    assert done.err == "latecomer: ZeroDivisionError: a surprise in two lines; add --debug to see where.\n"
    assert "Traceback" in command("run", "pefll", "--debug").err


# runs


def test_a_run_from_the_first_word_to_the_result(process: Command, tmp_path: Path) -> None:
    settings = tmp_path / "mine.toml"
    settings.write_text("rounds = 99\nclients = 60\npartition = 'dirichlet'\nalpha = 0.02\n")
    chosen = ["--rounds=20", "--cohort", "2", "--evaluate-every", "5", "--steps", "1", "--out", "o", "--name", "x y"]
    done = process("run", "PeFLL", "--settings", settings, *chosen, "--unseen", "0.3", "--seeds=1", "--watch-unseen")
    assert done.code == 0, done.err
    note, *progress, last = done.err.splitlines()
    assert last == "See it beside others: latecomer report 'o/x y' -o report.html"
    assert note.startswith("Note: ")
    assert note.endswith("of 60 clients had no example to train or to test on and were dropped.")
    assert [line.split(",")[0] for line in progress] == ["pefll: round 0 of 20", "pefll: round 20 of 20"]
    assert "validation" in progress[-1]
    assert done.out.startswith("pefll on digits: ")
    assert "│ unseen" in done.out
    assert done.out.splitlines()[-1] == "o/x y"
    result = json.loads((tmp_path / "o/x y/result.json").read_text())
    assert (result["method"], result["rounds"], result["seeds"]) == ("pefll", 20, [0])
    names = {"accuracy", "std", "pooled", "bottom_decile"}
    own = {"own_classes", "own_std", "own_pooled", "own_bottom_decile"}
    assert names | own | {"failed"} == result["seen"].keys() == result["unseen"].keys()
    assert (done.out.count("all classes"), done.out.count("own classes")) == (2, 2)
    with (tmp_path / "o/x y/clients.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert {"accuracy", "own_classes", "val_accuracy", "val_own_classes"} <= row.keys()
    metrics = [json.loads(line) for line in (tmp_path / "o/x y/metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in metrics] == [5, 10, 15, 20]
    assert all(own < line["runs"][0]["unseen"].keys() | {"own_std"} for line in metrics)


def test_a_run_repeats_from_its_own_settings(command: Command, tmp_path: Path) -> None:
    first = command("run", "local", *SMALL[:-2], "--out", tmp_path, "--name", "a", "--seeds", 2)
    assert first.code == 0, first.err
    assert "± " in first.out
    settings = tmp_path / "a/settings.toml"
    assert '"auto"' not in re.sub("model = .*", "", settings.read_text()), "what was chosen is written down"
    assert command("run", "--settings", settings, "--name", "b", "--steps=2").code == 0
    assert (tmp_path / "a/clients.csv").read_text() == (tmp_path / "b/clients.csv").read_text()


def test_a_run_with_budgets_sends_every_size_its_own_bytes(command: Command, tmp_path: Path) -> None:
    words = ["--budgets", "S,L", "--unseen", "0.2", "--cohort", "8", "--model", "mlp", "--seeds", "2"]
    done = command("run", "pfedhn", *SMALL, *words, "--out", tmp_path, "--name", "sizes")
    assert done.code == 0
    with (tmp_path / "sizes/clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for seed in ("0", "1"):
        for seen, count in (("True", 4), ("False", 1)):
            budgets = [row["budget"] for row in rows if (row["seed"], row["seen"]) == (seed, seen)]
            assert (budgets.count("S"), budgets.count("L")) == (count, count)
    lines = [json.loads(line) for line in (tmp_path / "sizes/ledger.jsonl").read_text().splitlines()]
    fits = [line for line in lines if line["step"] == "fit"]
    assert len(fits) == 2 * 4 * 2, "seeds, rounds, sizes"
    per_client = {line["down"] / line["asked"] for line in fits}
    assert per_client == {4 * (width * 64 + width + 10 * width + 10) for width in (50, 200)}


def test_without_validation_data_the_last_round_counts(command: Command, tmp_path: Path) -> None:
    done = command("run", "local", *SMALL, "--validation=0", "--out", tmp_path)
    assert done.code == 0, done.err
    assert "Last, as nothing is held out: round 4" in done.out
    assert "nan" not in (done.out + done.err).lower()


# stopping and resuming


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its third round."""
    values = {"clients": 10, "rounds": 6, "evaluate_every": 2, "steps": 2, "unseen": 0.2, "engine": "vector"}
    run = Run.begin(Experiment.parse("local", values | {"out": str(tmp_path_factory.mktemp("runs")), "name": "x"}))

    def stop(training: Any, metrics: Any) -> None:
        run.stop = training.round == 3

    assert run.go(stop) is None
    return run.folder.path


@pytest.fixture
def copy(stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(stopped, "x"))


def test_a_stopped_run_is_resumed_and_finishes(command: Command, copy: Path) -> None:
    done = command("resume", copy)
    assert done.code == 0, done.err
    assert json.loads((copy / "result.json").read_text())["rounds"] == 6
    refused(command("resume", copy), "The run in x is finished; its result is in x/result.json.")


def test_resuming_with_other_settings(command: Command, copy: Path) -> None:
    for words in (["x", "--rounds", "9"], ["--rounds=9", "x"], ["x", "--watch-unseen"]):
        refused(command("resume", *words), "A run cannot be resumed with other settings, such as --")


def truncate(copy: Path) -> None:
    weights = next((copy / "checkpoint").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:100])


def rejuvenate(copy: Path) -> None:
    latest = copy / "checkpoint/latest.json"
    latest.write_text(latest.read_text().replace(f'"format": {FORMAT}', '"format": 99'))


def change(copy: Path) -> None:
    settings = copy / "settings.toml"
    settings.write_text(settings.read_text().replace("rounds = 6", "rounds = 7"))


def garble(copy: Path) -> None:
    (copy / "settings.toml").write_bytes(b"\xff\xfe")


def empty(copy: Path) -> None:
    (copy / "checkpoint/latest.json").write_text("")


def flip(copy: Path) -> None:
    weights = next((copy / "checkpoint").glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-10] ^= 4
    weights.write_bytes(content)


def edit(copy: Path, work: Callable[[dict[str, Any]], Any]) -> None:
    latest = json.loads((copy / "checkpoint/latest.json").read_text())
    work(latest)
    (copy / "checkpoint/latest.json").write_text(json.dumps(latest))


def forget(copy: Path) -> None:
    edit(copy, lambda latest: latest.pop("evaluations"))


def miscount(copy: Path) -> None:
    edit(copy, lambda latest: latest["best"].append(None))


def lose(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoint")


@pytest.mark.parametrize(
    ("damage", "fragment"),
    [
        (truncate, "is truncated: it has 100 bytes"),
        (rejuvenate, f"has format 99; this version of latecomer reads format {FORMAT}."),
        (change, "settings.toml was changed after the run began"),
        (garble, "settings.toml cannot be read"),
        (empty, "latest.json cannot be read"),
        (flip, "is damaged: it is not what was saved."),
        (forget, "is damaged: latest.json lacks evaluations."),
        (miscount, "is damaged: best in latest.json cannot be right."),
        (lose, "checkpoint is not a folder of the run's own; put it back, or begin a new run."),
    ],
)
def test_resuming_from_damage(command: Command, copy: Path, damage: Callable[[Path], None], fragment: str) -> None:
    damage(copy)
    before = (copy / "ledger.jsonl").read_bytes()
    refused(command("resume", copy), fragment)
    assert not (copy / "result.json").exists()
    assert (copy / "ledger.jsonl").read_bytes() == before != b""


def test_resuming_what_is_running(command: Command, copy: Path) -> None:
    """One lock from opening to the end, so that nothing can happen between what was read and what is written."""
    run = Run.resume(copy)
    refused(command("resume", copy), "Another process is at work in x")

    def meanwhile(training: Any, metrics: Any) -> None:
        refused(command("resume", copy), "Another process is at work in x")
        run.stop = True

    assert run.go(meanwhile) is None
    assert command("resume", copy).code == 0


def test_resuming_what_has_just_begun(command: Command, tmp_path: Path) -> None:
    run = Run.begin(Experiment.parse("local", {"clients": 10, "engine": "vector", "out": str(tmp_path), "name": "x"}))
    refused(command("resume", tmp_path / "x"), "Another process is at work")
    run.folder.release()


def test_resuming_elsewhere_is_said(command: Command, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Run.resume(copy).training.notes == []
    now = surroundings("cpu") | {"torch": "9.9.0", "machine": "an abacus"}
    monkeypatch.setattr("latecomer.runs.run.surroundings", lambda device: now)
    done = command("resume", copy)
    assert done.code == 0
    note = done.err.splitlines()[0]
    assert note.startswith(f"Note: This run began with torch {torch.__version__} and machine ")
    assert note.endswith(", and goes on with torch 9.9.0 and machine an abacus: not bit for bit the same.")


def rewrite(copy: Path, old: str, new: str) -> None:
    """Settings as if the run had begun with them."""
    settings, latest = copy / "settings.toml", copy / "checkpoint/latest.json"
    assert old in settings.read_text()
    digests = [hashlib.sha256(settings.read_bytes()).hexdigest()]
    settings.write_text(settings.read_text().replace(old, new))
    digests.append(hashlib.sha256(settings.read_bytes()).hexdigest())
    latest.write_text(latest.read_text().replace(*digests))


def test_a_run_of_another_device_goes_on_with_what_there_is(command: Command, copy: Path) -> None:
    rewrite(copy, 'device = "cpu"', 'device = "cuda"')
    rewrite(copy, 'machine = "', 'machine = "NVIDIA, not ')
    done = command("resume", copy)
    assert done.code == 0, done.err
    assert re.search("^Note: This run began with machine NVIDIA, not .*: not bit for bit the same", done.err)


def test_a_run_without_a_checkpoint_says_that_it_begins_again(command: Command, tmp_path: Path) -> None:
    values = {"clients": 10, "rounds": 2, "steps": 1, "engine": "vector", "out": str(tmp_path), "name": "x"}
    run = Run.begin(Experiment.parse("local", values))
    run.folder.append("metrics.jsonl", [{"round": 1}])
    run.folder.release()
    settings = (tmp_path / "x/settings.toml").read_text()
    (tmp_path / "x/settings.toml").write_text(settings.replace("rounds = 2", "rounds = 3"))
    refused(command("resume", tmp_path / "x"), "settings.toml was changed after the run began")
    (tmp_path / "x/settings.toml").write_text(settings)
    done = command("resume", tmp_path / "x")
    assert done.code == 0, done.err
    assert (
        f"Note: The run in {tmp_path / 'x'} was stopped before its first checkpoint and starts from round 0."
        in done.err
    )
    assert len((tmp_path / "x/metrics.jsonl").read_text().splitlines()) == 1


def test_what_each_seed_sent_comes_back(tmp_path: Path) -> None:
    values = {"clients": 10, "rounds": 4, "epochs": 1, "seeds": 2, "engine": "vector", "cohort": 2}
    run = Run.begin(Experiment.parse("fedavg", {**values, "out": str(tmp_path), "name": "x"}))

    def stop(training: Any, metrics: Any) -> None:
        run.stop = training.round == 2

    run.training.sent[1]["asked"] = 100  # else the two would be equal
    assert run.go(stop) is None
    again = Run.resume(tmp_path / "x")
    assert again.training.sent == run.training.sent
    assert [sent["asked"] for sent in again.training.sent] == [4, 104]


# what a machine can do to a run


def test_a_full_disk_costs_no_more_than_what_came_after_the_checkpoint(
    command: Command, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr("latecomer.runs.folder.save_file", full)
        done = command("resume", copy)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == (
        "latecomer: The run folder x cannot be written to: No space left on device; "
        "mend that, then go on from the last checkpoint with: latecomer resume x"
    )
    assert command("resume", copy).code == 0


def test_a_run_folder_that_was_removed_meanwhile(command: Command, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Training.advance

    def removed(self: Training) -> None:
        shutil.rmtree(copy, ignore_errors=True)
        advance(self)

    monkeypatch.setattr(Training, "advance", removed)
    done = command("resume", copy)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == "latecomer: The run folder x was removed while the run was at work in it."
    assert not copy.exists()


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_a_batch_that_memory_cannot_hold(command: Command, engine: str, tmp_path: Path) -> None:
    words = ["--clients", 10, "--rounds", 2, "--batch", 10**14, "--engine", engine, "--out", tmp_path]
    done = command("run", "fedavg", *words)
    assert (done.code, done.out) == (2, "")
    last = done.err.splitlines()[-1]
    assert (
        "GB were asked for at once; use a smaller --batch" in last if engine == "vector" else "can't allocate" in last
    )


def test_two_runs_of_one_second_have_folders_of_their_own(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latecomer.runs.run.time.strftime", lambda *_: "now")
    ends = [command("run", "local", *SMALL, "--out", tmp_path).out.splitlines()[-1] for _ in range(2)]
    assert ends == [str(tmp_path / "local-digits-now"), str(tmp_path / "local-digits-now-2")]
    assert all((Path(end) / "result.json").exists() for end in ends)


# what a screen can and cannot show


def test_a_locale_without_plus_minus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    assert main(["run", "local", *SMALL, "--seeds", "2", "--out", str(tmp_path), "--name", "tür"]) == 0
    assert b" +- " in written.getvalue()
    assert written.getvalue().splitlines()[-1].endswith(b"/t?r")


def test_closed_streams_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"'{sys.executable}' -m latecomer run peffl 2>&-; echo $?; '{sys.executable}' -m latecomer list >&-; echo $?"
    done = subprocess.run(
        ["sh", "-c", line], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("2\n0\n", "")
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["run", "local", *SMALL, "--out", str(tmp_path)]) == 0


def test_lines_come_at_once_and_then_by_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("latecomer.cli.screen.time.monotonic", lambda: clock[0])
    training: Any = SimpleNamespace(round=0, plan=SimpleNamespace(rounds=100_000))
    watch = screen.Lines("pefll", training)
    assert capsys.readouterr().err == "pefll: round 0 of 100000\n"
    told = []
    for training.round in range(1, 100):
        clock[0] += 7.0
        watch(training, None)
        told += [training.round] * bool(capsys.readouterr().err)
    assert told == list(range(5, 100, 5)), "the first round after 30 seconds"
    training.round = 100_000
    watch(training, None)
    assert "round 100000 of 100000" in capsys.readouterr().err


def test_clients_are_called_as_their_source_calls_them(command: Command, tmp_path: Path) -> None:
    both = {"client_train": np.repeat(["anna", "bert"], 20), "client_test": np.repeat(["anna", "bert"], 10)}
    np.savez(tmp_path / "data.npz", **arrays(**both))
    words = ["--data", f"npz:{tmp_path}/data.npz", "--partition", "natural", "--clients", 0, "--cohort", 1]
    assert command("run", "fedavg", *words, "--rounds", 1, "--out", tmp_path, "--name", "x").code == 0
    with (tmp_path / "x/clients.csv").open(newline="") as file:
        assert sorted(row["name"] for row in csv.DictReader(file)) == ["anna", "bert"]


# completion


def test_completion_knows_what_the_library_knows() -> None:
    assert {*catalogue.run_settings(), "method"} == settings_of(Settings).keys()
    assert catalogue.run_settings()["split"] == ("pefll", "pfedhn", "flowdup")
    assert catalogue.run_settings()["budgets"] == ("S", "M", "L")
    assert catalogue.run_settings()["lr_schedule"] == ("constant", "step", "cosine")
    for name in methods.names():
        assert catalogue.method_settings(name).keys() == settings_of(methods.get(name)).keys(), name
        assert {
            key for key, values in catalogue.method_settings(name).items() if values == catalogue.SWITCH
        } == flags.switches(methods.get(name))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", [*VERBS, "--help", "--version"]),
        ("resum", ["resume"]),
        ("run fedavg", ["fedavg", "fedavgplus"]),
        ("run pefll --server", ["--server-lr"]),
        ("run pefll --no-wat", ["--no-watch-unseen"]),
        ("run pefll --data np", ["npz:"]),
        ("run pefll --data = dig", ["digits"]),
        ("run pefll --engine=v", ["--engine=vector"]),
        ("run pefll --embed ", ["example", "label"]),
        ("run pefll --watch-unseen --see", ["--seed", "--seeds"]),
        ("run pefll --start ", []),
        ("run --settings x.toml --ch", ["--checkpoint-seconds", "--chunk"]),
        ("list m", ["methods", "models"]),
        ("show pfedg", ["pfedgp"]),
        ("reproduce pefll/fig", ["pefll/figure-3", "pefll/figure-4"]),
        ("analyse m", ["map", "mix"]),
        ("tune pfedg", ["pfedgp"]),
        ("demo --", ["--out", "--seed"]),
        ("completion ", ["bash", "fish", "zsh"]),
        ("resume ", []),
    ],
)
def test_completion(line: str, expected: list[str]) -> None:
    assert completion.suggestions(line.split(" ")) == sorted(expected)


def test_completion_in_bash(tmp_path: Path) -> None:
    (tmp_path / "latecomer").write_text(f"#!/bin/sh\nexec '{sys.executable}' -m latecomer \"$@\"\n")
    (tmp_path / "latecomer").chmod(0o755)
    script = (
        f'PATH="{tmp_path}:$PATH"; eval "$(latecomer completion bash)"; COMP_WORDS=(latecomer run pe); COMP_CWORD=2; '
        '_latecomer; echo "${COMPREPLY[@]}"; complete -p latecomer'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "pefll perfedavg\ncomplete -o default -F _latecomer latecomer\n"


def until(condition: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_ctrl_c_leaves_a_checkpoint_and_tells_how_to_go_on(command: Command, tmp_path: Path) -> None:
    words = ["--clients=10", "--rounds=150", "--evaluate-every=1", "--steps=1", "--engine=vector", "--name=x"]
    with start(tmp_path, "run", "local", *words) as running:
        metrics = tmp_path / "runs/x/metrics.jsonl"
        until(lambda: metrics.exists() and metrics.stat().st_size > 0, running)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    latest = json.loads((tmp_path / "runs/x/checkpoint/latest.json").read_text())
    assert 0 < latest["round"] < 150
    assert err.splitlines()[-1] == f"Stopped after round {latest['round']}; go on with: latecomer resume runs/x"
    assert command("resume", tmp_path / "runs/x").code == 0
    assert json.loads((tmp_path / "runs/x/result.json").read_text())["rounds"] == 150


def test_the_round_is_finished_before_it_stops(command: Command, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Training.advance

    def told_to_end(self: Training) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "advance", told_to_end)
        done = command("resume", copy)
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines()[-1] == "Stopped after round 4; go on with: latecomer resume x"
    assert json.loads((copy / "checkpoint/latest.json").read_text())["round"] == 4
    assert command("resume", copy).code == 0


def test_a_second_signal_ends_it_at_once(command: Command, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (copy / "checkpoint/latest.json").read_text()

    def impatient(_self: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("still here")

    with monkeypatch.context() as patch:
        patch.setattr(Training, "advance", impatient)
        done = command("resume", copy)
    assert (done.code, done.out) == (130, "")
    last = done.err.splitlines()[-1]
    assert last == "latecomer: Interrupted; go on from the last checkpoint with: latecomer resume x"
    assert (copy / "checkpoint/latest.json").read_text() == before
    assert command("resume", copy).code == 0


def test_signals_are_given_back(stopped: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with drive.stopping(Run.resume(stopped)):
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# the demo


def test_the_demo_prints_one_table(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, few in (("rounds", 1), ("seeds", 2)):
        monkeypatch.setitem(demo.SPLIT, name, few)
    for name, own, few in (("local", "alone", 1), ("fedavgplus", "tune_epochs", 1), ("pfedhn", "novel_rounds", 1)):
        monkeypatch.setitem(demo.METHODS[name], own, few)
    done = command("demo", "--seed", "1")
    assert done.code == 0, done.err
    heading, _, rest = done.out.partition("─")
    assert " ".join(heading.split()) == "seen seen unseen unseen kB kB method all own all own down up s"
    rows = dict(line.split(maxsplit=1) for line in rest.partition("\n\n")[0].splitlines()[1:])
    assert list(rows) == list(demo.METHODS)
    assert all(len(re.findall(r"\d+\.\d ± \d+\.\d", row)) == 4 for row in rows.values())
    assert max(map(len, done.out.splitlines())) <= 80
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(demo, "METHODS", {name: demo.METHODS[name] for name in ("local", "fedavg")})
    assert command("demo", "--out", "kept").code == 0
    assert {path.name for path in Path("kept").iterdir()} == {"local", "fedavg"}


def test_a_row_of_the_demo() -> None:
    seen = {"accuracy": 81.04, "std": 1.26, "own_classes": 90.0, "own_std": 0.5}
    unseen = {"accuracy": 79.5, "std": 12.34, "own_classes": 100.0, "own_std": 0.0}
    result = {"seen": seen, "unseen": unseen, "bytes_per_client_round": {"down": 203672, "up": 0}, "seconds": 9.6}
    accuracies = ("81.0 ± 1.3", "90.0 ± 0.5", "79.5 ± 12.3", "100.0 ± 0.0")
    assert demo.row("pefll", result) == ("pefll", *accuracies, "203.7", "0.0", "10")


def test_the_demo_says_who_is_who() -> None:
    federation = Experiment.parse("local", demo.SPLIT | {"seeds": 1}).federations()[0]
    late = len(federation) - federation.first_late
    assert f"the {federation.members} clients that trained" in demo.legend()
    assert f"the {late} clients that arrived after training" in demo.legend()
    assert "any method could do" in demo.legend()


def test_the_demo_knows_only_settings_that_exist() -> None:
    for name, own in demo.METHODS.items():
        experiment = Experiment.parse(name, {**demo.SPLIT, **own})
        assert {key: getattr(experiment.settings, key, experiment.own.get(key)) for key in own} == own
