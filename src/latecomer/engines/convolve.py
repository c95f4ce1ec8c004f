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
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    out: Tensor = _Products.apply(x, weight, bias, stride)[0]  # type: ignore[no-untyped-call]
    return out


class _Products(torch.autograd.Function):
    """The convolution and its gradients. The windows are kept: the weights' gradient needs them too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, int]) -> tuple[Tensor, Tensor]:
        _, _, high, wide = weight.shape
        windows = x.unfold(-2, high, stride[0]).unfold(
            -2, wide, stride[1]
        )  # [size, channels, rows, columns, high, wide]
        rows, columns = windows.shape[2:4]
        flat = windows.permute(0, 1, 4, 5, 2, 3).reshape(len(x), -1, rows * columns)
        out = torch.baddbmm(bias[None, :, None], weight.flatten(1).expand(len(x), -1, -1), flat)
        return out.unflatten(-1, (rows, columns)), flat

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, _, ctx.stride = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(weight, output[1])
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        weight, flat = ctx.saved_tensors
        size, (rows, columns) = len(slope), slope.shape[-2:]
        slope = slope.flatten(2)  # [size, outputs, rows * columns]
        by_weight = torch.bmm(slope, flat.transpose(1, 2)).sum(0).view(weight.shape)  # a product an image, then a sum
        by_bias = slope.sum((0, 2))
        if not ctx.needs_input_grad[0]:
            return None, by_weight, by_bias, None
        spread = torch.bmm(weight.flatten(1).t().expand(size, -1, -1), slope)
        spread = spread.view(size, *weight.shape[1:], rows, columns)
        by_x: Tensor = _Fold.apply(spread, tuple(ctx.shape[-2:]), ctx.stride)  # type: ignore[no-untyped-call]
        return by_x, by_weight, by_bias, None


class _Fold(torch.autograd.Function):
    """Sums windows [size, channels, high, wide, rows, columns] back into images [size, channels, height, width]."""

    @staticmethod
    def forward(spread: Tensor, shape: tuple[int, int], stride: tuple[int, int]) -> Tensor:
        size, channels, high, wide, rows, _ = spread.shape
        windows = spread.permute(0, 1, 4, 5, 2, 3)
        lines = torch.ops.aten.unfold_backward(windows, (size, channels, rows, shape[1], high), 3, wide, stride[1])
        folded: Tensor = torch.ops.aten.unfold_backward(lines, (size, channels, *shape), 2, high, stride[0])
        return folded

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing is kept: gradients of gradients are not offered."""

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
