"""`latecomer.join`: a newcomer gets from a server what it would get from the run itself."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latecomer
from latecomer import tensorfile
from latecomer.errors import DataError, ServerError, SettingError
from latecomer.handover import join as joining
from latecomer.handover.bundle import Bundle, publish
from latecomer.runs.experiment import Experiment
from latecomer.runs.run import Run
from latecomer.serve.keys import Keys
from latecomer.serve.listen import Server, configure
from latecomer.serve.service import Service
from latecomer.serve.settings import Serving

OWN = {"pefll": {"steps": 2}, "pfedhn": {"steps": 2, "novel_rounds": 3}, "flowdup": {}, "fedavgplus": {}, "fedavg": {}}
Opened = Callable[..., tuple[Server, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """A tiny run of a method, and its bundle; each is made once."""
    place, made = tmp_path_factory.mktemp("runs"), {}

    def run(method: str) -> tuple[Path, Path]:
        if method not in made:
            settings = {"data": "digits", "clients": 8, "unseen": 0.25, "rounds": 1, "cohort": 2, "engine": "loop"}
            own = {**settings, **OWN[method], "out": str(place), "name": method}
            Run.begin(Experiment.parse(method, own)).go()
            made[method] = place / method, publish(latecomer.load(place / method), place / f"{method}-bundle")
        return made[method]

    return run


@pytest.fixture
def opened() -> Iterator[Opened]:
    """A real server in a thread, and its address."""
    started: list[tuple[Server, threading.Thread]] = []

    def serve(bundle: Path, **settings: Any) -> tuple[Server, str]:
        service = Service(bundle, Serving(port=0, **settings), Bundle.open)
        told: list[str] = []
        server = Server(configure(service), service, told.append)
        started.append((server, threading.Thread(target=server.run)))
        started[-1][1].start()
        while not told:
            time.sleep(0.01)
        return server, told[0]

    yield serve
    for server, thread in started:
        server.handle_exit(15, None)
        thread.join(10)


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    source = latecomer.data.load("digits")  # type: ignore[attr-defined]
    return np.asarray(source.x_train[:40]), np.asarray(source.y_train[:40])


@pytest.mark.parametrize("method", OWN)
def test_a_newcomer_gets_the_model_that_the_run_would_give_it(
    runs: Callable[[str], tuple[Path, Path]], opened: Opened, digits: tuple[Any, Any], method: str, tmp_path: Path
) -> None:
    run, bundle = runs(method)
    _, url = opened(bundle)
    x, y = digits
    apart = (x[30:], y[30:])
    got = latecomer.join(url, x[:30], y[:30], held_out=apart)
    own = latecomer.load(run).personalise(x[:30], y[:30], held_out=apart)
    assert np.abs(got.logits(x) - own.logits(x)).max() < 1e-4
    assert (got.predict(x) == own.predict(x)).all()
    assert got.version == Bundle.open(bundle).version
    folder = got.save(tmp_path / "mine")
    assert json.loads((folder / "bundle.json").read_text())["version"] == got.version
    assert (folder / "model.safetensors").read_bytes() == got.files["model.safetensors"]
    with pytest.raises(ServerError, match="exists already"):
        got.save(folder)
