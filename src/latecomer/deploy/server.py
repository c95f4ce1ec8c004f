"""What the ServerApp of a deployment does. It has no data: clients tell how many examples they have, and no more."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import tomllib
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..clients import Clients
from ..engines.flower.engine import Flower
from ..engines.flower.hello import Hello, Welcome
from ..engines.flower.link import Link
from ..engines.flower.link import server_app as flower_app
from ..engines.home import entropy
from ..errors import LatecomerError, RunError
from ..handover.recipe import made_for
from ..handover.trained import EVERYBODY
from ..runs import host
from ..runs.experiment import Experiment
from ..runs.folder import Folder
from ..runs.run import Run
from ..settings import dump
from ..steps import asked_in
from ..tally import Tally
from ..train import Training
from ..tree import Tree
from .news import Notes, tell
from .nodes import FILE, Nodes

LOOK = 1.0  # seconds between two looks for nodes
ANSWER = 120.0  # seconds that a node has to answer a hello, at least; a stock SuperNode has to start first
OPERATORS = {"data", "start", "continue_from", "engine", "device", "threads", "track", "name", "out"}
"""Settings of a run that are about the server's machine: nodes are not told, and a run may go on with others."""


def server_app(app: Path) -> Any:
    """The ServerApp of the app in a folder, whose settings are in settings.toml."""
    return flower_app(partial(serve, (app / "settings.toml").read_text(encoding="utf-8")))


def serve(settings: str, link: Link, config: Mapping[str, Any]) -> None:
    """Train in the run folder that the run's config names, or go on there; then hand out the models.

    Where the training is finished, nodes are met that have no model yet.
    """
    logging.getLogger("latecomer").addHandler(Notes())
    try:
        Deployment(settings, link, Path(str(config["folder"])), float(config["wait"])).go()
    except LatecomerError as error:
        tell(failed=str(error))
        raise


class Deployment:
    """A training whose clients are nodes, in its run folder."""

    def __init__(self, settings: str, link: Link, folder: Path, wait: float) -> None:
        self.link, self.folder, self.wait = link, folder, wait
        given = Experiment.read(settings, folder / "settings.toml")
        named = dataclasses.replace(given.settings, out=str(folder.parent), name=folder.name)
        self.experiment = dataclasses.replace(given, settings=named)
        task = tomllib.loads(settings)["task"]
        self.method, self.form = made_for(self.experiment, task)
        run = {name: value for name, value in dataclasses.asdict(named).items() if name not in OPERATORS}
        self.told = dump({"run": run, "method": dict(given.own), "task": task})  # all that makes the same method

    def go(self) -> None:
        host.prepare(self.experiment.settings)
        begun = os.path.lexists(self.folder)
        nodes = Nodes.load(self.folder) if begun else Nodes(uuid.uuid4().hex, self.method.members)
        if begun:
            self._check_same()
        if not begun or not Folder.open(self.folder).finished:
            nodes = self._meet_members(nodes)
            self._train(nodes, begun)
        folder = Folder.open(self.folder)
        with folder.held():
            self._hand_over(nodes, folder)

    # training

    def _train(self, nodes: Nodes, begun: bool) -> None:
        """To the end. There is a checkpoint after every round: a round costs more than that, and nodes' time too."""
        make = partial(self._training, nodes)
        run = Run.resume(self.folder, make=make) if begun else Run.begin(self.experiment, make, {FILE: nodes.text()})
        for note in run.training.notes:
            tell(note=note)

        def progress(training: Training, metrics: dict[str, Any] | None) -> None:
            run.checkpoint()
            tell(round=training.round, rounds=training.plan.rounds, **(metrics["runs"][0] if metrics else {}))

        tell(round=run.training.round, rounds=run.training.plan.rounds)
        tell(result=run.go(progress))

    def _training(self, nodes: Nodes, experiment: Experiment) -> Training:
        federation = nodes.federation(self.form, experiment.settings.seed)
        plan = experiment.settings.with_members(self.method.members)
        training = Training(self.method, [federation], self._engine(nodes), plan)
        training.entropy = entropy  # the seed is known to every node: noise from it would hide nothing
        return training

    def _engine(self, nodes: Nodes) -> Flower:
        self.link.nodes = nodes.places
        return Flower(
            self.method,
            self.link,
            timeout=self.experiment.settings.timeout,
            training=nodes.training,
            unscored={number for number, client in enumerate(nodes.clients) if not client.val + client.test},
        )

    def _check_same(self) -> None:
        """A run goes on with the settings that it began with."""
        began, now = tomllib.loads(Folder.open(self.folder).settings), tomllib.loads(self.told)
        for table, values in now.items():
            for name, value in values.items():
                if (before := began.get(table, {}).get(name)) != value:
                    raise RunError(
                        f"The run in {self.folder} began with {name} {before!r}, and the app says {value!r}; "
                        "give this run another --name."
                    )

    # nodes

    def _meet_members(self, nodes: Nodes) -> Nodes:
        """Wait for as many nodes as train, or for those that began; of the latter, some may stay away."""
        wanted, end = self.method.members, time.monotonic() + self.wait
        known, met, refused = set(nodes.places.values()), dict[int, Welcome](), dict[int, str]()
        while True:
            present = [node for node in self.link.present() if not known or node in known]
            refused = {node: why for node, why in refused.items() if node in present}  # who comes back is asked again
            fresh = [node for node in present if node not in met and node not in refused]
            for node, answer in self._hello(fresh, nodes).items():
                if isinstance(answer, str):
                    refused[node] = answer
                    tell(note=f"Node {node} does not take part: {answer}")
                else:
                    met[node] = answer
            if fresh:
                tell(note=f"{min(len(met), wanted)} of {wanted} nodes are here.")
            if len(met) >= wanted:
                break
            if time.monotonic() > end:
                why = "".join(f" Node {node} said: {sentence}" for node, sentence in refused.items())
                missing = f"Of {wanted} nodes {len(met)} came within {self.wait:g} seconds.{why}"
                if not known or not met:
                    raise RunError(missing)
                tell(note=f"{missing} The others are silent until they are back.")
                break
            time.sleep(LOOK)
        if known:
            return nodes
        first = sorted(met, key=lambda node: (not 0 <= met[node].prefers < wanted, node))[:wanted]
        return nodes.joined({node: met[node] for node in first})

    def _hello(self, some: list[int], nodes: Nodes) -> dict[int, Welcome | str]:
        name = type(self.method).__name__
        hello = Hello(version=__version__, training=nodes.training, method=name, settings=self.told)
        return self.link.hello(some, hello, max(ANSWER, self.wait))

    # models

    def _hand_over(self, nodes: Nodes, folder: Folder) -> None:
        """Everybody who is here and has no model, member or latecomer, gets it by the method's own rule."""
        served = {client.node for client in nodes.clients if client.has_model}
        answers = self._hello([node for node in self.link.present() if node not in served], nodes)
        for node, answer in answers.items():
            if isinstance(answer, str):
                tell(note=f"Node {node} gets no model: {answer}")
        here = {node: answer for node, answer in answers.items() if isinstance(answer, Welcome)}
        known = set(nodes.places.values())
        nodes = nodes.joined({node: answer for node, answer in here.items() if node not in known})
        nodes.save(self.folder)  # before a number is used: nobody else may ever have it
        numbers = [number for number, node in nodes.places.items() if node in here]
        given = self._keep_models(nodes, numbers, folder) if numbers else []
        nodes = nodes.with_models(given)
        nodes.save(self.folder)
        without = [number for number, client in enumerate(nodes.clients) if not client.has_model]
        tell(given=given, without=without, members=nodes.members, folder=str(self.folder))

    def _keep_models(self, nodes: Nodes, numbers: list[int], folder: Folder) -> list[int]:
        """The clients that have their model now."""
        found = folder.load()
        if found is None:
            raise RunError(f"The run in {self.folder} has no checkpoint, so there is no server to meet.")
        tensors, facts = found
        federation = nodes.federation(self.form, self.experiment.settings.seed)
        tally = Tally(self._engine(nodes), [self.method], [federation])
        occasion = int(facts["evaluations"]) + 1
        clients = Clients(tally, torch.tensor(numbers), EVERYBODY, scratch=occasion)
        with torch.no_grad():
            sent = self.method.personalise(tensors["0"]["best"].get("state", {}), clients)
            again = dataclasses.replace(clients, asked=frozenset(), within=None)
            heard = again.send(keep_model, sent).heard
        return [number for number, came in zip(numbers, heard.tolist(), strict=True) if came]


@asked_in("personalise")
def keep_model(**sent: Tree) -> Tree:
    """No step of a method, and done by nodes alone: each makes its model of what it is sent, and answers nothing."""
    return {}
