"""Models, sources and partitions from the command line: they train, and what does not fit is one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from console import Command, Outcome
from latecomer import methods
from latecomer.cli import flags
from latecomer.runs.experiment import Experiment
from latecomer.runs.settings import Settings

QUICK = ["--rounds", "1", "--cohort", "2", "--evaluate-every", "1", "--classes-per-client", "1"]
FOUR = [*QUICK, "--clients", "4", "--engine", "vector"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LATECOMER_DATA", ".")


def images(side: int = 8, **changes: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    made = {
        "x_train": random.integers(0, 255, (32, side, side, 3), np.uint8),
        "y_train": np.arange(32) % 4,
        "x_test": random.integers(0, 255, (16, side, side, 3), np.uint8),
        "y_test": np.arange(16) % 4,
    }
    coarse = {f"coarse_{half}": made[f"y_{half}"] // 2 for half in ("train", "test")}
    return made | coarse | changes


def result(done: Outcome) -> dict[str, Any]:
    """What a run that went well wrote down."""
    assert done.code == 0, done.err
    (folder,) = Path("runs").iterdir()
    content: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert 0 <= content["seen"]["accuracy"] <= 100
    return content


def refused(done: Outcome, fragment: str) -> None:
    assert done.code == 2
    assert done.err.count("\n") == 1, done.err
    assert fragment in done.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("engine", ["vector", "loop"])
@pytest.mark.parametrize("model", ["conv4", "resnet18", "mobilenet"])
def test_image_models_train(command: Command, model: str, engine: str) -> None:
    np.savez("mine.npz", **images())
    done = result(
        command(
            "run", "fedavg", "--data", "npz:mine.npz", "--model", model, *QUICK, "--clients", "4", "--engine", engine
        )
    )
    assert (
        done["bytes_per_client_round"]["up"]
        == {"conv4": 485_488, "resnet18": 44_683_536, "mobilenet": 8_915_984}[model]
    )


def plays() -> dict[str, Any]:
    lines = [f"{k} of these lines are as long as they need be, and none is any longer" for k in range(10)]
    return {"text": np.array(["\n".join(lines)] * 4), "role": np.array(["A/X", "A/Y", "B/X", "B/Z"])}


def test_shakespeare_trains_an_lstm_by_itself(command: Command) -> None:
    np.savez("shakespeare.npz", **plays())
    done = result(
        command("run", "fedavg", "--data", "shakespeare:40", "--partition", "natural", *FOUR, "--unseen", ".25")
    )
    assert done["bytes_per_client_round"]["down"] == 4 * 825_220
    assert "unseen" in done
    assert next(Path("runs").iterdir()).name.startswith("fedavg-shakespeare_40-")


def test_omniglot_by_alphabet(command: Command) -> None:
    character = np.repeat(np.arange(6), 20)
    x = np.random.default_rng(0).integers(0, 255, (120, 28, 28), np.uint8)
    np.savez("omniglot.npz", x=x, alphabet=character // 2, character=character)
    words = (
        "--data",
        "omniglot",
        "--partition",
        "natural",
        "--model",
        "conv4",
        *QUICK,
        "--clients",
        "0",
        "--engine",
        "vector",
    )
    assert result(command("run", "fedavg", *words))["data"] == "omniglot"


def test_leaf_trains(command: Command) -> None:
    random = np.random.default_rng(0)
    users = {f"f{k}": {"x": random.random((10, 784)).round(3).tolist(), "y": [0, 1] * 5} for k in range(4)}
    Path("femnist").mkdir()
    Path("femnist/all_data_0.json").write_text(json.dumps({"users": list(users), "user_data": users}))
    for data in ("femnist", "leaf:femnist"):
        words = ("--data", data, "--partition", "natural", "--model", "mlp", *FOUR, "--name", data.replace(":", "-"))
        assert command("run", "fedavg", *words).code == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["femnist", "leaf-femnist"]


@pytest.mark.parametrize(
    "words",
    [
        ["--partition", "pachinko", "--alpha", "0.3", "--fine-alpha", "5"],
        ["--partition", "pachinko", "--unseen", "0.25", "--unseen-alpha", "10"],
        ["--partition", "hierarchical"],
        ["--partition", "dirichlet", "--over", "classes", "--alpha", "5", "--unseen", "0.25", "--unseen-alpha", "50"],
    ],
)
def test_partitions_deal(command: Command, words: list[str]) -> None:
    np.savez("mine.npz", **images())
    assert ("unseen" in result(command("run", "fedavg", "--data", "npz:mine.npz", *FOUR, *words))) == (
        "--unseen" in words
    )


def test_several_seeds_deal_differently(command: Command) -> None:
    np.savez("mine.npz", **images())
    words = ("--data", "npz:mine.npz", "--partition", "pachinko", *FOUR, "--seeds", "2")
    assert result(command("run", "fedavg", *words))["seeds"] == [0, 1]


def test_the_commands_that_the_page_about_data_shows_are_commands() -> None:
    page = Path(__file__).parent.parent / "docs" / "data.md"
    lines = re.findall("^    latecomer run (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) >= 6
    for method, *words in map(str.split, lines):
        given = flags.given(words, Settings, methods.get(method))
        given.pop("continue_from", None)  # a run that is not here
        assert Experiment.parse(method, given).settings.method == method


FLAT = {"x_train": np.ones((32, 5)), "x_test": np.ones((16, 5))}
BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "The model 'resnet18' takes images of at least 4x4 pixels": (images(3), ["--model", "resnet18"]),
    "The model 'mobilenet' takes images": (images(**FLAT), ["--model", "mobilenet"]),
    "The model 'conv4' takes images": (images(**FLAT), ["--model", "conv4"]),
    "The model 'lstm' takes sequences of characters; an example here has shape (3, 8, 8)": (
        images(),
        ["--model", "lstm"],
    ),
    "reads sequences of whole numbers from 0 to 3": (images(**FLAT), ["--model", "lstm"]),
    "There is no model 'resnet'; did you mean 'resnet18'?": (images(), ["--model", "resnet"]),
    "'mine' has no coarse labels": (
        {key: array for key, array in images().items() if not key.startswith("coarse")},
        ["--partition", "pachinko"],
    ),
    "unseen_alpha is 0.5, but there are no latecomers": (
        images(),
        ["--partition", "pachinko", "--unseen-alpha", "0.5"],
    ),
    "--unseen-alpha must be at least 0; got -1.0.": (images(), ["--unseen-alpha", "-1"]),
    "--fine-alpha must be greater than 0; got 0.0.": (images(), ["--fine-alpha", "0"]),
    "There is no partition 'pachinco'; did you mean 'pachinko'?": (images(), ["--partition", "pachinco"]),
    "'nowhere' holds no JSON files": (images(), ["--data", "leaf:nowhere"]),
    "There is no data set 'leaf:'": (images(), ["--data", "leaf:"]),
    "a window every 'x' characters": (images(), ["--data", "shakespeare:x"]),
    "'shakespeare' was not found: there is no shakespeare.npz": (images(), ["--data", "shakespeare"]),
}


@pytest.mark.parametrize("fragment", BAD)
def test_what_does_not_fit_is_one_sentence(command: Command, fragment: str) -> None:
    arrays, words = BAD[fragment]
    np.savez("mine.npz", **arrays)
    data = [] if "--data" in words else ["--data", "npz:mine.npz"]
    refused(command("run", "fedavg", *data, *FOUR, *words), fragment)
