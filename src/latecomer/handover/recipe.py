"""A recipe: the few plain values from which a method can be made again, without a run and without its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import methods
from ..data import Form
from ..method import Method
from ..runs.experiment import Experiment
from ..settings import settings_of

RUN = ("model", "budgets", "rounds", "lr_schedule")  # settings of a run that the method is made with


def of(experiment: Experiment, method: Method, form: Form) -> dict[str, Any]:
    """What JSON can hold."""
    run = {name: getattr(experiment.settings, name) for name in RUN}
    task = {"clients": method.clients, "members": method.members, **form.table()}
    return {"method": experiment.settings.method, "settings": dict(experiment.own), "run": run, "task": task}


def follow(recipe: Mapping[str, Any]) -> tuple[Method, Form]:
    """The method; a KeyError, TypeError, ValueError or LatecomerError where the recipe is none."""
    return made_for(experiment(recipe), recipe["task"])


def experiment(recipe: Mapping[str, Any], seed: int = 0) -> Experiment:
    """As far as the recipe knows it: what stands for its data is another matter."""
    if foreign := sorted(recipe["settings"].keys() - settings_of(methods.get(str(recipe["method"])))):
        raise ValueError(f"{foreign[0]!r} is no setting of the method")  # a run's could name files that are not theirs
    run = {name: recipe["run"][name] for name in RUN}
    start = {} if run["rounds"] else {"start": "elsewhere"}  # a model that was only personalised
    return Experiment.parse(str(recipe["method"]), {**recipe["settings"], **run, **start, "seed": seed})


def made_for(of_run: Experiment, task: Mapping[str, Any]) -> tuple[Method, Form]:
    """The method of an experiment for what a [task] table says of the examples and the clients."""
    form, clients, members = Form.read(task), int(task["clients"]), int(task["members"])
    if not 0 < members <= clients:
        raise ValueError(f"{members} of {clients} clients cannot be members")
    return of_run.method_for(form, clients, members), form
