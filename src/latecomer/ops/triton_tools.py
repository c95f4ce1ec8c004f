"""What kernels share: how much one program computes, how exactly, and how rows and images must lie in memory.

Rows may have any stride, as slices of a longer row do, but each must lie in one piece. Of images, a pixel's channels
lie side by side, padded to a multiple of four: then a line of a window lies in one piece and is read four numbers at a
time. Up to three channels are not padded: fewer numbers are worth more.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .mapping import HAS_TRITON, Pair

if HAS_TRITON:
    import triton
    import triton.language as tl

BLOCK = 1024  # numbers that one program lays out


class Tile(NamedTuple):
    """Places (or squares of them), terms of a sum at a time, filters; by how many warps, and how many loads ahead."""

    places: int
    terms: int
    filters: int
    warps: int
    stages: int

    def on(self, device: torch.device, corners: int = 1) -> Tile:
        """The same, with as many stages as fit into the GPU's shared memory; a place has so many `corners`."""
        each = 4 * self.terms * (self.places + corners * self.filters)
        return self._replace(stages=max(1, min(self.stages, _shared_memory(device) // each)))


@lru_cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that one program may have."""
    if device.type != "cuda":  # Triton's interpreter
        return 2**18
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 2**16))


def rounded(count: int, most: int) -> int:
    """A power of two that holds so many, if that is not too much. Matrix units take at least sixteen of everything."""
    return int(min(most, max(16, triton.next_power_of_2(count))))


def precision() -> Any:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def whole_rows(rows: Tensor) -> Tensor:
    """The same rows, each in one piece."""
    return rows if rows[0].is_contiguous() else rows.contiguous()


def pitch(channels: int) -> int:
    """The stride of pixels."""
    return channels if channels <= 3 else int(triton.cdiv(channels, 4) * 4)


def channels_last(x: Tensor, padding: Pair = (0, 0)) -> Tensor:
    """Images [rows, size, channels, height, width] as kernels want them, [rows, size, height, width, pitch], padded."""
    nets, size, channels, height, width = x.shape
    pixel = pitch(channels)
    wanted = (size * height * width * pixel, height * width * pixel, 1, width * pixel, pixel)
    if padding == (0, 0) and x.stride() == wanted and x.data_ptr() % 16 == 0:
        # the room between channels and pitch may hold anything finite: filters have zeros there
        return x.as_strided((nets, size, height, width, pixel), (wanted[0], wanted[1], wanted[3], wanted[4], 1))
    tall, broad = height + 2 * padding[0], width + 2 * padding[1]
    out = x.new_empty(nets, size, tall, broad, pixel)
    _lay_images_kernel[image_grid(out)](
        x, out, *x.stride(), size, channels, height, width, *padding, tall, broad, pixel, BLOCK
    )
    return out


def image_grid(images: Tensor) -> Pair:
    """Images, and programs for one of them; in this order, because there can be many images."""
    nets, size = images.shape[:2]
    return nets * size, triton.cdiv(images[0, 0].numel(), BLOCK)


if HAS_TRITON:

    @triton.jit
    def _lay_images_kernel(
        x, out, net_stride, image_stride, channel_stride, y_stride, x_stride, size, channels: tl.constexpr,
        height: tl.constexpr, width: tl.constexpr, up: tl.constexpr, left: tl.constexpr,
        tall: tl.constexpr, broad: tl.constexpr, PITCH: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """Images, framed by `up` and `left` zeros."""
        image = tl.program_id(0).to(tl.int64)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        channel, row, column = at % PITCH, at // PITCH // broad - up, at // PITCH % broad - left
        good = (channel < channels) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        x += image // size * net_stride + image % size * image_stride
        value = tl.load(x + channel * channel_stride + row * y_stride + column * x_stride, mask=good, other=0.0)
        tl.store(out + image * (tall * broad * PITCH) + at, value, mask=at < tall * broad * PITCH)
