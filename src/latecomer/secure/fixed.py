"""Fixed point: numbers as whole multiples of a unit, whose sums are exact in any order and can be masked.

A client rounds every number x, clipped to the range, to a multiple of the unit, and sends its weight w times that, and
w. Sums are whole numbers modulo 2^64, the last of them the sum of the weights; their quotient is the weighted mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import tree
from ..tree import Tree

LEVELS = 2**23  # on either side of zero: as many as single precision can tell apart there
WORD = 8  # bytes of a number on the wire


@dataclass(frozen=True)
class Fixed:
    """How numbers up to `range` on either side of zero are rounded; it is raised to a power of two, so units are."""

    range: float

    @property
    def limit(self) -> float:
        """Where numbers are clipped."""
        return 2.0 ** math.ceil(math.log2(self.range))

    @property
    def resolution(self) -> float:
        """The unit. A mean differs by at most half of it from that of the clipped numbers."""
        return self.limit / LEVELS

    def round(self, values: Tree) -> Tree:
        """On the client, for one or mapped over many: the nearest multiples of the unit; what is not finite, is NaN."""

        def rounded(leaf: Tensor) -> Tensor:
            near = (leaf.clamp(-self.limit, self.limit) / self.resolution).round() * self.resolution
            return torch.where(leaf.isfinite(), near, torch.nan)

        return tree.map(rounded, values)

    def whole(self, values: Tree, weight: int) -> Tensor:
        """On the client: what it masks, of rounded values. Their whole numbers times the weight, and the weight."""
        flat = [leaf.detach().cpu().double().flatten() for leaf in tree.leaves(values)]
        numbers = (torch.cat([torch.zeros(0, dtype=torch.float64), *flat]) / self.resolution).long()
        return torch.cat([numbers * weight, torch.tensor([weight])])

    def mean(self, total: Tensor) -> tuple[Tensor, int]:
        """On the server: the weighted mean, in double precision, and the weight of all clients together."""
        weight = int(total[-1])
        return total[:-1].double() * self.resolution / max(weight, 1), weight


def largest_cohort(weight: int) -> int:
    """How many clients of at most this weight can be added up before a sum could go beyond what a word holds."""
    return (2**63 - 1) // (LEVELS * weight)
