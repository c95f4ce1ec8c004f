"""The page: its readers of files under node, and the whole way in Chromium."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file, save_file

import browser
import latecomer
from browser import Browser, until
from console import environment
from latecomer.handover.publish import publish
from latecomer.handover.trained import Trained
from latecomer.runs.experiment import Experiment
from latecomer.runs.run import Run

HERE = Path(__file__).parent
RUNTIME = Path(latecomer.__file__).parent / "serve" / "page" / "vendor" / "ort-wasm-simd-threaded.wasm"
ARRAYS = {
    "x": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "y": np.array([-1, 5], np.int64),
    "small": np.array([[1, -2]], np.int32),
    "real": np.array([0.5, -1.25, 3e5], np.float32),
    "double": np.array(0.125),
    "flag": np.array([True, False]),
}


def write_formats(folder: Path) -> None:
    """What numpy and safetensors make of the arrays, and files that must be refused, with a word of the sentence."""
    np.savez(folder / "stored.npz", **ARRAYS)
    np.savez_compressed(folder / "deflated.npz", **ARRAYS)
    with zipfile.ZipFile(folder / "long.npz", "w") as archive:
        archive.comment = b"with a comment"
        for name, array in ARRAYS.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, version=(2, 0))
    expected = {name: [str(a.dtype), list(a.shape), [float(v) for v in a.ravel()]] for name, a in ARRAYS.items()}
    (folder / "expected.json").write_text(json.dumps(expected))
    save_file(ARRAYS, folder / "some.safetensors")

    refused = {"half.npz": "<f2", "turned.npz": "column by column", "text.npz": "<U1", "swapped.npz": ">i4"}
    np.savez(folder / "half.npz", x=np.zeros(2, np.float16))
    np.savez(folder / "turned.npz", x=np.zeros((2, 3)).T)
    np.savez(folder / "text.npz", x=np.array(["a"]))
    np.savez(folder / "swapped.npz", x=np.zeros(2, ">i4"))
    whole = (folder / "stored.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "changed.npz").write_bytes(whole.replace(ARRAYS["x"].tobytes(), bytes(24)))
    with zipfile.ZipFile(folder / "other.npz", "w") as archive:
        archive.writestr("x.npy", "no array at all")
    with zipfile.ZipFile(folder / "bzip.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", "")
    refused |= {"cut.npz": "cut short", "changed.npz": "damaged", "other.npz": "no array", "bzip.npz": "cannot read"}
    (folder / "refused.json").write_text(json.dumps(refused))


@pytest.mark.skipif(shutil.which("node") is None, reason="The page's modules are not tested: there is no node here.")
def test_the_formats_that_the_page_reads_and_writes(tmp_path: Path) -> None:
    write_formats(tmp_path)
    command = ["node", "--test", *map(str, (HERE / "page").glob("*.test.mjs"))]
    ended = subprocess.run(
        command, env={**os.environ, "FILES": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    again = load_file(tmp_path / "again.safetensors")
    assert {name: (a.dtype, a.tolist()) for name, a in again.items()} == {
        name: (a.dtype, a.tolist()) for name, a in ARRAYS.items()
    }
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "model.onnx": b"\1\2\3",
            "naïve.txt": b"",
        }


def missing() -> str:
    """What it takes to try the page in a browser, and is not here."""
    lacking = [browser.missing(), "" if RUNTIME.is_file() else "onnxruntime-web (make page)"]
    return ", ".join(filter(None, lacking))


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser that can reach this machine alone."""
    if lacking := missing():
        pytest.skip(f"The page is not tried in a browser; missing: {lacking}.")
    opened = Browser(tmp_path_factory.mktemp("browser"))
    yield opened
    opened.close()


@dataclass(frozen=True)
class Server:
    """A server that hands out models of a run, and the data of a latecomer to it."""

    address: str
    log: Path
    trained: Trained
    own: tuple[NDArray[Any], NDArray[Any]]
    more: tuple[NDArray[Any], NDArray[Any]]


@contextmanager
def serving(name: str, folder: Path) -> Iterator[Server]:
    """A small run on digits, published and served."""
    steps = {"steps": 4} if name in ("pefll", "pfedhn") else {}
    settings = {"data": "digits", "clients": 12, "unseen": 0.25, "rounds": 4, "cohort": 4, "evaluate_every": 2, **steps}
    experiment = Experiment.parse(name, {**settings, "out": str(folder), "name": name})
    Run.begin(experiment).go()
    trained = latecomer.load(folder / name)
    bundle, log = publish(trained, folder / f"{name}-bundle"), folder / f"{name}.log"
    federation = experiment.federations()[0]
    last, examples = len(federation) - 1, federation.examples
    rows = [federation.rows(split)[last].long() for split in ("train", "test")]
    own, more = ((examples.x[some].numpy(), examples.y[some].numpy()) for some in rows)
    words = [sys.executable, "-m", "latecomer", "serve", str(bundle), "--port", "0"]
    with log.open("w") as errors:
        running = subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        assert " at http" in line, log.read_text()
        yield Server(line.split()[-1].rstrip("/"), log, trained, own, more)
    finally:
        running.terminate()
        running.communicate(timeout=30)


@pytest.fixture(scope="module")
def server(window: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Servers by the names of their methods, each started once; the browser shows the page of the one asked for."""
    folder, started = tmp_path_factory.mktemp("servers"), {}
    with ExitStack() as stack:

        def of(name: str) -> Server:
            if name not in started:
                started[name] = stack.enter_context(serving(name, folder))
            window.open(started[name].address)
            until(lambda: "Method" in window.text("#facts"), "the server's facts")
            return started[name]

        yield of


def give(window: Browser, path: Path, by: str, x: NDArray[Any], y: NDArray[Any] | None = None) -> None:
    """A file of examples, and of labels if there are some, for one of the page's inputs."""
    np.savez_compressed(path, x=x, **({} if y is None else {"y": y}))
    window.write(by, str(path))


def outcome(window: Browser, css: str, word: str) -> str:
    """What an element says as soon as it has this word; a problem is a failure."""
    until(lambda: word in window.text(css) or window.text("#problem"), word)
    assert not window.text("#problem")
    return window.text(css)


def guesses(window: Browser) -> list[int]:
    return [int(word) for word in window.script("return document.getElementById('grid').dataset.guesses").split(",")]


def held_out(y: NDArray[Any]) -> NDArray[Any]:
    """As the page does where a method chooses by held-out examples: every fifth of each class."""
    return np.array([list(y[: i + 1]).count(label) % 5 == 0 for i, label in enumerate(y)])


@pytest.mark.parametrize("method", ["pefll", "odpflhn", "flowdup", "knnper"])
def test_the_whole_way(method: str, window: Browser, server: Callable[[str], Server], tmp_path: Path) -> None:
    """From a file to predictions and to a downloaded model, all equal to what Python makes of the same examples."""
    window.requests()
    at, (x, y), (more, truth) = (found := server(method)), *(found.own, found.more)
    apart = held_out(y) if method == "knnper" else np.zeros(len(y), bool)
    model = at.trained.personalise(x[~apart], y[~apart], held_out=(x[apart], y[apart]))

    give(window, tmp_path / "mine.npz", "#files", x, y)
    assert f"{len(x)} examples and {len(x)} labels" in outcome(window, "#found", "Found")
    window.click("#make")
    outcome(window, "#status", "ready")
    assert guesses(window) == model.predict(x).tolist()
    give(window, tmp_path / "more.npz", "#others", more, truth)
    assert f"{model.score(more, truth):.1f}\u00a0%" in outcome(window, "#score", "other examples")
    assert guesses(window) == model.predict(more).tolist()

    window.click("#save")
    file = until(lambda: next(iter(window.downloads.glob("*.zip")), None), "the download")
    until(lambda: zipfile.is_zipfile(file), "the end of the download")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path)
    file.unlink()
    assert from_files(tmp_path / "model.onnx", more) == model.predict(more).tolist()
    if method in ("pefll", "odpflhn"):
        window.click("#alone")
        alone = until(lambda: next(iter(window.downloads.glob("*.onnx")), None), "the download")
        assert from_files(alone, more) == model.predict(more).tolist()
        alone.unlink()

    sent = window.requests()
    assert {address.split("/v1/")[0].split("/assets/")[0].rstrip("/") for _, address, _ in sent} == {at.address}
    posts = [(address, json.loads(body)) for how, address, body in sent if how != "GET"]
    descriptors = [list(body) == ["descriptor"] and len(body["descriptor"]) < 64 for _, body in posts]
    assert descriptors == [True] * (2 if method in ("pefll", "odpflhn") else 0)
    assert not any(body for how, _, body in sent if how == "GET")
    assert at.log.read_text().count(" POST ") == len(posts)
    assert window.script("return document.querySelectorAll('tr.sent').length") == len(posts)
    assert "none from another server" in window.text("#loaded")
    assert window.complaints() == []


def from_files(graph: Path, x: NDArray[Any]) -> list[int]:
    """What a program without latecomer predicts with a downloaded model."""
    import onnxruntime

    grown = graph.with_name("grown.safetensors")  # what grows with a client's examples
    (logits,) = onnxruntime.InferenceSession(graph).run(None, {"x": x} | (load_file(grown) if grown.exists() else {}))
    found: list[int] = logits.argmax(1).tolist()
    return found


@pytest.mark.parametrize(("method", "common"), [("fedavgplus", True), ("pfedhn", False)])
def test_methods_that_train_say_why_they_cannot(
    method: str, common: bool, window: Browser, server: Callable[[str], Server], tmp_path: Path
) -> None:
    at = server(method)
    assert "browsers cannot train" in window.text("#why")
    assert f'latecomer.join("{at.address}"' in window.text("#why")
    give(window, tmp_path / "mine.npz", "#files", *at.own)
    outcome(window, "#found", "Found")
    assert window.script("return document.getElementById('make').disabled") is not common
    if common:
        window.click("#make")
        assert "not one of your own" in outcome(window, "#status", "ready")
        params, form = at.trained.states[0]["params"], at.trained.form
        logits = at.trained.method.task.model(params, form.prepare(torch.from_numpy(at.own[0])))
        assert guesses(window) == logits.argmax(1).tolist()


def test_a_folder_of_images_is_read_like_an_npz(
    window: Browser, server: Callable[[str], Server], tmp_path: Path
) -> None:
    at, (x, y) = (found := server("pefll")), found.own
    order = []
    for label in np.unique(y).tolist():
        (tmp_path / "mine" / str(label)).mkdir(parents=True)
        for i in np.flatnonzero(y == label).tolist():
            Image.fromarray(x[i, :, :, 0]).save(tmp_path / "mine" / str(label) / f"{i:04}.png")
            order.append(i)
    model = at.trained.personalise(x[order], y[order], held_out=(x[:0], y[:0]))
    for bring in (
        lambda: window.write("#folder", str(tmp_path / "mine")),
        lambda: window.drop("#drop", tmp_path / "mine"),
    ):
        window.open(at.address)
        until(lambda: "Method" in window.text("#facts"), "the server's facts")
        bring()
        assert f"{len(x)} examples and {len(x)} labels" in outcome(window, "#found", "Found")
        window.click("#make")
        outcome(window, "#status", "ready")
        assert guesses(window) == model.predict(x[order]).tolist()

    Image.fromarray(x[0, :, :, 0]).resize((16, 16)).save(tmp_path / "large.png")
    window.write("#others", str(tmp_path / "large.png"))
    until(lambda: "Tick “resize images”" in window.text("#problem"), "the refusal")
    window.click("#resize")
    window.write("#others", str(tmp_path / "large.png"))
    outcome(window, "#score", "Predictions, on other examples")
    assert len(guesses(window)) == 1


def test_what_is_wrong_is_said_in_a_sentence(window: Browser, server: Callable[[str], Server], tmp_path: Path) -> None:
    at, (x, y) = (found := server("pefll")), found.own
    for name, arrays, sentence in (
        ("shape", {"x": x[:, :4]}, "These examples are uint8 [4,8,1]; the server's models take images"),
        ("label", {"x": x, "y": y + 100}, "is no label here: the classes are 0 to 9"),
        ("names", {"a": x}, "has no array x; it has a."),
    ):
        np.savez(tmp_path / f"{name}.npz", **arrays)
        window.write("#files", str(tmp_path / f"{name}.npz"))
        until(lambda sentence=sentence: sentence in window.text("#problem"), sentence)
        assert window.script("return document.getElementById('make').disabled")
    give(window, tmp_path / "bare.npz", "#files", x)
    outcome(window, "#found", "no labels")
    window.click("#make")
    until(lambda: "there are no labels" in window.text("#problem"), "the refusal")
    assert " POST " not in at.log.read_text().splitlines()[-1]


def test_the_page_says_so_without_the_runtime(window: Browser, server: Callable[[str], Server], tmp_path: Path) -> None:
    at = server("pefll")
    window.block("*ort.wasm.min.mjs")
    try:
        window.open(at.address)
        give(window, tmp_path / "mine.npz", "#files", *at.own)
        outcome(window, "#found", "Found")
        window.click("#make")
        until(lambda: window.text("#problem") != "", "a sentence")
        assert "has no onnxruntime-web" in window.text("#problem")
    finally:
        window.block()
        window.complaints()
