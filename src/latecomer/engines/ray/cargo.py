"""Tensors travel as arrays of bytes, which Ray keeps once a machine and lends to all processes there.

A tensor that Ray pickles as it is would be copied several times: 100 MB took 380 ms, as an array 20.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNED = 64  # bytes: where numbers lie may decide in which order they are added
Bytes = NDArray[np.uint8]


@contextmanager
def lending() -> Iterator[None]:
    """What is put or passed to a worker within is read there where it lies, by all workers of a machine.

    It must not be written to. Client steps do not write to what they are sent.
    """
    carry(_lent)
    try:
        yield
    finally:
        ray.util.deregister_serializer(Tensor)


def carry(arrive: Callable[[tuple[Bytes, torch.dtype, torch.Size]], Tensor]) -> None:
    """From now on, tensors that leave this process travel as arrays, and arrive so."""
    ray.util.register_serializer(Tensor, serializer=_packed, deserializer=arrive)


def owned(packed: tuple[Bytes, torch.dtype, torch.Size]) -> Tensor:
    """A copy, which may be written to: Ray can forget what it carried."""
    return _lent(packed).clone()


def _packed(tensor: Tensor) -> tuple[Bytes, torch.dtype, torch.Size]:
    whole = tensor.detach().cpu().contiguous()
    flat: Any = whole.reshape(-1).view(torch.uint8).numpy()
    return flat, whole.dtype, whole.shape


def _lent(packed: tuple[Bytes, torch.dtype, torch.Size]) -> Tensor:
    array, dtype, shape = packed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch has no tensors that are only read, and says so
        flat = torch.from_numpy(array)
    return (flat if flat.data_ptr() % ALIGNED == 0 else flat.clone()).view(dtype).reshape(shape)
