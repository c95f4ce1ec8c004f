"""A real federation on loopback: TLS, node keys, one SuperLink, and nodes that are processes, some of them killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import latecomer
from console import Command
from deployment import Site, certificates, end, free_port, node_key, site
from latecomer import tree
from latecomer.data import Federation
from latecomer.deploy import project
from latecomer.deploy.news import heard
from latecomer.engines.flower.control import Control
from latecomer.handover.personal import Personal
from latecomer.runs.experiment import Experiment
from latecomer.runs.folder import Folder
from latecomer.runs.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAMES = [f"node{k}" for k in range(4)]
SMALL: dict[str, Any] = {"clients": 4, "cohort": 4, "rounds": 3, "evaluate_every": 3, "threads": 1, "model": "mlp"}
SMALL |= {"timeout": 120.0}  # a message that a killed node has lost is sent once more after half of it
OWN: dict[str, dict[str, Any]] = {"pefll": {"steps": 5}, "flowdup": {"dimension": 100}}


@dataclass
class Federated:
    """A SuperLink with four nodes, and the same trainings on one machine."""

    site: Site
    federation: Federation
    nodes: dict[str, subprocess.Popen[bytes]]

    def run(self, name: str) -> Folder:
        return Folder.open(self.site.folder / name)

    def start(self, method: str, name: str) -> tuple[Control, int, Path]:
        """Hand an app over, and do not wait."""
        place = self.site.folder / name
        control = Control(self.site.address, self.site.folder / "ca.crt")
        return control, control.start(self.site.folder / method, {"folder": str(place), "wait": 60.0}), place


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federated]:
    torch.set_num_threads(1)
    with site(tmp_path_factory.mktemp("site")) as found:
        found.superlink()
        found.register(*NAMES, "late")
        for method, own in OWN.items():
            split = {"unseen": 0, "labelled": 1, "split": "pefll", "partition": "classes"}
            asked = {**SMALL, **own, **split, "engine": "loop", "device": "cpu", "out": str(found.folder)}
            run = Run.begin(Experiment.parse(method, {**asked, "name": f"{method}-here"}))
            run.go()
            project.new(found.folder / method, method, {**SMALL, **own})
        federation = run.training.federations[0]
        for number, name in enumerate([*NAMES, "late"]):
            save(found.folder / f"{name}.npz", federation, number % 4)
        nodes = {name: found.node(name, "--client", k, "--report-scores") for k, name in enumerate(NAMES)}
        for name in NAMES:
            found.await_log(name, "is ready")
        yield Federated(found, federation, nodes)


def save(path: Path, federation: Federation, client: int) -> None:
    """A client's own file."""
    arrays = {}
    for split, name in (("train", ""), ("val", "_val"), ("test", "_test")):
        rows = federation.rows(split)[client].long()
        arrays |= {f"{key}{name}": getattr(federation.examples, key)[rows].numpy() for key in ("x", "y")}
    np.savez(path, **arrays)


def same(ours: Folder, theirs: Folder) -> None:
    """The same weights to 1e-5, and the same bytes in each exchange."""
    found = [folder.load() for folder in (ours, theirs)]
    one, other = (tree.flatten(part[0]["0"]["state"]) for part in found if part is not None)
    assert one.keys() == other.keys()
    for path, leaf in other.items():
        torch.testing.assert_close(one[path], leaf, rtol=1e-5, atol=1e-5)
    lines = [(folder.path / "ledger.jsonl").read_text().splitlines() for folder in (ours, theirs)]
    told = [[json.loads(line) for line in some] for some in lines]
    columns = ("round", "step", "asked", "answered", "down", "up")
    assert [[line[name] for name in columns] for line in told[0]] == [
        [line[name] for name in columns] for line in told[1]
    ]


def models(site: Site, name: str) -> list[Personal]:
    return [Personal.open(place) for place in sorted((site.folder / f"{name}.node" / "models").iterdir())]


def test_a_deployed_training_is_the_simulated_one_and_everybody_has_a_model(here: Federated, command: Command) -> None:
    folder = here.site.folder
    link = ("--superlink", here.site.address, "--root-certificates", folder / "ca.crt")
    done = command("flower", "run", folder / "pefll", *link, "--out", folder, "--name", "pefll-there")
    assert done.code == 0, done.err
    assert "pefll: round 3 of 3, validation" in done.err
    assert "Models handed out: 4 to members, 0 to latecomers" in done.out
    assert done.out.splitlines()[-1] == str(folder / "pefll-there")
    same(here.run("pefll-there"), here.run("pefll-here"))
    results = [json.loads((folder / f"pefll-{where}" / "result.json").read_text()) for where in ("here", "there")]
    assert results[0]["seen"] == results[1]["seen"]
    assert results[0]["bytes"] == results[1]["bytes"]
    for name in NAMES:
        (model,) = models(here.site, name)
        examples = np.load(folder / f"{name}.npz")
        assert model.predict(examples["x_test"]).shape == examples["y_test"].shape


def test_a_node_killed_in_a_round_comes_back_and_the_result_is_the_same(here: Federated) -> None:
    control, number, place = here.start("flowdup", "flowdup-there")
    killed = False
    with control:
        for line in control.lines(number):
            if heard(line).get("round") == 1 and not killed:
                end(here.nodes["node1"], signal.SIGKILL)
                here.nodes["node1"].wait()
                here.nodes["node1"] = here.site.node("node1", "--client", 1, "--report-scores")
                killed = True
        assert control.outcome(number) == ""
    assert killed
    assert (place / "result.json").is_file()
    same(here.run("flowdup-there"), here.run("flowdup-here"))


def test_a_server_that_is_killed_goes_on(here: Federated, command: Command) -> None:
    folder = here.site.folder
    control, number, place = here.start("pefll", "pefll-killed")
    with control:
        for line in control.lines(number):
            if heard(line).get("round") == 1:
                os.kill(server_process(here.site), signal.SIGKILL)
                control.stop(number)  # sooner than the SuperLink would notice
                break
    assert not (place / "result.json").is_file()
    link = ("--superlink", here.site.address, "--root-certificates", folder / "ca.crt")
    done = command("flower", "run", folder / "pefll", *link, "--out", folder, "--name", "pefll-killed")
    assert done.code == 0, done.err
    assert "round 1 of 3" in done.err, "it began with its checkpoint"
    same(here.run("pefll-killed"), here.run("pefll-here"))


def server_process(site: Site) -> int:
    """The ServerApp that the SuperLink has started, by way of its SuperExec."""
    found, above = [], {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            above[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            if any(word.endswith(b"flwr-serverapp") for word in (place / "cmdline").read_bytes().split(b"\0")):
                found.append(int(place.name))
    for process in found:
        parent = process
        while parent in above and parent != site.processes[0].pid:
            parent = above[parent]
        if parent == site.processes[0].pid:
            return process
    raise LookupError("no ServerApp is running")


def test_a_node_that_comes_after_training_gets_its_model_over_flower(here: Federated, command: Command) -> None:
    folder = here.site.folder
    here.nodes["late"] = here.site.node("late")
    here.site.await_log("late", "is ready")
    link = ("--superlink", here.site.address, "--root-certificates", folder / "ca.crt")
    done = command("flower", "run", folder / "pefll", *link, "--out", folder, "--name", "pefll-there")
    assert done.code == 0, done.err
    assert "Models handed out: 0 to members, 1 to latecomers" in done.out
    (model,) = models(here.site, "late")
    mine = np.load(folder / "late.npz")
    held_out = mine["x_val"], mine["y_val"]
    expected = latecomer.load(folder / "pefll-there").personalise(mine["x"], mine["y"], held_out=held_out, client=4)
    np.testing.assert_allclose(model.logits(mine["x_test"]), expected.logits(mine["x_test"]), rtol=1e-4, atol=1e-4)


def test_a_latecomer_can_also_ask_by_https(here: Federated, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, port = here.site.folder, free_port()
    assert command("publish", folder / "pefll-there", "-o", folder / "bundle").code == 0
    here.site.start(
        "serve",
        *("python", "-m", "latecomer", "serve", "bundle", "--port", port),
        *("--certificate", "server.pem", "--private-key", "server.key"),
    )
    here.site.await_log("serve", "Serving")
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.crt"))
    mine = np.load(folder / "late.npz")
    model = latecomer.join(f"https://127.0.0.1:{port}", mine["x"], mine["y"])
    assert model.predict(mine["x_test"]).shape == mine["y_test"].shape


def test_a_node_without_a_registered_key_is_refused(here: Federated) -> None:
    node_key(here.site.folder / "stranger")
    save(here.site.folder / "stranger.npz", here.federation, 0)
    process = here.site.node("stranger")
    assert process.wait(120) == 2
    assert "does not take this key: it is not registered" in here.site.log("stranger")


def test_another_authority_is_not_trusted(here: Federated, command: Command, tmp_path: Path) -> None:
    certificates(tmp_path)
    wrong = ("--superlink", here.site.address, "--root-certificates", tmp_path / "ca.crt")
    done = command("flower", "run", here.site.folder / "pefll", *wrong)
    assert done.code == 2
    assert "certificate" in done.err
    assert len(done.err.strip().splitlines()) == 1
    node = here.site.start(
        "doubtful",
        "python",
        "-m",
        "latecomer",
        "node",
        *wrong,
        "--key",
        "late",
        "--data",
        "late.npz",
        "--state",
        "other",
    )
    assert node.wait(120) == 2
    assert "does not match" in here.site.log("doubtful")


def test_data_of_another_shape_are_refused_and_the_server_says_so(here: Federated, command: Command) -> None:
    """A training for examples that nobody here has."""
    folder = here.site.folder
    np.savez(folder / "rows.npz", x=np.zeros((10, 5), np.float32), y=np.arange(10))
    assert (
        command(
            *("flower", "new", folder / "rows", "pefll", "--clients", 4, "--cohort", 4, "--model", "mlp"),
            *("--data", f"npz:{folder / 'rows.npz'}"),
        ).code
        == 0
    )
    link = ("--superlink", here.site.address, "--root-certificates", folder / "ca.crt")
    done = command("flower", "run", folder / "rows", *link, "--wait", 3)
    assert done.code == 2
    assert "Of 4 nodes 0 came within 3 seconds." in done.err
    assert "uint8 [8, 8, 1]" in done.err
    assert not (folder / "rows" / "runs").exists()


def test_nothing_is_left_behind(here: Federated) -> None:
    """Of the ServerApps that ended, no process is there any more."""
    gone = False
    for _ in range(100):
        try:
            server_process(here.site)
        except LookupError:
            gone = True
            break
        time.sleep(0.2)
    assert gone, "a ServerApp is still running"
