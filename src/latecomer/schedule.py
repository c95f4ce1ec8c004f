"""Learning rates that fall over the rounds of training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .plan import Course as Course


@dataclass(frozen=True)
class Schedule:
    """What learning rates are multiplied with in a round: by arithmetic alone, so that the round can be replayed."""

    course: Course = "constant"
    rounds: int = 0  # of training

    def factor(self, round: Tensor) -> float | Tensor:  # noqa: A002
        """In a round of training; what is none (a latecomer that is fitted, say) has the full rate."""
        if self.course == "constant":
            return 1.0
        done = (round / self.rounds).clamp(0, 1)
        if self.course == "step":  # kNN-Per's: to a tenth after half of the rounds, and again after three quarters
            return torch.where(done < 0.5, 1.0, torch.where(done < 0.75, 0.1, 0.01))
        return (1 + torch.cos(math.pi * done)) / 2


CONSTANT = Schedule()
