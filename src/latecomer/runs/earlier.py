"""A run whose training goes on in another one: what that inherits, and who of its clients was there before.

Clients are known by the names that their data give them, else by their numbers. The checkpoint's state goes on, which
is that of the last round: only there do weights, optimiser, memories and what was spent of privacy belong together.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import tree
from ..data import Federation
from ..engines import at_hand
from ..engines.blank import blank_memory
from ..errors import RunError, SettingError
from ..rounds import rows_of
from ..train import Training
from ..tree import Tree
from .folder import Folder

ITS_OWN = ("method", "start", "continue_from", "name", "out")
"""Settings of a run that no other inherits."""


def introduction(training: Training) -> dict[str, Any]:
    """What a checkpoint says so that another run can go on from it: who the clients are, and what they learn."""
    federations = training.federations
    return {
        "members": federations[0].members,
        "clients": len(federations[0]),
        "names": [None if one.names is None else [str(name) for name in one.names] for one in federations],
        "task": _task(training),
    }


def _task(training: Training) -> dict[str, Any]:
    task = training.methods[0].task
    return {"examples of shape": list(task.shape), "classes": task.classes, "weights in a model": task.model.size}


class Earlier:
    """A run that is to be continued. Nothing is written to its folder."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, Folder.open(path)
        try:
            values = tomllib.loads(self.folder.settings)
            self.settings, self.own = dict(values["run"]), dict(values["method"])
            self.method = str(self.settings["method"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path / 'settings.toml'} cannot be read as settings: {error}.") from error

    @cached_property
    def checkpoint(self) -> tuple[Tree, dict[str, Any]]:
        """Tensors and facts of the last round."""
        found = self.folder.load()
        if found is None:
            raise RunError(
                f"The run in {self.path} has no checkpoint yet; let it go on with: latecomer resume {self.path}"
            )
        _check(self.path, *found)
        return found

    def inherit(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a run that goes on from here with a method: those given, else those of this run."""
        if name != self.method:
            raise SettingError(
                f"The run in {self.path} is one of {self.method}, which {name} cannot continue; "
                f"say latecomer run {self.method}."
            )
        general = {key: value for key, value in self.settings.items() if key not in ITS_OWN}
        general["device"] = at_hand(str(general.get("device", "auto")))
        sizes = {"sized_for": general.get("sized_for") or self.checkpoint[1]["clients"]}  # they stay what they were
        return {**general, **self.own, **sizes, **given}

    def go_on(self, training: Training) -> None:
        """Give a new training what this run came to."""
        tensors, facts = self.checkpoint
        self._check(training)
        notes: list[str] = []
        if (course := training.methods[0].lr_schedule) != "constant":
            notes = [f"The {course} schedule is one of {training.plan.rounds} rounds, {facts['round']} of them over."]
        for run, federation in enumerate(training.federations):
            part = tensors[str(run)]
            origin = self._origin(federation, facts["names"][run], len(part["data"]))
            self._adopt(training, run, part, origin)
            notes += self._notes(federation, part["data"], origin)
        training.round, training.evaluations = facts["round"], facts["evaluations"]
        training.notes += dict.fromkeys(notes)

    def _check(self, training: Training) -> None:
        """A sentence where the seeds, the rounds or the task of a training are not such that it could go on."""
        tensors, facts = self.checkpoint
        done, asked, seeds = facts["round"], training.plan.rounds, len(training.states)
        if seeds != len(tensors):
            raise SettingError(f"The run in {self.path} has --seeds {len(tensors)}, each to go on; got {seeds}.")
        if asked <= done:
            raise SettingError(
                f"The run in {self.path} has had {done} rounds, and --rounds counts them: it must be greater than "
                f"{done}; got {asked}."
            )
        for what, now in _task(training).items():
            if (then := facts["task"].get(what)) != now:
                raise SettingError(f"The run in {self.path} cannot go on here: {what}, it has {then}, these are {now}.")

    def _origin(self, federation: Federation, names: list[str] | None, clients: int) -> Tensor:
        """Which of so many clients of this run each client was, [clients of now]; -1: it is new."""
        members, ids = self.checkpoint[1]["members"], torch.arange(len(federation))
        if names is None or federation.names is None:
            if federation.members < members:
                raise SettingError(
                    f"The run in {self.path} has trained {members} members, and {federation.members} would go on; "
                    "without names nobody knows who left, so raise --clients."
                )
            return torch.where(ids < clients, ids, -1)
        number = {name: k for k, name in enumerate(names)}
        origin = torch.tensor([number.get(str(name), -1) for name in federation.names])
        late = ((origin >= 0) & (origin < members) & (ids >= federation.members)).nonzero()[:, 0]
        if len(late):
            raise SettingError(
                f"Client {names[int(origin[late[0]])]!r} was trained by the run in {self.path} and cannot come late "
                "any more; change --clients, --unseen, --validators or --seed."
            )
        return origin

    def _adopt(self, training: Training, run: int, part: Tree, origin: Tensor) -> None:
        """State, memories and what was spent, each row with the client that it belongs to."""
        method, federation, device = training.methods[run], training.federations[run], training.engine.device
        facts, state = self.checkpoint[1], part.get("state", {})
        self._check_shapes(state, dataclasses.replace(method, members=facts["members"]).init(_generator(federation)))
        known = origin[: federation.members]
        known = torch.where(known < facts["members"], known, -1)  # who was no member has no row
        fresh = method.init(_generator(federation))
        training.states[run] = tree.to(method.carry_over(state, fresh, known), device)
        if "memory" in part:
            ids, rows = part["memory"]["ids"], part["memory"]["rows"]
            self._check_shapes(tree.row(rows, 0), blank_memory(method, federation.seed))
            place = torch.full((len(part["data"]),), -1)
            place[origin[origin >= 0]] = (origin >= 0).nonzero()[:, 0]
            here = place[ids] >= 0
            if here.any():
                training.engine.remember(run, tree.to({"ids": place[ids][here], "rows": tree.row(rows, here)}, device))
        if "released" in part:
            spent = tree.pick(part["released"], ["answers", "loss"])
            training.tally.restore(run, part["released"] | tree.map(partial(rows_of, origin), spent))

    def _check_shapes(self, found: Tree, wanted: Tree) -> None:
        have, need = tree.flatten(found), tree.flatten(wanted)
        for name in (*need, *have):
            one, other = (str(tuple(some[name].shape)) if name in some else "nothing" for some in (have, need))
            if one != other:
                raise SettingError(
                    f"The run in {self.path} cannot go on with these settings of its method: {name!r} is {one} there, "
                    f"and {other} here."
                )

    def _notes(self, federation: Federation, data: Tensor, origin: Tensor) -> list[str]:
        """What a user should know about the earlier members."""
        members, known = self.checkpoint[1]["members"], origin[: federation.members]
        ids = ((known >= 0) & (known < members)).nonzero()[:, 0]
        other = int((data[known[ids]] != federation.fingerprints[ids]).sum())
        told = {
            "are not here, and what was learned for them alone is left out": members - len(ids),
            "have other training examples here, so what is held out here may have been trained on there": other,
        }
        return [f"{count} of the {members} members of {self.path} {what}." for what, count in told.items() if count]


def _generator(federation: Federation) -> torch.Generator:
    return torch.Generator().manual_seed(federation.seed)


def _check(path: Path, tensors: Tree, facts: Mapping[str, Any]) -> None:
    """A sentence where a checkpoint does not say all that going on needs."""
    parts = list(tensors.values())

    def names(value: Any) -> bool:
        if not isinstance(value, list) or len(value) != len(parts):
            return False
        pairs = zip(value, parts, strict=True)
        return all(one is None or (isinstance(one, list) and len(one) == len(part["data"])) for one, part in pairs)

    fits: dict[str, Callable[[Any], bool]] = {
        "clients": lambda value: type(value) is int and all(map(_rows_fit, parts)),
        "members": lambda value: type(value) is int and all(0 < value <= len(part["data"]) for part in parts),
        "names": names,
        "task": lambda value: isinstance(value, dict),
        "evaluations": lambda value: type(value) is int,
    }
    for name, fit in fits.items():
        if name not in facts or not fit(facts[name]):
            problem = f"{name} in latest.json cannot be right" if name in facts else f"latest.json lacks {name}"
            raise RunError(f"The run in {path} cannot be continued: {problem}.")


def _rows_fit(part: Tree) -> bool:
    """Whether all rows of a seed belong to its clients."""
    ids, spent = part.get("memory", {}).get("ids", torch.zeros(0)), tree.pick(part.get("released", {}), ["answers"])
    data = part.get("data")
    return data is not None and bool((ids < len(data)).all()) and all(len(one) == len(data) for one in spent.values())
