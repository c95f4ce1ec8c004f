"""Who the clients of a deployment are. nodes.json in the run folder keeps it, so that a restarted server knows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..data import Form
from ..data.federation import SPLITS, USUAL, Examples, Federation, Rows
from ..engines.flower.hello import Welcome
from ..errors import RunError
from ..runs.files import Replacing, reading, writing

FILE = "nodes.json"


@dataclass(frozen=True)
class Node:
    """A client of the training."""

    node: int  # by which the SuperLink knows it
    labelled: bool
    train: int  # examples
    val: int
    test: int
    has_model: bool = False  # whether it was handed its own


@dataclass(frozen=True)
class Nodes:
    """The clients in the order of their numbers, members first."""

    training: str  # by which nodes know that it is the same, whatever Flower calls the run
    members: int
    clients: tuple[Node, ...] = ()

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def places(self) -> dict[int, int]:
        """The node of every client, by the client's number."""
        return {number: client.node for number, client in enumerate(self.clients)}

    def joined(self, told: Mapping[int, Welcome]) -> Nodes:
        """Newcomers get the numbers behind those that are given: the one that they prefer where it is free, the others
        go by the number of their nodes into what is left.
        """
        first, count = len(self), len(told)
        free = list(range(first, first + count))
        chosen: dict[int, int] = {}
        for node in sorted(told):
            if told[node].prefers in free:
                free.remove(told[node].prefers)
                chosen[node] = told[node].prefers
        for node in sorted(told.keys() - chosen.keys()):
            chosen[node] = free.pop(0)
        ordered = sorted(told, key=lambda node: chosen[node])
        new = [Node(node, told[node].labelled, *(getattr(told[node], split) for split in SPLITS)) for node in ordered]
        return replace(self, clients=(*self.clients, *new))

    def with_models(self, numbers: Sequence[int]) -> Nodes:
        """These clients have their own model now."""
        given = (replace(client, has_model=client.has_model or k in numbers) for k, client in enumerate(self.clients))
        return replace(self, clients=tuple(given))

    def federation(self, form: Form, seed: int) -> Federation:
        """As far as the server knows it: how many examples there are, and none of them."""
        count = len(self)
        nothing = torch.empty((0, *form.stored), dtype=getattr(torch, form.dtype)), torch.empty(0, dtype=torch.int64)
        return Federation(
            Elsewhere(*nothing, form.classes, form.mean, form.std, form),
            train=_rows([client.train for client in self.clients]),
            val=_rows([client.val for client in self.clients]),
            test=_rows([client.test for client in self.clients]),
            members=self.members,
            labelled=torch.tensor([client.labelled for client in self.clients]),
            rotation=torch.zeros(count, dtype=torch.int16),
            budget=torch.full((count,), USUAL, dtype=torch.int8),
            seed=seed,
        )

    def text(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    def save(self, folder: Path) -> None:
        with writing(folder), Replacing(folder / FILE) as draft:
            draft.write_text(self.text(), encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> Nodes:
        """Of a run folder, which may come from anywhere."""
        with reading(folder):
            if not (folder / FILE).is_file():
                raise RunError(f"{folder} is the folder of a run on one machine: it has no {FILE}.")
            text = (folder / FILE).read_text(encoding="utf-8", errors="replace")
        try:
            told = json.loads(text)
            clients = tuple(Node(**client) for client in told["clients"])
            nodes = Nodes(str(told["training"]), int(told["members"]), clients)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunError(f"{folder / FILE} is damaged: {error}.") from error
        if not all(map(_possible, clients)) or not 0 < nodes.members <= len(nodes):
            raise RunError(f"{folder / FILE} is damaged: it says what cannot be.")
        return nodes


@dataclass(frozen=True, eq=False)
class Elsewhere(Examples):
    """No example, but the form of all: they lie on other machines."""

    known: Form = Form("float32", (1,), 1)

    @property
    def form(self) -> Form:
        return self.known


def _rows(sizes: Sequence[int]) -> Rows:
    """So many examples a client, of which there is nothing here."""
    return Rows(torch.empty(0, dtype=torch.int32), torch.tensor([0, *sizes]).cumsum(0))


def _possible(client: Node) -> bool:
    counts: tuple[Any, ...] = (client.node, client.train, client.val, client.test)
    flags = (client.labelled, client.has_model)
    return all(type(one) is int and one >= 0 for one in counts) and all(type(one) is bool for one in flags)
