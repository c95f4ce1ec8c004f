"""The first layer of a network that sees an image and, as planes behind its channels, a one-hot label.

A plane is the same everywhere, so a convolution of it need not be calculated pixel by pixel: on a CPU, what each class
adds is worked out once, from windows of ones. On a GPU, kernels read channels side by side, and planes cost little.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .convolution import conv_relu_pool


def labelled_conv_relu_pool(x: Tensor, label: Tensor, weight: Tensor, bias: Tensor | None, padding: Any) -> Tensor:
    """Convolution of images [size, channels, height, width] with labels [size, classes]; ReLU; 2x2 max pooling."""
    if x.is_cuda:
        planes = label[..., None, None].expand(-1, -1, *x.shape[2:])
        return conv_relu_pool(torch.cat([x, planes], 1), weight, bias, (1, 1), padding)
    of_image, of_planes = weight.split([x.shape[1], label.shape[1]], 1)
    image = F.conv2d(x, of_image, bias, padding=padding)
    ones = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=x.device)  # made of x, each client had its own
    windows = F.unfold(ones, weight.shape[2:], padding=padding)[0]  # [taps, places]
    plane = windows.t() @ of_planes.flatten(2).permute(1, 2, 0)  # what a plane adds, for every class
    by_class = plane.flatten(1)  # with channels last, as pooling on a CPU is slow without
    added = (label.to(by_class.dtype) @ by_class).unflatten(1, (*image.shape[2:], -1)).movedim(-1, 1)
    return F.relu(F.max_pool2d(added + image, 2))  # in the order of the first: channels last
