"""Convolutions of many small networks: by kernels of our own, or as batched matrix products.

Under `vmap`, PyTorch turns a convolution whose weights differ from client to client into a grouped one, and cuDNN's
backward pass for those runs group by group. Where Triton is there, kernels take their place (fused.py), and those of
PyTorch's max pooling. Elsewhere the windows of every image are laid out once and multiplied in one batched product per
pass, per image, so that the weights' gradient is spread over the whole GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch
from torch.overrides import TorchFunctionMode

from . import fused

T = TypeVar("T")
WIDEST = 64  # channels that the kernels are made for
LARGEST_BATCH = 128  # laying out windows takes memory, and larger batches keep a grouped convolution busy anyway


def rerouted(function: Callable[..., T]) -> Callable[..., T]:
    """The function, with its mapped convolutions and poolings computed our way."""

    def wrapped(*args: Any) -> T:
        with Reroute():
            return function(*args)

    return wrapped


class Reroute(TorchFunctionMode):
    """While active, 2-d convolutions whose weights are mapped over go to `convolve`; others are left alone.

    So does max pooling over squares, where there are kernels for it. Linear layers are written in fewer operations.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        kinds: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.conv2d and not kwargs and mapped(args[1]):
            x, weight, bias, stride, padding, dilation, groups = _seven(args)
            if x.ndim == 4 and dilation == (1, 1) and groups == 1 and not isinstance(padding, str):
                if has_kernels(x) and max(weight.shape[:2]) <= WIDEST:
                    return fused.convolve(x, weight, bias, stride, padding)
                if len(x) <= LARGEST_BATCH:
                    return convolve(x, weight, bias, stride, padding)
        if function is F.linear and len(args) == 3 and args[2] is not None and mapped(args[1]):
            return args[0] @ args[1].t() + args[2]  # one operation less than PyTorch makes of it under vmap
        if function is F.max_pool2d and has_kernels(args[0]) and (side := _square(args, kwargs)):
            return fused.pool(args[0], side)
        return function(*args, **kwargs)


def has_kernels(x: Tensor) -> bool:
    """Whether kernels can take this array, which is mapped over: float32 on a GPU, and Triton is there."""
    return x.is_cuda and x.dtype == torch.float32 and mapped(x) and fused.kernels() is not None


def _square(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """The side of the squares that a max pooling looks at, if they do not overlap and nothing else is asked; else 0."""
    names = ("x", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    side = _pair(given["kernel_size"])
    plain = _pair(given.get("padding", 0)) == (0, 0) and _pair(given.get("dilation", 1)) == (1, 1)
    odd = given.get("ceil_mode") or given.get("return_indices") or side[0] != side[1]
    return side[0] if plain and not odd and _pair(given.get("stride") or side) == side else 0


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """A convolution of [size, channels, height, width] with one filter bank, as a product per image."""
    if padding != (0, 0):
        x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    windows: Tensor = _Windows.apply(x, tuple(weight.shape[-2:]), stride)  # type: ignore[no-untyped-call]
    size, (rows, columns) = len(x), windows.shape[-2:]
    flat = windows.reshape(size, -1, rows * columns)  # PyTorch keeps it: the weights' gradient needs it too
    filters = weight.flatten(1).expand(size, -1, -1)  # so that this gradient is a product an image, then a sum
    out: Tensor = torch.bmm(filters, flat) if bias is None else torch.baddbmm(bias[None, :, None], filters, flat)
    return out.view(size, -1, rows, columns)


class _Windows(torch.autograd.Function):
    """Lays images [size, channels, height, width] out as windows [size, channels, high, wide, rows, columns].

    It is linear and `_Fold` is its transpose: each is the other's gradient, so gradients of any order exist.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, window: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        windows = x.unfold(-2, window[0], stride[0]).unfold(-2, window[1], stride[1])
        return windows.permute(0, 1, 4, 5, 2, 3)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, ctx.stride = inputs
        ctx.shape = tuple(x.shape[-2:])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        return _Fold.apply(slope, ctx.shape, ctx.stride), None, None  # type: ignore[no-untyped-call]


class _Fold(torch.autograd.Function):
    """Sums windows back into images."""

    @staticmethod
    def forward(spread: Tensor, shape: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        size, channels, high, wide, rows, _ = spread.shape
        windows = spread.permute(0, 1, 4, 5, 2, 3)
        lines = torch.ops.aten.unfold_backward(windows, (size, channels, rows, shape[1], high), 3, wide, stride[1])
        folded: Tensor = torch.ops.aten.unfold_backward(lines, (size, channels, *shape), 2, high, stride[0])
        return folded

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        spread, _, ctx.stride = inputs
        ctx.window = tuple(spread.shape[2:4])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        return _Windows.apply(slope, ctx.window, ctx.stride), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: Any, spread: Tensor, shape: Any, stride: Any) -> tuple[Tensor, int]:
        merged = spread.movedim(in_dims[0], 0)
        folded: Tensor = _Fold.apply(merged.flatten(0, 1), shape, stride)  # type: ignore[no-untyped-call]
        return folded.unflatten(0, merged.shape[:2]), 0


def mapped(tensor: Tensor) -> bool:
    """Whether a tensor has a hidden dimension of `vmap`."""
    while _functorch.is_gradtrackingtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return bool(_functorch.is_batchedtensor(tensor))


def _seven(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """All arguments of a convolution, those left out too: x, weight, bias, stride, padding, dilation, groups."""
    x, weight, bias, stride, padding, dilation, groups = args + (None, None, None, 1, 0, 1, 1)[len(args) :]
    return x, weight, bias, _pair(stride), _pair(padding), _pair(dilation), groups


def _pair(value: Any) -> Any:
    if isinstance(value, str):
        return value
    return (value, value) if isinstance(value, int) else tuple(value)
