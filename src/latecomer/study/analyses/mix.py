"""pFedHN, Fig. 3: every client's last layer on the other layers of every client, against its own.

Row i, column j: the accuracy on client i's test examples with its own last layer behind all other layers of client j;
before that with its own other layers, and on average with those of others. The last row of a run has the means.
The figure has it as the paper does, in every row from the worst (0) to the best (1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ... import tree
from ...clients import Clients, Sending
from ...engines.loop import Loop
from ...errors import SettingError
from ...handover.trained import EVERYBODY, Trained
from ...runs.folder import Folder
from ...settings import setting
from ...task import Batch, Task
from ...tree import Tree
from ..figure import Figure, Panels, Series
from . import Analysis, labels

read = Trained.load


@dataclass(frozen=True, kw_only=True)
class Settings:
    clients: int = setting(10, "how many members, the first ones", low=2)
    seed: int | None = setting(None, "which of the run's seeds; not given: the first")


def analyse(runs: Sequence[Trained], asked: Settings) -> Analysis:
    rows, figures, notes, most = [], [], [], 0
    for run, name in zip(runs, labels(runs), strict=True):
        owned = members(run, run.server(asked.seed), asked.clients)
        found = matrix(run.method.task, *zip(*owned, strict=True))
        own, others = found.diagonal(), found[~np.eye(len(found), dtype=bool)].reshape(len(found), -1)
        each = zip(own.tolist(), others.mean(1).tolist(), found.tolist(), strict=True)
        rows += [[name, str(client), mine, theirs, *row] for client, (mine, theirs, row) in enumerate(each)]
        rows.append([name, "all", float(own.mean()), float(others.mean()), *found.mean(0).tolist()])
        most = max(most, len(found))
        notes.append(
            f"{name}: {own.mean():.1f} % with a client's own layers, {others.mean():.1f} % with those of others; "
            f"{int((own > others.max(1)).sum())} of {len(own)} clients do better with their own than with any other's."
        )
        places = [str(client) for client in range(len(own))]
        series = [Series(client, places, row) for client, row in zip(places, normalised(found).tolist(), strict=True)]
        figures.append(Figure(name, "cells", "other layers of client", "last layer of client", series))
    title = "A client's last layer on the layers of others"
    columns = ["run", "last layer of", "own", "others", *(f"layers of {client}" for client in range(most))]
    return Analysis(title, columns, rows, Panels(title, figures), notes)


def normalised(found: NDArray[np.float64]) -> NDArray[np.float64]:
    """As in the paper: in every row the worst is 0 and the best 1; where all are as good, all are 1."""
    low, span = found.min(1, keepdims=True), np.ptp(found, axis=1, keepdims=True)
    return np.where(span > 0, (found - low) / np.where(span > 0, span, 1), 1.0)


def matrix(task: Task, models: Sequence[Tree], tests: Sequence[Batch]) -> NDArray[np.float64]:
    """Accuracies in percent: of each client's test examples, with its own last layer, on everybody's other layers."""
    found = np.full((len(models), len(models)), np.nan)
    for i, (mine, batch) in enumerate(zip(models, tests, strict=True)):
        known = batch.real & (batch.y >= 0)
        if not known.any():
            raise SettingError(f"Client {i} has no test examples; layers are exchanged where members have some.")
        for j, other in enumerate(models):
            right = task.logits(other | tree.pick(mine, task.head), batch.x).argmax(-1) == batch.y
            found[i, j] = 100 * float(right[known].float().mean())
    return found


@torch.no_grad()
def members(run: Trained, number: int, count: int) -> list[tuple[Tree, Batch]]:
    """The models of the first members, and their test examples."""
    federation, method, state = run.federations[number], run.method, run.states[number]
    count = min(count, federation.members)
    loop, ids = Loop(method, [federation]), torch.arange(count)
    if method.memory(torch.Generator()):  # what members keep is known of the last round alone, so that is what counts
        last = Folder.open(run.path).peek()[str(number)]
        state = last["state"]
        loop.remember(0, last.get("memory", {}))
    clients = Clients(loop, ids, EVERYBODY, scratch=0)
    sendings = method.personalise(state, clients)
    found: dict[int, tuple[Tree, Batch]] = {}
    for sending in [sendings] if isinstance(sendings, Sending) else sendings:
        to = ids if sending.to is None else ids[sending.to]
        shared = sending.shared | {name: clients.held[name] for name in sending.recall}
        for row, client in enumerate(to.tolist()):
            home = loop.home(0, client, EVERYBODY, 0)
            model = method.model(home, **shared, **tree.row(sending.each, row))
            if {name: getattr(leaf, "shape", None) for name, leaf in model.items()} != method.task.model.shapes:
                raise SettingError(
                    f"{run.path} is a run of {run.name}, whose clients' models have no layers that could be exchanged."
                )
            found[client] = model, home.all("test")
    return [found[client] for client in ids.tolist()]
