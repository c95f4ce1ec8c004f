"""From settings to a run: data, task, method, engine, run folder. The command line does what this file does."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
import time
import tomllib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import __version__, methods
from ..data import Federation, Form, federate, load
from ..engines import describe, make, waking
from ..errors import DataError, RunError, SettingError, within_memory
from ..method import Method
from ..nets.check import check_task
from ..nets.models import Builder, builder, in_size
from ..nets.net import Net
from ..secure.fixed import Fixed
from ..settings import complete, convert, dump, parse, settings_of
from ..task import Task
from ..train import Training
from . import host
from .earlier import Earlier
from .settings import Place, Settings


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Settings, checked and complete: what a run folder's settings.toml holds."""

    settings: Settings
    own: Mapping[str, Any]  # the method's own settings

    @staticmethod
    def parse(name: str, values: Mapping[str, Any]) -> Experiment:
        """Sort raw values into the run's settings and the method's own, and check all of them.

        What is not given, or is None (TOML leaves that out), is as the run has it that this one continues, else as the
        method's paper has it, else the default.
        """
        given = {key: value for key, value in values.items() if value is not None}
        if path := given.get("continue_from"):
            if given.get("start"):
                raise SettingError("A run begins with --start or goes on with --continue-from; got both.")
            given = Earlier(Path(convert("continue_from", path, str))).inherit(_called(methods.get(name)), given)
        return Experiment._of(name, given)

    @staticmethod
    def _of(name: str, given: Mapping[str, Any]) -> Experiment:
        kind = methods.get(name)
        own = settings_of(kind)
        general = {**kind.paper, **{key: value for key, value in given.items() if key not in own}}
        settings = parse(Settings, general | {"method": _called(kind)}, known=own)
        if settings.rounds == 0 and not settings.start:
            raise SettingError("--rounds must be at least 1, or 0 to take the model of --start as it is; got 0.")
        return Experiment(settings, complete(kind, {key: value for key, value in given.items() if key in own}))

    @staticmethod
    def read(text: str, path: Path) -> Experiment:
        """From a settings.toml."""
        try:
            values = tomllib.loads(text)
            run, own = dict(values["run"]), dict(values["method"])
            name = str(run.pop("method"))
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} cannot be read as settings: {error}.") from error
        return Experiment._of(name, run | own)

    def toml(self, federations: Sequence[Federation] = ()) -> str:
        """What settings.toml holds: the settings, where and when they ran, and the fingerprints of the splits."""
        about: dict[str, Any] = {
            **surroundings(self.settings.device),
            "python": platform.python_version(),
            "commit": _commit(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),  # machines may be in several zones
            "splits": [federation.digest() for federation in federations],
        }
        tables = {"run": dataclasses.asdict(self.settings), "method": dict(self.own), "about": about}
        if federations:  # what the method is made for, so that it can be made again without the data
            first = federations[0]
            tables["task"] = {"clients": len(first), "members": first.members, **first.examples.form.table()}
        return dump(tables)

    @within_memory()
    def training(self) -> Training:
        """Everything in place, nothing trained yet.

        The process stays as it is: `threads` and `tf32` are for `runs.host.prepare`, which the command line calls.
        """
        s = self.settings
        with waking(s.device):
            federations = self.federations()
        method = self.method(federations)
        place: dict[str, Any] = {name: getattr(s, name) for name in settings_of(Place)}
        engine = make(s.engine, method, federations, s.device, chunk=s.chunk, graphs=s.graphs, **place)
        training = Training(method, federations, engine, s.with_members(method.members))
        training.notes += host.unmet(s)
        return training

    def federations(self) -> list[Federation]:
        """One federation a seed; they share the examples and differ in who owns what."""
        s, source = self.settings, load(self.settings.data)
        first, *rest = (federate(source, s, seed=s.seed + k) for k in range(s.seeds))
        return [first, *(dataclasses.replace(other, examples=first.examples) for other in rest)]

    def method(self, federations: Sequence[Federation]) -> Method:
        """The method with its settings, for a model that fits the data; `training` calls it."""
        s, first, kind = self.settings, federations[0], methods.get(self.settings.method)
        if len(set(s.budgets)) > 1 and not kind.serves_sizes:
            raise SettingError(f"{kind.__name__} gives all clients models of one size; leave --budgets out.")
        if kind.needs_labels and not s.unseen_labelled and (s.unseen or s.validators):
            raise SettingError(f"{kind.__name__} needs a latecomer's labels; leave --unseen-labelled true.")
        if len({federation.members for federation in federations}) > 1:
            raise SettingError(
                "The seeds leave different numbers of training clients; use fewer --clients or --seeds 1."
            )
        return self.method_for(first.examples.form, len(first), first.members)

    def method_for(self, form: Form, clients: int, members: int) -> Method:
        """The method with its settings, for examples of this form and so many clients."""
        s, kind = self.settings, methods.get(self.settings.method)
        training: dict[str, Any] = {}
        if s.rounds:  # else there is only a model from elsewhere to score
            training = {"rounds": s.rounds, "lr_schedule": s.lr_schedule, "processors": s.stack()}
            training["secure"] = Fixed(s.secure_range) if s.secure_mean else None
        task = task_for(form, builder(s.model, form.shape, form.text), s.budgets)
        return kind(task=task, clients=s.sized_for or clients, members=members, **training, **self.own)


def make_task(federation: Federation, model: Builder, budgets: Sequence[str] = ()) -> Task:
    """The task of classifying a federation's examples with a model, which is checked against the rules for steps.

    With `budgets`, sizes such as S and L, clients have the model in these sizes; of one alone, it is everybody's.
    """
    return task_for(federation.examples.form, model, budgets)


def task_for(form: Form, model: Builder, budgets: Sequence[str] = ()) -> Task:
    """As `make_task`, from the form of the examples alone."""
    builders = {size: in_size(model, size) for size in budgets} or {"": model}
    nets = {size: Net(partial(build, form.shape, form.classes)) for size, build in builders.items()}
    largest = max(nets.values(), key=lambda net: net.size)
    sizes = {size: net.shapes for size, net in nets.items()} if len(nets) > 1 else {}
    task = Task(largest, form.shape, form.classes, form.seen, sizes)
    if hasattr(task.model.skeleton, "vocabulary") and not form.text:
        raise DataError(
            f"This model reads sequences of whole numbers from 0 to {form.classes - 1}, one for each class; "
            f"the examples are {form.dtype} of shape {form.shape}, or go beyond."
        )
    check_task(task)
    return task


def _called(kind: type[Method]) -> str:
    """The name of a method."""
    return kind.__module__.rpartition(".")[2]


def surroundings(device: str) -> dict[str, str]:
    """What decides, beside the settings, how sums are rounded."""
    return {"latecomer": __version__, "torch": torch.__version__, "machine": describe(device)}


def _commit() -> str:
    """The commit of latecomer itself, where it runs from a checkout or an archive of one; empty where it does not."""
    archived = (Path(__file__).parent / "commit.txt").read_text(encoding="utf-8").strip()
    if not archived.startswith("$"):  # `git archive` put it there
        return archived
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return found.stdout.strip()
