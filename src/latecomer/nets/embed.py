"""Embedding networks: from one labelled example to a vector; their mean over a client's examples describes it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..task import Batch, one_hot
from ..tree import Tree
from .models import MLP, LeNet
from .net import Net


class LabelledLeNet(LeNet):
    """A LeNet on the image, with the label, one-hot, as planes behind its channels."""

    def forward(self, x: Tensor, label: Tensor) -> Tensor:  # type: ignore[override]
        if x.is_cuda:  # where kernels read channels side by side, and planes cost little
            planes = label[..., None, None].expand(-1, -1, *x.shape[2:])
            return self.after_first(self.conv1(torch.cat([x, planes], 1)))
        padding = self.conv1.padding
        assert isinstance(padding, tuple)
        of_image, of_planes = self.conv1.weight.split([x.shape[1], label.shape[1]], 1)
        image = F.conv2d(x, of_image, self.conv1.bias, padding=padding)
        ones = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device)  # made of x, each client had its own
        windows = F.unfold(ones, self.conv1.kernel_size, padding=padding)[0]  # [taps, places]
        plane = windows.t() @ of_planes.flatten(2).permute(1, 2, 0)  # what a plane adds, for every class
        by_class = plane.flatten(1)  # with channels last, as pooling on a CPU is slow without
        added = (label.to(by_class.dtype) @ by_class).unflatten(1, (*image.shape[2:], -1)).movedim(-1, 1)
        return self.after_first(F.relu(F.max_pool2d(added + image, 2)))  # in the order of the first: channels last


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
