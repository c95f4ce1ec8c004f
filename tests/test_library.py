"""A library behaves: whoever imports latecomer finds the process as it was, and the package says what it is."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

import latecomer
from console import Command, environment
from latecomer.runs import host
from latecomer.runs.settings import Settings

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# What a process has of its own. What torch and scikit-learn set when they are imported, or first used, is theirs.
WITHIN = """
import os, signal, sys, threading, warnings
import numpy, safetensors.torch, sklearn.datasets, torch

torch.set_num_threads(2)
torch.func.vmap(torch.func.grad(torch.sum))(torch.ones(2, 2))  # imports more of torch


def elsewhere():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def process():
    cudnn = torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "threads in a new thread": elsewhere(),
        "precision": torch.get_float32_matmul_precision(),
        "matmul": torch.backends.cuda.matmul.allow_tf32,
        "cudnn": (cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic, cudnn.enabled),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "random": torch.random.get_rng_state().tolist(),
        "numpy's random": numpy.random.get_state()[1].tolist(),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "warnings": list(warnings.filters),
        "hooks": (sys.excepthook, threading.excepthook, sys.displayhook),
        "streams": (sys.stdout, sys.stderr, sys.stdout.encoding),
        "recursion": sys.getrecursionlimit(),
    }


before = process()
from latecomer import Experiment, federate, make_engine, make_task, methods, train
from latecomer.nets.models import MLP

few = dict(clients=8, unseen=0.25, rounds=2, cohort=4, batch=8, threads=1, tf32=True)
for name, more in (("pefll", dict(engine="vector", seeds=2)), ("fedavg", dict(engine="loop", model="lenet"))):
    training = Experiment.parse(name, {**few, **more}).training()
    assert [note for note in training.notes if note.startswith("This process has 2 threads, not the 1 of")]
    for _ in training.go():
        pass
    training.finish()
federation = federate("digits", partition="classes", clients=8, unseen=0.25)
method = methods.get("fedavg")(task=make_task(federation, MLP), clients=8, members=federation.members)
make_engine("vector", method, [federation], "cpu")
train.run(method, federation, rounds=2, cohort=4)
train.together([(method, federation), (method, federation)], rounds=2, cohort=4)
after = process()
changed = [name for name in before if before[name] != after[name]]
there, now = before["environment"].items(), after["environment"].items()
sys.exit(f"changed: {changed}; in the environment: {sorted(there ^ now)}" if changed else 0)
"""


def test_training_from_python_changes_nothing_of_the_process(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHIN],
        cwd=tmp_path,
        env={**environment(), "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.fixture
def restoring() -> object:
    """What tests of `prepare` change, put back."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.allow_tf32
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = cudnn


def process() -> tuple[int, str, bool]:
    return torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.usefixtures("restoring")
def test_prepare_does_what_the_settings_say() -> None:
    host.prepare(Settings(method="fedavg", threads=2, tf32=False))
    assert process() == (2, "highest", False)
    host.prepare(Settings(method="fedavg", threads=0, tf32=True))
    assert process() == (2, "high", True), "threads=0 leaves them as they are"


@pytest.mark.usefixtures("restoring")
def test_the_command_line_prepares_its_process(command: Command, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    words = ("--clients", 8, "--rounds", 2, "--cohort", 4, "--engine", "vector", "--out", tmp_path, "--name", "x")
    assert command("run", "fedavg", "--threads", 2, "--no-tf32", *words).code == 0
    assert process() == (2, "highest", False)


@pytest.mark.usefixtures("restoring")
def test_a_resumed_run_has_the_threads_it_began_with(command: Command, tmp_path: Path) -> None:
    from latecomer import Experiment
    from latecomer.runs.run import Run

    torch.set_num_threads(2)
    values = {"clients": 8, "rounds": 2, "cohort": 4, "engine": "vector", "out": str(tmp_path), "name": "x"}
    run = Run.begin(Experiment.parse("fedavg", values))
    run.stop = True
    assert run.go() is None
    torch.set_num_threads(1)
    resumed = Run.resume(tmp_path / "x")
    assert torch.get_num_threads() == 1, "from Python the process stays as it is"
    assert any("2 threads" in note and "not bit for bit" in note for note in resumed.training.notes)
    resumed.folder.release()
    ended = command("resume", tmp_path / "x")
    assert (ended.code, torch.get_num_threads()) == (0, 2)
    assert "not bit for bit" not in ended.err


def test_types_are_shipped() -> None:
    """A type checker reads latecomer's annotations only if this file is installed with it."""
    assert resources.files("latecomer").joinpath("py.typed").is_file()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["latecomer"]


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "latecomer.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", latecomer.__version__)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f'version: "{latecomer.__version__}"' in citation.splitlines()


def test_what_is_pinned_is_within_the_bounds() -> None:
    pinned = {
        canonical(name): version
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
        for name, _, version in [line.partition("==")]
    }
    extras = PROJECT["project"]["optional-dependencies"].values()
    for wanted in map(Requirement, [*PROJECT["project"]["dependencies"], *(one for extra in extras for one in extra)]):
        assert pinned[canonical(wanted.name)] in wanted.specifier, str(wanted)
    assert [bound for bound in PROJECT["project"]["dependencies"] if "<" not in bound] == []
