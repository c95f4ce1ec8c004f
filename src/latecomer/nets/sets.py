"""Set encoders: from a client's examples, without their labels, to one descriptor, psi(pool(phi(x)))."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from .. import tree
from ..errors import ModelError, SettingError
from ..task import Batch, Home, Task
from ..tree import Tree
from .models import LeNet, builder
from .net import Net

Pool = Literal["mean-max", "mean"]
SQUARINGS = 5  # of a matrix that has one row a number of the descriptor: `stretch` is then 3 % too large, or less


@dataclass(frozen=True)
class SetEncoder:
    """`phi` sees one example at a time, pooling runs over the real ones, `psi` makes a descriptor of what is pooled.

    With a `bound`, no example's features are longer than it, and psi, which must be one linear layer, stretches nothing
    by more than `lipschitz`: then replacing one of |D| examples moves a descriptor by no more than `sensitivity` / |D|,
    provided that `pool` is the mean.
    """

    phi: Net
    psi: Net
    pool: Pool = "mean-max"
    bound: float = 0.0
    lipschitz: float = 1.0

    def __post_init__(self) -> None:
        if self.bound and (self.pool != "mean" or len(self.psi.shapes) > 2):
            raise SettingError(
                "--bound goes with --pool mean and --after 0: it limits what one example does to a mean."
            )

    @property
    def size(self) -> int:
        """Of a descriptor."""
        return next(reversed(self.psi.shapes.values()))[0]

    @property
    def sensitivity(self) -> float:
        """Two features differ by at most twice the bound, and psi stretches that by `lipschitz`."""
        if not self.bound:
            raise SettingError("--epsilon needs a --bound on the features, 1 say, with --pool mean and --after 0.")
        return 2 * self.lipschitz * self.bound

    def fresh(self, generator: torch.Generator) -> Tree:
        return {"phi": self.phi.fresh(generator), "psi": self.psi.fresh(generator)}

    def __call__(self, params: Tree, batch: Batch) -> Tensor:
        """The descriptor of all examples in a batch."""
        features = self.phi(params["phi"], batch.x)  # [size, width]
        if self.bound:
            return self._bounded(features, params["psi"], batch)
        half = features.shape[-1] // 2 if self.pool == "mean-max" else features.shape[-1]
        pooled = batch.mean(features[:, :half])
        if self.pool == "mean-max":
            pooled = torch.cat([pooled, batch.max(features[:, half:])])
        return self.psi(params["psi"], pooled[None])[0]

    def _bounded(self, features: Tensor, last: Tree, batch: Batch) -> Tensor:
        """Whatever weights a server sends: numbers that overflow must not tell on an example, nor may TF32 rounding."""
        features = features.nan_to_num(0.0, 0.0, 0.0)
        pooled = batch.mean(features * (self.bound / row_norms(features).clamp(min=self.bound)))
        scaled = last | {"0.weight": last["0.weight"] * (self.lipschitz / stretch(last["0.weight"]))}
        return self.psi(tree.map(Tensor.double, scaled), pooled[None].double())[0].to(features.dtype)

    def of(self, home: Home, params: Tree, part: int = 0) -> Tensor:
        """The descriptor of a client: of all its examples at once, or the mean over random parts of so many examples.

        Parts count by their examples, as the last one may be smaller: so a mean over parts is as private as any mean.
        """
        if not part:
            return self(params, home.all())
        pairs = [(self(params, batch), batch.real.sum()) for batch in home.epochs(1, part, "describe")]
        count = torch.stack([real for _, real in pairs]).to(pairs[0][0].dtype)
        return count @ torch.stack([descriptor for descriptor, _ in pairs]) / count.sum().clamp(min=1)


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


def row_norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return norms


def stretch(weight: Tensor) -> Tensor:
    """An upper bound, nearly tight, of what a matrix can multiply a vector's length with (its largest singular value).

    The Frobenius norm bounds the spectral norm, and that of a high power of W W^T does so closely:
    |W|^2 <= |(W W^T)^n|_F^(1/n), with n = 2^SQUARINGS. Only products, so it works under vmap, in CUDA graphs and
    backwards, where a singular value decomposition does not. In double precision, which TF32 does not touch.
    """
    wide = weight.double()
    power, logarithm, share = wide @ wide.mT, weight.new_zeros((), dtype=torch.float64), 1.0
    for k in range(SQUARINGS + 1):
        size = torch.linalg.matrix_norm(power).clamp(min=torch.finfo(torch.float64).tiny)
        logarithm, power, share = logarithm + share * size.log(), power / size, share / 2
        power = power @ power if k < SQUARINGS else power
    bound = (logarithm / 2).exp().to(weight.dtype) * (1 + 1e-6)  # so that rounding errs on the safe side
    return bound.clamp(min=torch.finfo(weight.dtype).tiny)  # a matrix of zeros can be divided by it
