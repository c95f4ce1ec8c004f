"""What clients keep between rounds, on the machine that plays the clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import tree
from ..data.federation import Federation
from ..method import Method
from ..ops.upload import upload
from ..tree import Tree
from .blank import blank_memory


class Memories:
    """A table that grows by the clients that wrote to it; row 0 is what a client holds before its first round."""

    def __init__(self, blank: Tree, base: Memories | None = None) -> None:
        self.blank = blank
        self.base = base  # read where this table has nothing: an evaluation scribbles here and leaves the base alone
        self.slots: dict[int, int] = {}
        self.table = tree.map(lambda leaf: leaf[None].clone(), blank)

    def read(self, ids: Tensor) -> Tree:
        if not self.blank:
            return {}
        places = torch.tensor([self.slots.get(client, 0) for client in ids.tolist()])
        rows = tree.map(lambda leaf: leaf[upload(places, leaf.device)], self.table)
        if self.base is None or bool(places.all()):
            return rows
        return tree.map(
            lambda own, below: torch.where(tree.align(upload(places, own.device) > 0, own), own, below),
            rows,
            self.base.read(ids),
        )

    def write(self, ids: Tensor, rows: Tree, keep: Tensor) -> None:
        """Store a row for every client where `keep` holds."""
        if not self.blank:
            return
        rows = tree.where(keep, rows, self.read(ids))
        for client in ids.tolist():
            self.slots.setdefault(client, len(self.slots) + 1)
        self._grow(len(self.slots) + 1)
        places = torch.tensor([self.slots[client] for client in ids.tolist()])
        self.table = tree.map(lambda leaf, new: leaf.index_copy(0, upload(places, leaf.device), new), self.table, rows)

    def _grow(self, count: int) -> None:
        have = len(tree.leaves(self.table)[0])
        if count > have:
            more = max(count, 2 * have) - have
            self.table = tree.map(lambda leaf: torch.cat([leaf, leaf.new_zeros(more, *leaf.shape[1:])]), self.table)

    def dump(self) -> Tree:
        """All that was written, as a tree for a checkpoint."""
        if not self.slots:
            return {}
        ids = torch.tensor(sorted(self.slots))
        return {"ids": ids, "rows": self.read(ids)}

    def load(self, dumped: Tree) -> None:
        self.slots, self.table = {}, tree.map(lambda leaf: leaf[None].clone(), self.blank)
        if dumped:
            keep = torch.ones(len(dumped["ids"]), dtype=torch.bool, device=tree.leaves(self.blank)[0].device)
            self.write(dumped["ids"].cpu(), dumped["rows"], keep)


class KeepsMemories:
    """An engine with a table of memories for every run in lockstep, and one for the evaluation that is under way."""

    def __init__(self, method: Method, federations: Sequence[Federation], device: torch.device) -> None:
        method.settle(device)
        self.kept = [Memories(tree.to(blank_memory(method, federation.seed), device)) for federation in federations]
        self._scratch: dict[int, tuple[int, Memories]] = {}

    def of(self, run: int, scratch: int | None) -> Memories:
        """A run's memories; `scratch` names an evaluation, whose writings vanish with the next one."""
        if scratch is None:
            return self.kept[run]
        number, memories = self._scratch.get(run, (None, self.kept[run]))
        if number != scratch:
            memories = Memories(self.kept[run].blank, base=self.kept[run])
            self._scratch[run] = (scratch, memories)
        return memories

    def memories(self, run: int) -> Tree:
        return self.kept[run].dump()

    def remember(self, run: int, kept: Tree) -> None:
        self.kept[run].load(kept)
