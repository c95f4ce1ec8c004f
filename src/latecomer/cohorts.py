"""Who takes part in a round: a function of seed and round, so that everybody who asks gets the same answer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .checks import by_labels
from .data.federation import Federation
from .ops.shuffle import purpose, sample


class Cohorts:
    """The cohorts of every run. Sorted, so that neighbours in the data stay neighbours."""

    def __init__(self, federations: Sequence[Federation], size: int, labelled: float | None) -> None:
        """`labelled` is the share that is drawn among members with labels; None: all are drawn alike."""
        self.federations, self.size, self.labelled = federations, size, labelled
        self.groups = [] if labelled is None else [by_labels(federation) for federation in federations]

    def __call__(self, run: int, number: int) -> Tensor:
        """Who takes part in one round."""
        return self.draw(run, torch.tensor([number]))[0]

    def draw(self, run: int, numbers: Tensor) -> Tensor:
        """Who takes part in several rounds, [rounds, cohort]."""
        federation = self.federations[run]
        if self.labelled is None:
            drawn = sample(self.size, federation.members, federation.seed, numbers, purpose("cohort"))
            return drawn.sort().values
        others, labelled = self.groups[run]  # where one group is too small, the other fills the cohort
        few = min(max(round(self.labelled * self.size), self.size - len(others)), len(labelled))
        parts = [
            group[sample(count, len(group), federation.seed, numbers, purpose(name))]
            for group, count, name in ((labelled, few, "labelled"), (others, self.size - few, "unlabelled"))
            if count
        ]
        return torch.cat(parts, -1).sort().values
