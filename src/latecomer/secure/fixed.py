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
from ..errors import SettingError
from ..steps import answers_of, listed, phases_of, steps
from ..tree import Tree

LEVELS = 2**23  # on either side of zero: as many as single precision can tell apart there


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

    def check(self, method: type, lossy: bool) -> None:
        """Refuse a method whose server has to see single replies, and processors that send something else."""
        rounds = [step for step in steps(method) if "round" in phases_of(method, step)]
        if read := [step for step in rounds if answers_of(method, step) != "averaged"]:
            raise SettingError(
                f"--secure-mean shows means alone, but the server of {method.__name__} reads the replies to "
                f"{listed(read)} one by one."
            )
        if lossy:
            raise SettingError(
                "--secure-mean masks every number of a reply; leave topk and quantise out of --processors."
            )

    def round(self, values: Tree) -> Tree:
        """On the client, for one or mapped over many: the nearest multiples of the unit; what is not finite, is NaN."""
        for path, leaf in tree.flatten(values).items():
            if not leaf.is_floating_point():
                kind = str(leaf.dtype).removeprefix("torch.")
                raise SettingError(f"--secure-mean masks floating-point numbers; {path!r} of a reply is {kind}.")
        return tree.map(self._rounded, values)

    def _rounded(self, leaf: Tensor) -> Tensor:
        numbers = leaf.to(torch.promote_types(leaf.dtype, torch.float32))
        near = (numbers.clamp(-self.limit, self.limit) / self.resolution).round() * self.resolution
        return torch.where(numbers.isfinite(), near, torch.nan).to(leaf.dtype)

    def whole(self, values: Tree, weight: int) -> Tensor:
        """On the client: what it masks, of rounded values. Their whole numbers times the weight, and the weight."""
        flat = [leaf.detach().cpu().double().flatten() for leaf in tree.leaves(values)]
        numbers = (torch.cat([torch.zeros(0, dtype=torch.float64), *flat]) / self.resolution).long()
        return torch.cat([numbers * weight, torch.tensor([weight])])

    def sums(self, total: Tensor) -> tuple[Tensor, int]:
        """On the server: weighted sums, in double precision, and the weight of all clients together."""
        return total[:-1].double() * self.resolution, int(total[-1])


def largest_cohort(weight: int) -> int:
    """How many clients of at most this weight can be added up before a sum could go beyond what a word holds."""
    return (2**63 - 1) // (LEVELS * weight)
