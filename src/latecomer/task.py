"""Task: what is learned.   Home: one client's private data, as a client step sees it.   Batch: some of its examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .nets.net import Net
from .tree import Tree


@dataclass(frozen=True)
class Batch:
    x: Tensor  # [size, ...]
    y: Tensor  # [size]; -1 where the label is unknown
    real: Tensor  # [size]; True for an example, False for padding

    @property
    def weight(self) -> Tensor:
        """1 for every example with a label, 0 for the rest."""
        return (self.real & (self.y >= 0)).float()

    def mean(self, values: Tensor) -> Tensor:
        """The mean of one row an example over the real examples."""
        real = self.real.to(values.dtype)
        return (values * real[:, None]).sum(0) / real.sum().clamp(min=1)


class Batches(Protocol):
    """A fixed number of batches; iterating draws them one by one."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...


class Home(Protocol):
    """All that a client step sees besides its message. Differs from engine to engine, behaves the same."""

    memory: Tree
    """What this client keeps between rounds; a step may assign a new tree of the same shape."""

    def batch(self, size: int, purpose: str = "batch") -> Batch:
        """One random batch without repetition; the same one for the same purpose all round long."""

    def batches(self, steps: int, size: int, purpose: str = "batches") -> Batches:
        """`steps` batches from shuffled passes over the training data."""

    def epochs(self, count: int, size: int, purpose: str = "batches") -> Batches:
        """`count` shuffled passes over the training data. Small clients see padded batches at the end."""

    def all(self, split: str = "train") -> Batch:
        """Everything, padded to the largest client."""


@dataclass(frozen=True)
class Task:
    """The model every client learns, and how it is judged. Weights are not here: they are arguments."""

    model: Net
    shape: tuple[int, ...]  # of one example
    classes: int

    dtype: torch.dtype = torch.float32  # of one example, as the model sees it

    def blank(self, size: int, device: torch.device | str = "cpu") -> Tensor:
        """Inputs of the right shape and nothing in them, for dry runs."""
        return torch.zeros(size, *self.shape, dtype=self.dtype, device=device)

    @property
    def head(self) -> tuple[str, ...]:
        """The names of the last layer's weights; all others are the body."""
        layer = next(reversed(self.model.shapes)).rpartition(".")[0]
        return tuple(name for name in self.model.shapes if name.rpartition(".")[0] == layer)

    def logits(self, params: Tree, x: Tensor) -> Tensor:
        return self.model(params, x)

    def loss(self, params: Tree, batch: Batch) -> Tensor:
        """Mean cross-entropy over labelled examples; padding and missing labels weigh nothing."""
        scores = torch.log_softmax(self.logits(params, batch.x), -1)
        each = -scores.gather(-1, batch.y.clamp(min=0)[..., None]).squeeze(-1)
        return (each * batch.weight).sum() / batch.weight.sum().clamp(min=1)

    def entropy(self, params: Tree, batch: Batch) -> Tensor:
        """Mean entropy of the predictions, which needs no labels; padding weighs nothing."""
        scores = torch.log_softmax(self.logits(params, batch.x), -1)
        return -batch.mean(scores.exp() * scores).sum()


def one_hot(y: Tensor, classes: int) -> Tensor:
    """Rows of zeros and a one (all zeros for an unknown label). torch's own fails under vmap of vjp."""
    return (y[..., None] == torch.arange(classes, device=y.device)).float()
