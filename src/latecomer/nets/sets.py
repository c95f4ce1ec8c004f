"""Set encoders: from a client's examples, without their labels, to one descriptor, psi(pool(phi(x)))."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod, sqrt
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import ModelError, SettingError
from ..task import Batch, Home, Task
from ..tree import Tree
from .models import LeNet, builder
from .net import Net

Pool = Literal["mean-max", "mean"]
SLACK = 1 + 1e-6
"""What rounding may add to a sensitivity: in double precision, a sum of 70,000 features one by one stays below it."""


@dataclass(frozen=True)
class SetEncoder:
    """`phi` sees one example at a time, pooling runs over the real ones, `psi` makes a descriptor of what is pooled.

    With a `bound`, which takes the mean as `pool`, no example's features are longer than it, whatever weights a server
    sends: then replacing one of |D| examples moves what is pooled by no more than `sensitivity` / |D|.
    """

    phi: Net
    psi: Net
    pool: Pool = "mean-max"
    bound: float = 0.0

    def __post_init__(self) -> None:
        if self.bound and self.pool != "mean":
            raise SettingError("--bound goes with --pool mean: it limits what one example does to a mean.")

    @property
    def size(self) -> int:
        """Of a descriptor."""
        return next(reversed(self.psi.shapes.values()))[0]

    @property
    def sensitivity(self) -> float:
        """Features are not negative, so two of them are never further apart than at right angles: sqrt(2) bounds."""
        if not self.bound:
            raise SettingError("--epsilon needs a --bound on the features, 1 say, with --pool mean.")
        return sqrt(2) * self.bound * SLACK

    def fresh(self, generator: torch.Generator) -> Tree:
        return {"phi": self.phi.fresh(generator), "psi": self.psi.fresh(generator)}

    def __call__(self, params: Tree, batch: Batch) -> Tensor:
        """The descriptor of all examples in a batch."""
        return self.describe(params, self.pooled(params, batch))

    def pooled(self, params: Tree, batch: Batch) -> Tensor:
        """What the examples of a batch come to; with a bound, in double precision."""
        features = self.phi(params["phi"], batch.x)  # [size, width]
        if self.bound:
            return batch.mean(bounded(features, self.bound))
        half = features.shape[-1] // 2 if self.pool == "mean-max" else features.shape[-1]
        pooled = batch.mean(features[:, :half])
        if self.pool == "mean-max":
            pooled = torch.cat([pooled, batch.max(features[:, half:])])
        return pooled

    def describe(self, params: Tree, pooled: Tensor) -> Tensor:
        """What psi makes of it, who sees a bounded mean in units of bound / sqrt(width): numbers of a usual size."""
        if self.bound:
            pooled = pooled * (sqrt(len(pooled)) / self.bound)
        return self.psi(params["psi"], pooled.to(params["psi"]["0.weight"].dtype)[None])[0]

    def of(self, home: Home, params: Tree, part: int = 0) -> Tensor:
        """The descriptor of a client: of all its examples at once, or the mean over random parts of so many examples.

        With a bound, parts make no difference: their means are pooled before psi.
        """
        if self.bound:
            return self.describe(params, self.mean(home, params, part))
        return over_parts(home, part, lambda batch: self(params, batch))

    def mean(self, home: Home, params: Tree, part: int = 0) -> Tensor:
        """The mean of a client's bounded features, in double precision: what noise can be added to."""
        return over_parts(home, part, lambda batch: self.pooled(params, batch))


def over_parts(home: Home, part: int, function: Callable[[Batch], Tensor]) -> Tensor:
    """The mean of a function over random parts of a client's examples, each counted by its size; 0: of all at once."""
    if not part:
        return function(home.all())
    pairs = [(function(batch), batch.real.sum()) for batch in home.epochs(1, part, "describe")]
    count = torch.stack([real for _, real in pairs]).to(pairs[0][0].dtype)
    return count @ torch.stack([value for value, _ in pairs]) / count.sum().clamp(min=1)


def bounded(features: Tensor, bound: float) -> Tensor:
    """Rows, none of them negative or longer than the bound, in double precision, whatever weights made them.

    What is not a number or infinite counts as nothing; a square that overflows makes a length infinite and so the row
    zero, one that underflows leaves a row that is short anyhow.
    """
    rows = features.double().nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows * (bound / torch.maximum(lengths, torch.full_like(lengths, bound)))  # an ONNX clip would cut lengths


def features(kind: str, task: Task, width: int) -> Net:
    """What sees one example: a LeNet that ends in `width` ReLU units, or a single dense layer of them."""
    shape = task.shape
    if not task.dtype.is_floating_point:
        raise ModelError(f"A set encoder takes images or numbers; an example here is made of {task.dtype} codes.")
    if kind == "lenet" or (kind == "auto" and builder("auto", shape) is LeNet):
        return Net(lambda: nn.Sequential(LeNet(shape, width), nn.ReLU()))
    return Net(lambda: nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), width), nn.ReLU()))


def layers(inputs: int, outputs: int, hidden: int) -> Net:
    """What comes after pooling: `hidden` ReLU layers as wide as the input, and a linear one."""

    def build() -> nn.Module:
        parts = [part for _ in range(hidden) for part in (nn.Linear(inputs, inputs), nn.ReLU())]
        return nn.Sequential(*parts, nn.Linear(inputs, outputs))

    return Net(build)
