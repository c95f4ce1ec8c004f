"""Which of our own ways a mapped operation takes: kernels, batched matrix products, or PyTorch's.

Under `vmap`, PyTorch turns a convolution whose weights, or whose weights' gradients, differ from client to client into
a grouped one, and cuDNN's backward pass for those runs group by group. Where Triton is there, kernels take its place,
and that of the other layers (../blocks.py); elsewhere matrix products do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch
from torch.overrides import TorchFunctionMode

from .. import blocks
from . import fused
from .convolve import convolve

T = TypeVar("T")
WIDEST = 64  # channels that the kernels for few channels are made for; there are others for many (fused.wide)
DENSEST = 2**18  # weights of a linear layer that the kernels are made for; beyond, cuBLAS is better
LARGEST_GROUP = 2**14  # numbers of a group that the kernel of GroupNorm holds at once
LARGEST_BATCH = 128  # laying out windows takes memory, and larger batches keep a grouped convolution busy anyway
BLOCKS = (blocks.stage, blocks.dense, blocks.norm)


def rerouted(function: Callable[..., T]) -> Callable[..., T]:
    """The function, with its mapped blocks, convolutions and poolings computed our way."""

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
        if function is torch.conv2d and not kwargs and varies(args[1]):
            x, weight, bias, stride, padding, dilation, groups = _seven(args)
            if x.ndim == 4 and dilation == (1, 1) and groups == 1 and not isinstance(padding, str):
                if has_kernels(x) and (_small(weight, padding) or _wide(x, weight, padding)):
                    return fused.convolve(x, weight, bias, stride, padding)
                if len(x) <= LARGEST_BATCH:
                    return convolve(x, weight, bias, stride, padding)
        if function is F.linear and len(args) == 3 and args[2] is not None and varies(args[1]):
            if _fits(args):
                return fused.dense(args[0], args[1], args[2], False)
            return args[0] @ args[1].t() + args[2]  # one operation less than PyTorch makes of it under vmap
        if function is F.max_pool2d and has_kernels(args[0]) and (side := _square(args, kwargs)):
            return fused.pool(args[0], side)
        return function(*args, **kwargs)

    def _block(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any] | None:
        """What takes the place of a block, if anything does."""
        first, second = args[:2]
        if not has_kernels(first):
            return None
        if function is blocks.stage:
            fits = varies(second) and first.ndim == 4 and _small(second, args[4])
            return fused.stage if fits else None
        if function is blocks.norm:
            return fused.norm if _grouped(first, args[4]) else None
        return partial(fused.dense, relu=True) if varies(second) and _fits(args) else None


def has_kernels(x: Tensor) -> bool:
    """Whether kernels can take this array, which is mapped over: float32 on a GPU, and Triton is there."""
    return x.dtype == torch.float32 and _on_gpu(x)


def _on_gpu(x: Tensor) -> bool:
    return mapped(x) and _has_triton(x)


def _has_triton(x: Tensor) -> bool:
    return x.is_cuda and fused.kernels() is not None


def _small(weight: Tensor, padding: tuple[int, int]) -> bool:
    """Whether the kernels for few channels are made for filters like these."""
    return max(weight.shape[:2]) <= WIDEST and _inside(weight, padding)


def _wide(x: Tensor, weight: Tensor, padding: tuple[int, int]) -> bool:
    """Whether the kernels for many channels are. They count the numbers of one client's images by 32 bits."""
    sides = (x.shape[-2] + 2 * padding[0]) * (x.shape[-1] + 2 * padding[1])
    return fused.wide(weight) and _inside(weight, padding) and len(x) * max(weight.shape[:2]) * sides < 2**31


def _inside(weight: Tensor, padding: tuple[int, int]) -> bool:
    """Whether every window sees something of the image."""
    return padding[0] < weight.shape[-2] and padding[1] < weight.shape[-1]


def _grouped(x: Tensor, groups: int) -> bool:
    """Whether the kernels of GroupNorm are made for these images."""
    fits = _power((x.shape[-2] * x.shape[-1], x.shape[1] // groups)) <= LARGEST_GROUP
    return x.ndim == 4 and x.shape[1] % 4 == 0 and fits


def _fits(args: tuple[Any, ...]) -> bool:
    x, weight, bias = args
    return has_kernels(x) and x.ndim == 2 and bias is not None and weight.numel() <= DENSEST


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


def _square(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The side of the squares that a max pooling looks at, if they do not overlap and nothing else is asked; else 0."""
    names = ("x", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    side = _pair(given["kernel_size"])
    plain = _pair(given.get("padding", 0)) == (0, 0) and _pair(given.get("dilation", 1)) == (1, 1)
    odd = given.get("ceil_mode") or given.get("return_indices") or side[0] != side[1]
    return side[0] if plain and not odd and _pair(given.get("stride") or side) == side else 0


def _seven(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """All arguments of a convolution, those left out too: x, weight, bias, stride, padding, dilation, groups."""
    x, weight, bias, stride, padding, dilation, groups = args + (None, None, None, 1, 0, 1, 1)[len(args) :]
    return x, weight, bias, _pair(stride), _pair(padding), _pair(dilation), groups


def _pair(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return (value, value) if isinstance(value, int) else tuple(value)
