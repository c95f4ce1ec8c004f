"""Embedding networks: from one labelled example to a vector; their mean over a client's examples describes it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..task import Batch, one_hot
from ..tree import Tree
from .models import MLP, LeNet
from .net import Net


class ExampleAndLabel(Net):
    """A LeNet on the image, with the label as one-hot planes behind its channels; an MLP on what is not an image."""

    def __init__(self, shape: tuple[int, ...], classes: int, descriptor: int) -> None:
        self.classes = classes
        wide = (shape[0] + classes, *shape[1:])
        super().__init__(lambda: (LeNet if len(shape) == 3 else MLP)(wide, descriptor))

    def embed(self, params: Tree, batch: Batch) -> Tensor:
        label = one_hot(batch.y, self.classes)  # [size, classes]
        planes = label[(...,) + (None,) * (batch.x.ndim - 2)].expand(-1, -1, *batch.x.shape[2:])
        return self(params, torch.cat([batch.x, planes], 1))


class LabelOnly(Net):
    """A linear layer on the one-hot label."""

    def __init__(self, classes: int, descriptor: int) -> None:
        self.classes = classes
        super().__init__(lambda: nn.Linear(classes, descriptor))

    def embed(self, params: Tree, batch: Batch) -> Tensor:
        return self(params, one_hot(batch.y, self.classes))
