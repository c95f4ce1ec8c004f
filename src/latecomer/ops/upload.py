"""Small tensors from the host to the device."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """To a GPU through pinned memory, so that the host does not wait for it."""
    if device.type != "cuda":
        return tensor
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)
