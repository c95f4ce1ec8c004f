"""Taking examples: images of bytes, as numbers that a model sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .mapping import HAS_TRITON, mapped, on_gpu
from .triton_tools import pitch, whole_rows


def take(x: Tensor, rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Images of bytes, [examples, channels, height, width], at these rows; scaled and shifted, by channel."""
    if x.dtype == torch.uint8 and scale.dtype == torch.float32 and mapped(rows) and on_gpu(rows):
        taken: Tensor = _Take.apply(x, rows, scale, shift)  # type: ignore[no-untyped-call]
        return taken
    return x[rows].to(scale.dtype) * scale + shift


class _Take(torch.autograd.Function):
    """Of bytes, so nothing is differentiated. Only which examples are taken differs from client to client."""

    @staticmethod
    def forward(x: Tensor, rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return take_rows(x, rows, scale, shift)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, rows: Tensor, *rest: Any) -> tuple[Tensor, int]:
        out: Tensor = _Take.apply(x, rows.movedim(in_dims[1] or 0, 0), *rest)  # type: ignore[no-untyped-call]
        return out, 0


if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit(do_not_specialize=["rows_stride", "size"])
    def _take_kernel(
        x, rows, scale, shift, out, rows_stride, size, channels: tl.constexpr, plane: tl.constexpr,
        PITCH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        example = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        channel, good = at % PITCH, at < plane * PITCH
        real = good & (channel < channels)
        row = tl.load(rows + example // size * rows_stride + example % size)
        place = row * (plane * channels) + channel * plane + at // PITCH
        pixel = tl.load(x + place, mask=real, other=0).to(tl.float32)
        pixel = pixel * tl.load(scale + channel, mask=real, other=0.0) + tl.load(shift + channel, mask=real, other=0.0)
        tl.store(out + example * (plane * PITCH) + at, pixel, mask=good)


def take_rows(x: Tensor, rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Without a copy of the bytes, and laid out as convolutions want it: a pixel's channels side by side, padded."""
    _, channels, height, width = x.shape
    pixel, block = pitch(channels), 1024
    out = torch.empty(*rows.shape, height, width, pixel, dtype=scale.dtype, device=x.device)
    if rows.numel():  # a split may be empty, and no grid is
        flat = whole_rows(rows.reshape(-1, rows.shape[-1]))
        _take_kernel[(rows.numel(), triton.cdiv(height * width * pixel, block))](
            x, flat, scale, shift, out, flat.stride(0), flat.shape[1], channels, height * width, pixel, block
        )
    return out[..., :channels].movedim(-1, -3)
