"""What the owner of a node has, and agrees to: the examples, and which trainings may use them."""

from __future__ import annotations

import logging
import os
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from .. import __version__, methods, tree
from ..data import Federation, Form
from ..engines.flower.hello import Hello, Welcome
from ..engines.flower.notes import Traffic
from ..errors import DataError, ProtocolError, RunError, within_memory
from ..handover import own, recipe
from ..handover.files import read_client
from ..handover.personal import Personal
from ..handover.trained import MOST
from ..method import Home, Method
from ..nets.models import MLP
from ..privacy import Ledger
from ..runs.experiment import Experiment, task_for
from ..tree import Tree
from .settings import Stay

LOG = logging.getLogger(__name__)
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError)


@dataclass(frozen=True)
class Training:
    """What a hello says, understood."""

    experiment: Experiment
    method: Method
    form: Form


@lru_cache(maxsize=8)
def understood(settings: str) -> Training:
    """A method from a settings.toml. Its names of files and folders are the server's own, and nobody looks there."""
    try:
        experiment = Experiment.read(settings, Path("The server's settings"))
        with within_memory():
            method, form = recipe.made_for(experiment, tomllib.loads(settings)["task"])
    except RunError as error:  # of settings that are none; others would be about this machine
        raise ProtocolError(str(error)) from error
    except DAMAGE as error:
        raise ProtocolError(f"The server's settings do not say what is trained: {error}.") from error
    return Training(experiment, method, form)


def wake() -> None:
    """Whatever PyTorch imports when it is first needed, which takes seconds, before anybody waits for an answer."""
    task_for(Form("uint8", (8, 8, 1), 2), MLP)


class Host:
    """One client's examples. Everything that is not as its owner wants it is refused in one sentence."""

    def __init__(self, settings: Stay) -> None:
        self.settings, self.reports_scores = settings, settings.report_scores
        self.mine: Mapping[str, NDArray[Any] | None] = read_client(settings.data)

    def welcome(self, hello: Hello) -> Welcome:
        if hello.version != __version__:
            raise ProtocolError(f"The server runs latecomer {hello.version[:40]}, and this node {__version__}.")
        training = understood(hello.settings)
        if type(training.method).__name__ != hello.method:
            raise ProtocolError(
                f"A hello for {hello.method[:40]!r} has settings of {type(training.method).__name__!r}."
            )
        self._allowed(training)
        train, val, test = self._parts(training)
        told = (len(val[0]), len(test[0])) if self.reports_scores else (0, 0)
        labelled = bool((train[1] >= 0).any())
        counts = {"train": len(train[0]), "val": told[0], "test": told[1]}
        return Welcome(version=__version__, prefers=self.settings.client, labelled=labelled, **counts)

    def takes_part(self, settings: str, client: int) -> tuple[Method, Federation]:
        training = understood(settings)
        self._allowed(training)
        return training.method, self._federation(training, client)

    def keeper(self, training: str, settings: str, client: int) -> Callable[[Home, Tree, Traffic, Ledger], None]:
        made = understood(settings)
        method, form = made.method, made.form
        place = self.settings.models / f"{made.experiment.settings.method}-{training}"

        def keep(home: Home, sent: Tree, traffic: Traffic, released: Ledger) -> None:
            with torch.no_grad():
                weights = method.model(home, **sent)
                right, known, own_classes = method.score(home, **sent)["val"].tolist()
                classes = home.counts(form.classes).long().tolist()
            if not bool(tree.finite(weights)):
                raise DataError("No model could be made: what came of these examples was not finite.")
            facts = {
                "server": {"run": training, "checkpoint": "unknown", "seed": made.experiment.settings.seed},
                "round": "unknown",  # which round was selected, nobody told
                "examples": int(home.all().real.sum()),
                "classes_seen": {str(k): n for k, n in enumerate(classes) if n},
                "sent": {"up": traffic.up, "down": traffic.down, "steps": list(traffic.steps[:-1])},
                "privacy": _spent(released),
                "held_out": {"examples": int(known), "right": int(right), "right_among_own_classes": int(own_classes)},
            }
            model = Personal(method, form, weights, recipe.of(made.experiment, method, form), facts)
            _replace(place, model)
            LOG.info("Kept %s: %s", place, model.summary())

        return keep

    def _allowed(self, training: Training) -> None:
        name, allowed = training.experiment.settings.method, self.settings.allow
        if allowed and methods.get(name) not in map(methods.get, allowed):
            raise ProtocolError(f"This node's owner does not take part in {name}, only in {', '.join(allowed)}.")

    def _parts(self, training: Training) -> tuple[own.Pair, own.Pair, own.Pair]:
        """Examples to learn from, to choose by and to be scored by, if they are of the form that is trained on."""
        method, form, mine = training.method, training.form, self.mine
        train = own.checked(method, form, mine["x"], mine["y"])
        nothing = train[0][:0], train[1][:0]
        if mine["held_x"] is None:
            train, val = own.set_aside(method, *train, training.experiment.settings.validation, 0)
        else:
            val = (
                own.checked(method, form, mine["held_x"], mine["held_y"], "held-out ")
                if len(mine["held_x"])
                else nothing
            )
        known = mine["test_x"] is not None and len(mine["test_x"])
        test = own.checked(method, form, mine["test_x"], mine["test_y"], "test ") if known else nothing
        return train, val, test

    def _federation(self, training: Training, client: int) -> Federation:
        if not 0 <= client < MOST:  # there is a row for everybody before it
            raise ProtocolError(f"A client's number must be from 0 to {MOST:,}; got {client}.")
        seed = training.experiment.settings.seed
        return own.federation(training.form, *self._parts(training), seed, client, self.settings.budget)


def _spent(released: Ledger) -> dict[str, Any]:
    """What the client has released in all its trainings, in the words of a card."""
    if not released.entries:
        return {}
    last = released.entries[-1]
    epsilon = float(f"{released.epsilon(last.delta):.6g}")
    covers = "one example, replaced by another, in all answers of this client"
    return {"delta": last.delta, "covers": covers, "worst": {"answers": len(released.entries), "epsilon": epsilon}}


def _replace(place: Path, model: Personal) -> None:
    """The latest model of a training takes the place of the one before."""
    fresh, old = place.with_name(f".{place.name}.fresh"), place.with_name(f".{place.name}.old")
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    model.save(fresh, onnx=False)
    if place.exists():
        os.rename(place, old)
    os.rename(fresh, place)
    shutil.rmtree(old, ignore_errors=True)
