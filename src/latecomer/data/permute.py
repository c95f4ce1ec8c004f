"""Permuted labels: clients that call the same classes by other numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import factorial

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, SettingError


@dataclass(frozen=True, eq=False)
class Permutations:
    """A few permutations of the classes, and which of them is whose. The examples stay as they are, once for all."""

    table: Tensor  # int64 [kinds, classes]: what the kind calls every class
    kind: Tensor  # int16 [clients]

    @staticmethod
    def draw(kinds: int, classes: int, clients: int, random: np.random.Generator) -> Permutations:
        """Permutations that differ, the first of which changes nothing, and for every client one of them at random.

        With the same random numbers, more kinds are the same ones and some more.
        """
        if classes <= 10 and kinds > factorial(classes):
            raise SettingError(f"permutations is {kinds}, but {classes} classes have only {factorial(classes)}.")
        apart, whose = random.spawn(2)
        found = {tuple(range(classes)): None}
        while len(found) < kinds:
            found[tuple(apart.permutation(classes).tolist())] = None
        kind = whose.integers(kinds, size=clients)
        return Permutations(torch.tensor([*found]), torch.from_numpy(kind).to(torch.int16))

    @staticmethod
    def none(clients: int) -> Permutations:
        """Those of clients that all call the classes as the examples do."""
        return Permutations(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(clients, dtype=torch.int16))

    def checked(self, clients: int, classes: int) -> Permutations:
        """The same, if they can be those of so many clients."""
        rows, width = self.table.shape
        if len(self.kind) != clients:
            raise DataError(f"permutations has one entry a client, {clients} in all; found {len(self.kind)}.")
        if width > classes or not torch.equal(self.table.sort(1).values, torch.arange(width).expand(rows, -1)):
            raise DataError(f"A permutation must name each of the {classes} classes once.")
        if clients and not 0 <= int(self.kind.min()) <= int(self.kind.max()) < rows:
            raise DataError(f"There are permutations 0 to {rows - 1}; found {int(self.kind.max())}.")
        return self

    def of(self, client: int, y: Tensor) -> Tensor:
        """What a client calls these labels; unknown ones stay unknown."""
        return torch.where(y >= 0, self.table[int(self.kind[client])][y.clamp(min=0)], y)

    def wide(self, classes: int) -> Tensor:
        """The table for more classes than were permuted; the others keep their numbers."""
        rows, width = self.table.shape
        return torch.cat([self.table, torch.arange(width, classes).expand(rows, -1)], 1)

    def only(self, kind: Tensor) -> Permutations:
        """The same permutations of other clients."""
        return replace(self, kind=kind)
