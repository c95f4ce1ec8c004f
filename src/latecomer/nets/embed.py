"""Embedding networks: from one labelled example to a vector; their mean over a client's examples describes it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..ops.planes import labelled_conv_relu_pool
from ..task import Batch, one_hot
from ..tree import Tree
from .models import MLP, LeNet
from .net import Net


class LabelledLeNet(LeNet):
    """A LeNet on the image, with the label, one-hot, as planes behind its channels."""

    def forward(self, x: Tensor, label: Tensor) -> Tensor:  # type: ignore[override]
        first = self.conv1
        return self.after_first(labelled_conv_relu_pool(x, label, first.weight, first.bias, first.padding))


class LabelledMLP(MLP):
    """An MLP on the example and its label."""

    def forward(self, x: Tensor, label: Tensor) -> Tensor:  # type: ignore[override]
        planes = label[(...,) + (None,) * (x.ndim - 2)].expand(-1, -1, *x.shape[2:])
        return super().forward(torch.cat([x, planes], 1))


class ExampleAndLabel(Net):
    """A LeNet on images, an MLP on what is none, with the label as planes behind the channels."""

    def __init__(self, shape: tuple[int, ...], classes: int, descriptor: int) -> None:
        self.classes = classes
        wide = (shape[0] + classes, *shape[1:])
        super().__init__(lambda: (LabelledLeNet if len(shape) == 3 else LabelledMLP)(wide, descriptor))

    def embed(self, params: Tree, batch: Batch) -> Tensor:
        return self(params, batch.x, one_hot(batch.y, self.classes))


class LabelOnly(Net):
    """A linear layer on the one-hot label."""

    def __init__(self, classes: int, descriptor: int) -> None:
        self.classes = classes
        super().__init__(lambda: nn.Linear(classes, descriptor))

    def embed(self, params: Tree, batch: Batch) -> Tensor:
        return self(params, one_hot(batch.y, self.classes))
