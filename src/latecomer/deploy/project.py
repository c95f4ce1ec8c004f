"""The few files of an app that Flower runs: what is trained, and a line each that names the server and the client."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..checks import check_plan
from ..data import Examples, Form, load
from ..data.split import Split
from ..errors import RunError, SettingError
from ..handover.drafts import drafted
from ..handover.files import read_client
from ..runs.experiment import Experiment
from ..runs.files import check_name
from ..settings import check_ranges, dump, flag, setting, settings_of

OF_NODES = {*settings_of(Split)} - {"clients", "validation"}
"""Settings that say how data are dealt. Here everybody brings its own."""
OF_ONE_MACHINE = {"start", "continue_from", "engine", "seeds", "chunk", "graphs", "out", "name"}
FIXED = {"engine": "flower", "unseen": 0.0, "validators": 0.0, "budgets": (), "labelled": 1.0, "unseen_labelled": True}

APP = '''"""An app for Flower: `latecomer flower run` hands it to a SuperLink. What is trained is in settings.toml."""

from pathlib import Path

from latecomer.deploy.server import server_app
from latecomer.node.stock import client_app

server = server_app(Path(__file__).parent)
client = client_app()
'''

ABOUT = """[project]
name = "latecomer-{method}"
version = "1.0.0"
description = "{method}, trained by latecomer over a SuperLink"
license = "Apache-2.0"
dependencies = ["latecomer[flower]=={version}"]

[tool.flwr.app]
publisher = "latecomer"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]
folder = {folder}
wait = 300.0
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Connection:
    """Where the SuperLink is, and whom to trust that it is the one."""

    superlink: str = setting("127.0.0.1:8000", "HOST:PORT of the SuperLink")
    root_certificates: str = setting("", "file of the authority whose certificate the SuperLink has, in PEM")
    insecure: bool = setting(False, "without TLS, for tests on one machine: whoever listens can read everything")

    def __post_init__(self) -> None:
        check_ranges(self)
        if bool(self.root_certificates) == self.insecure:
            raise SettingError("Give --root-certificates FILE, or --insecure to do without TLS.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Submission(Connection):
    """How an app is run."""

    name: str = setting("run", "name of the run folder, which is in runs/ of the app unless --out says otherwise")
    out: str = setting("", "folder that holds the run folders, on the machine of the SuperLink")
    wait: float = setting(300.0, "seconds to wait for the nodes that train", above=0, high=10**7)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name(self.name)


def new(folder: Path, method: str, given: Mapping[str, Any], classes: int = 0) -> Experiment:
    """Write an app. Settings are checked as `latecomer run` checks them; `data` shows what examples look like."""
    for name in given:
        if name in OF_NODES:
            raise SettingError(f"{flag(name)} says how data are dealt, but nodes bring their own; leave it out.")
        if name in OF_ONE_MACHINE:
            raise SettingError(f"{flag(name)} is for a run on one machine; leave it out.")
    experiment = Experiment.parse(method, {**given, **FIXED})
    members = experiment.settings.clients
    if not members:
        raise SettingError("--clients must be at least 1: so many nodes train.")
    form = form_of(experiment.settings.data, classes)
    made = experiment.method_for(form, members, members)  # whatever does not fit is found here
    check_plan(made, members, experiment.settings.with_members(members))
    task = {"clients": members, "members": members, **form.table()}
    text = dump({"run": dataclasses.asdict(experiment.settings), "method": dict(experiment.own), "task": task})
    place = dump({"folder": str(folder.absolute() / "runs" / "run")}).partition("= ")[2].strip()
    about = ABOUT.format(method=experiment.settings.method, version=__version__, folder=place)
    with drafted(folder, RunError) as draft:
        files = {"pyproject.toml": about, "app.py": APP, "settings.toml": text, ".gitignore": "runs/\n"}
        for name, content in files.items():
            (draft / name).write_text(content, encoding="utf-8")
    return experiment


def form_of(data: str, classes: int) -> Form:
    """What an example looks like: those of a data set that has a name, or of one client's file, npz:PATH."""
    if data.startswith("npz:"):
        mine = read_client(data.removeprefix("npz:"))
        x, y = np.asarray(mine["x"]), mine["y"]
        if not classes and (y is None or not (y >= 0).any()):
            raise SettingError(f"{data} has no labels to count classes by; give --classes.")
        return Examples.of(x, np.full(len(x), -1) if y is None else y, classes or None).form
    source = load(data)
    return Examples.of(source.x, source.y, classes or source.classes, source.mean, source.std).form


def read(folder: Path) -> Experiment:
    """The settings of an app."""
    path = folder / "settings.toml"
    try:
        text = path.read_text(encoding="utf-8")
        tomllib.loads(text)["task"]["members"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(f"{folder} is no app that `latecomer flower new` wrote: {error}.") from error
    return Experiment.read(text, path)


def run_folder(app: Path, how: Submission) -> Path:
    """Where the run is written, on the machine of the SuperLink."""
    return (Path(how.out) if how.out else app / "runs").absolute() / how.name
