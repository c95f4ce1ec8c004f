"""Task: what is learned.   Home: one client's private data, as a client step sees it.   Batch: some of its examples."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from . import tree
from .errors import ModelError
from .nets.net import Net
from .ops.cross_entropy import cross_entropy
from .tree import Tree


@dataclass(frozen=True)
class Batch:
    """Examples of one client, as a step gets them from its home; padded to a size that all clients share."""

    x: Tensor  # [size, ...]
    y: Tensor  # [size]; -1 where the label is unknown
    real: Tensor  # [size]; True for an example, False for padding, which comes last
    weight: Tensor = None  # type: ignore[assignment]  # [size]; 1 for every example with a label, 0 for the rest
    labelled: Tensor | None = None  # whether any example has a label, where that is known already

    def __post_init__(self) -> None:
        if self.weight is None:
            object.__setattr__(self, "weight", example_weights(self.y, self.real))

    def mean(self, values: Tensor) -> Tensor:
        """The mean of one row an example over the real examples."""
        real = self.real.to(values.dtype)
        return (values * real[:, None]).sum(0) / real.sum().clamp(min=1)

    def max(self, values: Tensor) -> Tensor:
        """The largest of one row an example over the real examples; zero where there is none."""
        lowest = torch.finfo(values.dtype).min
        largest = torch.where(self.real[:, None], values, lowest).amax(0)
        return torch.where(self.real.any(), largest, torch.zeros_like(largest))

    def halves(self) -> tuple[Batch, Batch]:
        """The first half of the real examples (rounded up) and the other half, in batches of half the size."""
        count, size = self.real.sum(), len(self.real)
        cut = (count + 1) // 2
        place = torch.arange((size + 1) // 2, device=self.real.device)
        rest = (cut + place).clamp(max=size - 1)
        first = Batch(self.x[: len(place)], self.y[: len(place)], place < cut)
        return first, Batch(self.x[rest], self.y[rest], cut + place < count)


def example_weights(y: Tensor, real: Tensor) -> Tensor:
    """What the examples of a batch weigh."""
    return (real & (y >= 0)).float()


class Batches(Protocol):
    """A fixed number of batches; iterating draws them one by one."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Batch]: ...


class Home(Protocol):
    """All that a client step sees besides its message. Differs from engine to engine, behaves the same."""

    memory: Tree
    """What this client keeps between rounds; a step may assign a new tree of the same shape."""

    @property
    def round(self) -> Tensor:
        """The number of the round, to calculate with; below zero where it is none of training."""

    @property
    def budget(self) -> Tensor:
        """The size of model that this client can afford, as a place in `SIZES`."""

    def batch(self, size: int, purpose: str = "batch") -> Batch:
        """One random batch without repetition; the same one for the same purpose all round long."""

    def batches(self, steps: int, size: int, purpose: str = "batches") -> Batches:
        """`steps` batches, each drawn afresh from the training data without repetition: all of it, where it is less."""

    def epochs(self, count: int, size: int, purpose: str = "batches") -> Batches:
        """`count` shuffled passes over the training data; small clients may see padded batches at the end."""

    def all(self, split: str = "train") -> Batch:
        """Everything, padded to the largest client where clients are mapped."""

    def counts(self, classes: int) -> Tensor:
        """How many labelled training examples of each class there are; no example is looked at."""

    def noise(self, size: int, purpose: str = "noise", dtype: torch.dtype | None = None) -> Tensor:
        """`size` standard normal numbers, of the kind of an example's or as asked for. Secret on a real client; in a
        simulation a function of (seed, round, client, purpose), so that runs repeat and engines agree: there it hides
        nothing, and evaluations, whose round is always the same, always meet the same noise.
        """

    def lot(self, purpose: str) -> Tensor:
        """A number in [0, 1) that this client drew for a purpose, once and for all rounds."""


@dataclass(frozen=True)
class Task:
    """The model every client learns, and how it is judged. Weights are not here: they are arguments."""

    model: Net
    shape: tuple[int, ...]  # of one example
    classes: int

    dtype: torch.dtype = torch.float32  # of one example, as the model sees it
    sizes: Mapping[str, Mapping[str, torch.Size]] = field(default_factory=dict)
    """The weights of the model in every size that clients can afford (`model` is the largest); empty: all have `model`.
    Sizes differ in nothing but the shapes of their weights, so what computes with one computes with all."""

    def blank(self, size: int, device: torch.device | str = "cpu") -> Tensor:
        """Inputs of the right shape and nothing in them, for dry runs."""
        return torch.zeros(size, *self.shape, dtype=self.dtype, device=device)

    @property
    def head(self) -> tuple[str, ...]:
        """The names of the last layer's weights; all others are the body."""
        return tuple(name for name in self.model.shapes if name.rpartition(".")[0] == self.model.last)

    def target(self, without: Collection[str] = ()) -> Tree:
        """The shapes of the weights a server gives, all but those `without`; a branch a size, where there are sizes."""
        if len({str([shapes[name] for name in without]) for shapes in self.sizes.values()}) > 1:
            raise ModelError(f"{', '.join(without)} differ in shape from size to size, so clients cannot keep them.")
        trees = {size: tree.without(dict(shapes), without) for size, shapes in self.sizes.items()}
        return trees or tree.without(dict(self.model.shapes), without)

    def widened(self, outputs: int) -> Net:
        """The model's architecture with another number of outputs: its last layer is replaced."""
        net = self.model.widened(outputs)
        try:
            shape = net.skeleton(self.blank(2, "meta")).shape
        except RuntimeError as error:
            first = str(error).strip().split("\n")[0].rstrip(".")
            raise ModelError(f"The model cannot have {outputs} outputs in place of its own: {first}.") from error
        if shape != (2, outputs):
            raise ModelError(
                f"The model with {outputs} outputs returns shape {tuple(shape)} for 2 examples; "
                "its last layer must be the one that was made last."
            )
        return net

    def logits(self, params: Tree, x: Tensor) -> Tensor:
        """What the model with these weights says of examples: a row each, a column for every class."""
        return self.model(params, x, also=self.sizes.values())

    def loss(self, params: Tree, batch: Batch) -> Tensor:
        """Mean cross-entropy over labelled examples; padding and missing labels weigh nothing."""
        return cross_entropy(self.logits(params, batch.x), batch.y, batch.weight)

    def entropy(self, params: Tree, batch: Batch) -> Tensor:
        """Mean entropy of the predictions, which needs no labels; padding weighs nothing."""
        scores = torch.log_softmax(self.logits(params, batch.x), -1)
        return -batch.mean(scores.exp() * scores).sum()


def one_hot(y: Tensor, classes: int) -> Tensor:
    """Rows of zeros and a one (all zeros for an unknown label). torch's own fails under vmap of vjp."""
    return (y[..., None] == torch.arange(classes, device=y.device)).float()
