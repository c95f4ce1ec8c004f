"""Convolutions of many small networks as batched matrix products, for where the kernels are not (reroute.py chooses).

The windows of every image are laid out once and multiplied in one batched product per pass, per image, so that the
weights' gradient is spread over the whole GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


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
