"""Method: what server and clients know before the first message. Settings and network shapes, never weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from . import learn
from .clients import Clients, Engine, Sending
from .settings import check_ranges, setting
from .task import Home, Task
from .tree import Tree

if TYPE_CHECKING:
    from .data.federation import Federation


def made() -> Any:
    """A field that `Method.build` sets from the others."""
    return field(init=False, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One paper. Fields made by `setting(...)` are its hyperparameters; client steps are further methods of the class.

    In a client step, `self` is common knowledge, `home` is private, the keywords are the message and the return value
    is the reply: `def fit(self, home, *, params): ...`
    """

    task: Task
    clients: int  # all clients there will ever be, latecomers included
    members: int  # those that train; their ids are 0 .. members-1

    paper: ClassVar[Mapping[str, Any]] = {}
    """The run settings its paper uses, where they differ from latecomer's own defaults."""
    needs_labels: ClassVar[bool] = True
    """Whether a latecomer needs labelled examples to get a model."""

    def __post_init__(self) -> None:
        check_ranges(self)
        self.build()

    def build(self) -> None:
        """Make what follows from the settings: networks and optimisers, as fields declared by `made()`."""

    def set(self, **parts: Any) -> None:
        for name, part in parts.items():
            object.__setattr__(self, name, part)  # the one place where a frozen method is still being made

    def memory(self, generator: torch.Generator) -> Tree:
        """What a client keeps before its first round; the same for all clients."""
        return {}

    @abstractmethod
    def init(self, generator: torch.Generator) -> Tree:
        """The server's state before the first round."""

    @abstractmethod
    def round(self, state: Tree, clients: Clients) -> Tree:
        """One round with a cohort; returns a new state and changes nothing."""

    @abstractmethod
    def personalise(self, state: Tree, clients: Clients) -> Sending:
        """What to send so that these clients, members or latecomers, can `predict`."""

    @abstractmethod
    def predict(self, home: Home, x: Tensor, **sent: Tree) -> Tensor:
        """On the client: logits for `x`, from what `personalise` sent."""

    def review(self, federations: Sequence[Federation], engine: Engine) -> list[str]:
        """Before training: what a user should know about this method on these data; raises where it cannot work."""
        return []

    def score(self, home: Home, **sent: Tree) -> Tree:
        """On the client: how many examples of each held-out split the personal model gets right."""
        counts = {}
        for split in ("val", "test"):
            batch = home.all(split)
            right = (self.predict(home, batch.x, **sent).argmax(-1) == batch.y) & batch.real
            known = batch.real & (batch.y >= 0)
            counts[split] = torch.stack([right.sum(), known.sum()]).float()
        return counts


@dataclass(frozen=True, kw_only=True)
class TrainsByPasses(Method):
    """A method whose clients train by SGD, some passes over their data a round: what FedAvg and its kin share."""

    lr: float = setting(0.05, "local learning rate", above=0)
    epochs: int = setting(1, "local passes over the data a round", low=1)
    batch: int = setting(32, "examples a batch", low=1)
    momentum: float = setting(0.0, "local momentum, within a round", low=0, high=0.999)
    weight_decay: float = setting(0.0, "local weight decay", low=0)
    clip: float = setting(0.0, "largest gradient norm in local training; 0: no limit", low=0)

    local: learn.SGD = made()

    def build(self) -> None:
        self.set(local=learn.SGD(self.lr, self.momentum, self.weight_decay, self.clip))
