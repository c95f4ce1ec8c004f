"""One newcomer, every way to its model: do all of them predict the same, and what the run said of it as a latecomer?

    python benchmarks/everywhere.py [--methods pefll,odpflhn,flowdup,pfedhn,knnper,fedavgplus] [--rounds 60]

Each method is trained on digits by the command line. The last latecomer then gets its model by `latecomer meet`, by
`latecomer personalise` and `predict`, from Python, over HTTP from `latecomer serve`, and from the published bundle with
numpy and onnxruntime alone (examples/device; a descriptor is sent over HTTP there, too). Prints the accuracy by each
way, and the share of predictions that are the same as from Python. In a browser it is tests/test_page.py that compares.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import numpy as np

import latecomer

METHODS = "pefll,odpflhn,flowdup,pfedhn,knnper,fedavgplus"
DEVICE = Path(__file__).parent.parent / "examples" / "device" / "join.py"
RUN = [
    "--clients",
    "40",
    "--unseen",
    "0.2",
    "--classes-per-client",
    "5",
    "--examples",
    "20",
    "--cohort",
    "10",
    "--evaluate-every",
    "30",
]
SETTINGS = {
    "pefll": ["--steps", "10", "--lr", "0.05", "--server-lr", "0.002"],
    "odpflhn": ["--lr", "0.05", "--epochs", "5"],
    "pfedhn": ["--steps", "10", "--lr", "0.05"],
    "flowdup": ["--server-lr", "0.005"],
    "knnper": ["--lr", "0.1"],
    "fedavgplus": ["--lr", "0.1"],
}


def command(*words: object) -> str:
    """The last line that `latecomer ...` prints."""
    done = subprocess.run([sys.executable, "-m", "latecomer", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.splitlines()[-1]


def by_name(path: Path, column: str, client: int) -> float:
    with path.open() as file:
        return next(float(row[column]) for row in csv.DictReader(file) if int(row["client"]) == client)


def over_http(bundle: Path, data: Path, new: Path, folder: Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Predictions by `latecomer.join`, and by examples/device, which knows no latecomer and no torch."""
    words = [sys.executable, "-m", "latecomer", "serve", str(bundle), "--port", "0"]
    own, more = np.load(data), np.load(new)["x"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        try:
            joined = latecomer.join(url, own["x"], own["y"], held_out=(own["x_val"], own["y_val"])).predict(more)
            return joined, without_torch(bundle, data, new, url, folder)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def without_torch(bundle: Path, data: Path, new: Path, url: str, folder: Path) -> np.ndarray | None:
    """None where the rule has a newcomer train."""
    block = folder / "nothing"
    for name in ("torch", "latecomer"):
        (block / name).mkdir(parents=True, exist_ok=True)
        (block / name / "__init__.py").write_text("raise ImportError('this device has it not')\n")
    words, environment = (
        [sys.executable, str(DEVICE), str(bundle), str(data), str(new)],
        {**os.environ, "PYTHONPATH": str(block)},
    )
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if done.returncode:
        return None
    if done.stdout.startswith("{"):
        request = urllib.request.Request(f"{url}/v1/models", done.stdout.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            (folder / "model.safetensors").write_bytes(answer.read())
        words.append(str(folder / "model.safetensors"))
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    return np.array([int(line) for line in done.stdout.split()])


def tried(method: str, rounds: int, folder: Path) -> list[str]:
    """One line of the table."""
    words = [*RUN, *SETTINGS[method], "--rounds", rounds, "--out", folder, "--name", "run"]
    run = Path(command("run", method, *words))
    federation = latecomer.Experiment.read((run / "settings.toml").read_text(), run).federations()[0]
    client, x, y = len(federation) - 1, federation.examples.x.numpy(), federation.examples.y.numpy()
    rows = {split: federation.rows(split)[client].long().numpy() for split in ("train", "val", "test")}
    data, new = folder / "mine.npz", folder / "new.npz"
    np.savez(data, x=x[rows["train"]], y=y[rows["train"]], x_val=x[rows["val"]], y_val=y[rows["val"]])
    np.savez(new, x=x[rows["test"]], y=y[rows["test"]])
    met = Path(command("meet", run, "--out", folder, "--name", "met"))
    command(
        "predict",
        command("personalise", run, "--data", data, "-o", folder / "mine"),
        "--data",
        new,
        "-o",
        folder / "l.csv",
    )
    with (folder / "l.csv").open() as file:
        by_command = np.array([int(row["label"]) for row in csv.DictReader(file)])
    own = np.load(data)
    held_out = own["x_val"], own["y_val"]
    python = latecomer.load(run).personalise(own["x"], own["y"], held_out=held_out).predict(x[rows["test"]])
    bundle = Path(command("publish", run, "-o", folder / "bundle"))
    rule = json.loads((bundle / "bundle.json").read_text())["rule"]
    joined, alone = over_http(bundle, data, new, folder)
    said, again = (by_name(place / "clients.csv", "accuracy", client) for place in (run, met))
    cells = [f"{said:.2f}", f"{again:.2f}"]
    for guesses in (by_command, python, joined, alone):
        if guesses is None:
            cells.append("trains")
            continue
        right, same = (100 * (guesses == other).mean() for other in (y[rows["test"]], python))
        cells.append(f"{right:.2f}" + f" ({same:.0f} % the same)" * (guesses is not python))
    return [method, rule, *cells]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args(words)
    heading = ["method", "rule", "the run", "meet", "personalise, predict", "Python", "HTTP (join)", "no torch"]
    print("| " + " | ".join(heading) + " |\n" + "|---" * len(heading) + "|")
    for method in options.methods.split(","):
        with tempfile.TemporaryDirectory() as folder:
            print("| " + " | ".join(tried(method, options.rounds, Path(folder))) + " |", flush=True)


if __name__ == "__main__":
    main()
