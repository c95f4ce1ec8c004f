"""Which way a mapped block of local training takes (../blocks.py): kernels, or as it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _functorch
from torch.overrides import TorchFunctionMode

from .. import blocks
from ..data import shuffle
from . import fused

T = TypeVar("T")
LARGEST_LOSS = 2**13  # numbers that the kernel of the loss holds at once
BLOCKS = (
    blocks.cross_entropy,
    blocks.move,
    blocks.split,
    blocks.take,
    shuffle.draw,
)


def rerouted(function: Callable[..., T]) -> Callable[..., T]:
    """The function, with its mapped blocks computed our way."""

    def wrapped(*args: Any) -> T:
        with Reroute():
            return function(*args)

    return wrapped


class Reroute(TorchFunctionMode):
    """While active, what has a better way is sent there; all else is left alone."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        kinds: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function in BLOCKS:
            better = self._block(function, args)
            if better is not None:
                return better(*args)
            with self:  # what the block is made of may have a better way still
                return function.__wrapped__(*args)  # type: ignore[attr-defined]
        return function(*args, **kwargs)

    def _block(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """What takes the place of a block, if anything does."""
        first, second = args[:2]
        if function is blocks.take:
            return (
                fused.take
                if first.dtype == torch.uint8 and _on_gpu(second) and args[2].dtype == torch.float32
                else None
            )
        if function is shuffle.draw:
            return fused.draw if _on_gpu(first) else None
        if function is blocks.split:  # it is the way back that has a kernel
            return fused.split if tracked(first) and first.dtype == torch.float32 and _has_triton(first) else None
        if function is blocks.move:  # at first all may begin from the same weights, and only directions differ
            tensors, rates = (*args[:3], *args[7:]), args[3:7]
            numbers = all(isinstance(rate, float | int) for rate in rates)
            free = numbers and has_kernels(args[7]) and not any(tracked(value) for value in tensors)
            return fused.move if free else None
        if not has_kernels(first):
            return None
        return fused.cross_entropy if first.ndim == 2 and _power(first.shape) <= LARGEST_LOSS else None


def has_kernels(x: Tensor) -> bool:
    """Whether kernels can take this array, which is mapped over: float32 on a GPU, and Triton is there."""
    return x.dtype == torch.float32 and _on_gpu(x)


def _on_gpu(x: Tensor) -> bool:
    return mapped(x) and _has_triton(x)


def _has_triton(x: Tensor) -> bool:
    return x.is_cuda and fused.kernels() is not None


def _power(shape: Iterable[int]) -> int:
    """How many numbers an array has once its sides are rounded up to powers of two."""
    total = 1
    for side in shape:
        total *= 1 << (side - 1).bit_length()
    return total


def mapped(tensor: Tensor) -> bool:
    """Whether a tensor has a hidden dimension of `vmap`."""
    while _functorch.is_gradtrackingtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return bool(_functorch.is_batchedtensor(tensor))


def varies(weight: Tensor) -> bool:
    """Whether a weight differs from client to client, or will have a gradient that does."""
    return mapped(weight) or tracked(weight)


def tracked(tensor: Tensor) -> bool:
    """Whether somebody takes a gradient through this tensor."""
    return tensor.requires_grad or bool(_functorch.is_gradtrackingtensor(tensor))
