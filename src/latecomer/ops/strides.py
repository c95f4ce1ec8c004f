"""How kernels want arrays to lie in memory."""

from __future__ import annotations

from torch import Tensor


def whole_rows(rows: Tensor) -> Tensor:
    """Rows may be strided, as slices of longer rows are, but each of them must be contiguous."""
    return rows if rows[0].is_contiguous() else rows.contiguous()


def pitch(channels: int) -> int:
    """From pixel to pixel of images that have their channels last: padded to a multiple of four, so that four numbers
    are read at a time. Up to three channels are not padded: fewer numbers are worth more.
    """
    return channels if channels <= 3 else -(-channels // 4) * 4
