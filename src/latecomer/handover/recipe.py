"""A recipe: the few plain values from which a method can be made again, without a run and without its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..data import Form
from ..method import Method
from ..runs.experiment import Experiment

RUN = ("model", "budgets", "rounds", "lr_schedule")  # settings of a run that the method is made with


def of(experiment: Experiment, method: Method, form: Form) -> dict[str, Any]:
    """What JSON can hold."""
    run = {name: getattr(experiment.settings, name) for name in RUN}
    task = {"clients": method.clients, "members": method.members, **form.table()}
    return {"method": experiment.settings.method, "settings": dict(experiment.own), "run": run, "task": task}


def follow(recipe: Mapping[str, Any]) -> tuple[Method, Form]:
    """The method; a KeyError, TypeError, ValueError or LatecomerError where the recipe is none."""
    run = {name: recipe["run"][name] for name in RUN}
    start = {} if run["rounds"] else {"start": "elsewhere"}  # a model that was only personalised
    experiment = Experiment.parse(str(recipe["method"]), {**recipe["settings"], **run, **start})
    return made_for(experiment, recipe["task"])


def made_for(experiment: Experiment, task: Mapping[str, Any]) -> tuple[Method, Form]:
    """The method of an experiment for what a [task] table says of the examples and the clients."""
    form, clients, members = Form.read(task), int(task["clients"]), int(task["members"])
    return experiment.method_for(form, clients, members), form
