"""A finished run, ready to meet anybody: its servers as they were in the selected round, and nothing of its data."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import tree
from ..clients import Clients, Sending
from ..data import Federation, Form
from ..engines.home import entropy
from ..engines.loop import Loop
from ..errors import DataError, RunError, SettingError
from ..method import Method
from ..runs.experiment import Experiment
from ..runs.folder import Folder
from ..tally import Tally
from ..tree import Tree
from . import own, recipe
from .personal import Personal

MOST = 10_000_000  # clients: there is a row for everybody who comes before
EVERYBODY = -1  # the round in which personalisation happens: none of training


@dataclass(frozen=True, eq=False)
class Trained:
    """What `latecomer.load` gives: a method and the states of its servers, one a seed."""

    path: Path
    experiment: Experiment
    method: Method
    form: Form
    states: list[Tree]
    digest: str  # of the checkpoint
    rounds: list[int]  # the selected round of every seed
    splits: Sequence[str] | None = None  # fingerprints of what it was trained on; None: nobody knows

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Trained:
        """From a run folder; see `load`."""
        folder = Folder.open(Path(path))
        if not folder.finished:
            raise RunError(f"The run in {path} is not finished; let it go on with: latecomer resume {path}")
        experiment, found = Experiment.read(folder.settings, folder.path / "settings.toml"), folder.load()
        try:
            told = tomllib.loads(folder.settings)
            method, form = recipe.made_for(experiment, told["task"])
            splits = told.get("about", {}).get("splits")
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, MemoryError) as error:
            raise RunError(f"The settings in {path} do not say what the run was trained on: {error}.") from error
        if found is None:
            raise RunError(f"The run in {path} has no checkpoint, so there is no server to meet.")
        tensors, facts = found
        try:
            states = [part.get("best", {}).get("state", {}) for part in tensors.values()]
            rounds = [int(best["round"]) for best in facts.get("best", []) if best]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"The checkpoint in {path} is damaged: it does not say which round was selected.") from error
        if len(states) != experiment.settings.seeds or len(rounds) != len(states):
            raise RunError(f"The checkpoint in {path} is damaged: it has not one state for every seed.")
        return Trained(folder.path, experiment, method, form, states, facts["digest"], rounds, splits)

    @cached_property
    def federations(self) -> list[Federation]:
        """What it was trained on, one a seed, if the data are still there and still the same."""
        found = self.experiment.federations()
        if self.splits is not None and [one.digest() for one in found] != self.splits:
            raise DataError(f"The data {self.experiment.settings.data!r} are not those that the run was trained on.")
        return found

    @property
    def name(self) -> str:
        """The method's, as the command line has it."""
        return self.experiment.settings.method

    def personalise(
        self,
        x: Any,
        y: Any = None,
        *,
        held_out: tuple[Any, Any] | None = None,
        seed: int | None = None,
        client: int | None = None,
        budget: str = "M",
    ) -> Personal:
        """The model of a client that has the examples `x`, with labels `y` or without, by the method's own rule.

        Of labelled examples as large a share is held out as in training: some methods choose by them, and they say how
        well the model does. `held_out` are examples and labels to take instead; `(x[:0], y[:0])` holds out nothing.
        `seed` says which of the run's servers, `client` which number the client has: batches are drawn by it.
        """
        return self._meet_one(*self.alone(x, y, held_out=held_out, seed=seed, client=client, budget=budget))

    def alone(
        self,
        x: Any,
        y: Any = None,
        *,
        held_out: tuple[Any, Any] | None = None,
        seed: int | None = None,
        client: int | None = None,
        budget: str = "M",
    ) -> tuple[Federation, int]:
        """The members, of whom nothing is here, and such a client; and which of the run's servers it meets."""
        made_of, number = own.checked(self.method, self.form, x, y), self.server(seed)
        if held_out is None:
            share = self.experiment.settings.validation
            made_of, held = own.set_aside(self.method, *made_of, share, number)
        elif len(held_out[0]):
            held = own.checked(self.method, self.form, *held_out, "held-out ")
        else:
            held = made_of[0][:0], made_of[1][:0]
        nothing = held[0][:0], held[1][:0]
        place = self._place(client)
        return own.federation(self.form, made_of, held, nothing, self.seeds[number], place, budget), number

    def predict(self, new: Any, x: Any, y: Any = None) -> NDArray[np.int64]:
        """Labels for `new` examples of a client that has `x` and `y`."""
        return self.personalise(x, y).predict(new)

    def score(self, new: Any, labels: Any, x: Any, y: Any = None) -> float:
        """How many percent of the `labels` of `new` examples the model of a client that has `x` and `y` gets right."""
        return self.personalise(x, y).score(new, labels)

    def describe(self) -> dict[str, Any]:
        """What there is to know about the run for somebody who wants a model of it."""
        s = self.experiment.settings
        return {
            "method": self.name,
            "run": self.path.name,
            "checkpoint": self.digest,
            "data": s.data,
            "model": s.model,
            "weights": self.method.task.model.size,
            "members": self.method.members,
            "seeds": self.seeds,
            "rounds": self.rounds,
            "needs_labels": self.method.needs_labels,
            "examples": self.form.table(),
        }

    @property
    def seeds(self) -> list[int]:
        """Of the run's servers, one each."""
        first = self.experiment.settings.seed
        return [first + k for k in range(len(self.states))]

    def server(self, seed: int | None) -> int:
        """Which of the run's servers has a seed; None: the first."""
        if seed is None:
            return 0
        if seed not in self.seeds:
            raise SettingError(f"The run in {self.path} has no seed {seed}; there are: {self.seeds}.")
        return self.seeds.index(seed)

    def _place(self, client: int | None) -> int:
        """The number of a latecomer."""
        members = self.method.members
        number = max(self.method.clients - 1, members) if client is None else client
        if number < members:
            raise SettingError(f"Client {number} is a member; a latecomer's number is {members} or more.")
        if number >= max(self.method.clients, MOST):
            raise SettingError(f"A client's number must be below {MOST:,}; got {number}.")
        return number

    def _meet_one(self, federation: Federation, number: int) -> Personal:
        """Everything that the client and the server do, in one process; the client's noise is real."""
        client = len(federation) - 1
        loop = Loop(self.method, [federation], "cpu", entropy)
        tally = Tally(loop, [self.method], [federation])
        clients = Clients(tally, torch.tensor([client]), EVERYBODY, scratch=0)
        with torch.no_grad():
            message = received(self.method.personalise(self.states[number], clients), clients)
            home = loop.home(0, client, EVERYBODY, 0)
            weights = self.method.model(home, **message)
            score = self.method.score(loop.home(0, client, EVERYBODY, 0), **message)["val"]
        if (clients.silent is not None and bool(clients.silent.any())) or not bool(tree.finite(weights)):
            raise DataError("No model could be made of these examples: what came of them was not finite.")
        right, known, own = score.tolist()
        sent = [exchange.line() for exchange in clients.ledger]
        counts = torch.bincount(federation.examples.y[federation.examples.y >= 0], minlength=self.form.classes)
        facts: dict[str, Any] = {
            "server": {"run": self.path.name, "checkpoint": self.digest, "seed": federation.seed},
            "round": self.rounds[number],
            "examples": len(federation.train[client]),
            "classes_seen": {str(k): n for k, n in enumerate(counts.tolist()) if n},
            "sent": {
                "up": sum(line["up"] for line in sent),
                "down": sum(line["down"] for line in sent) + tree.nbytes(message),
                "steps": [line["step"] for line in sent],
            },
            "privacy": tally.report(),
            "held_out": {"examples": int(known), "right": int(right), "right_among_own_classes": int(own)},
        }
        return Personal(self.method, self.form, weights, recipe.of(self.experiment, self.method, self.form), facts)


def load(path: str | os.PathLike[str]) -> Trained:
    """A finished run from its folder, which is checked; the data that it was trained on are not needed."""
    return Trained.load(path)


def received(sendings: Sending | Sequence[Sending], clients: Clients) -> Tree:
    """What the one client of a cohort is sent to make its model with."""
    (sending,) = [sendings] if isinstance(sendings, Sending) else sendings
    recalled = {name: clients.held[name] for name in sending.recall}
    return sending.shared | recalled | tree.row(sending.each, 0)
