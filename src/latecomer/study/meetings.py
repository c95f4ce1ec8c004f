"""A trained server meets groups of new clients whose class shares are drawn from a Dirichlet distribution."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..handover.meet import Meeting, meet
from ..handover.trained import Trained
from ..runs.run import client_table


@dataclass(frozen=True)
class Group:
    """New clients: their rows, as clients.csv has them, and what they come to."""

    rows: list[dict[str, Any]]
    summary: dict[str, float]

    @property
    def examples(self) -> float:
        """How many training examples one has, on average."""
        return fmean(row["train_examples"] for row in self.rows)


def met(trained: Trained, alpha: float, clients: int = 0, fresh: bool = True, device: str = "auto") -> Group:
    """The clients of one alpha; how the run's own were drawn does not matter, but rotations and labels are as there.

    Who trains alone, or fits to its data, needs as much as members had: so fresh data go to as many as came late.
    """
    if fresh and not clients:
        clients = len(trained.federations[0]) - trained.federations[0].first_late
    split: dict[str, Any] = {"partition": "dirichlet", "over": "classes", "split": "pefll", "alpha": alpha}
    split |= {"clients": clients} if clients else {}
    found = meet(trained, Meeting(fresh=fresh, device=device), **split)
    rows = client_table(found.federations, [(scores, None) for scores in found.scores])
    return Group(rows, found.result["unseen"])
