"""Turned images: which pixels each pixel of a turned image is made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def turns(shape: tuple[int, ...], degrees: Sequence[int]) -> tuple[Tensor, Tensor]:
    """For every angle, which pixels (and with what weight) make up each pixel of the turned image.

    Bilinear: four taps a pixel, or one where every angle is a multiple of 90 degrees. Returns indices and weights,
    both [angles, taps, height * width]; what lies outside the image weighs nothing. Positive angles turn against the
    clock, as `torch.rot90` does.
    """
    height, width = shape[-2:]
    sides = (torch.arange(side, dtype=torch.float64) for side in (height, width))
    row, column = torch.meshgrid(*sides, indexing="ij")
    row, column = row - (height - 1) / 2, column - (width - 1) / 2
    index, weight = [], []
    for angle in degrees:
        sine, cosine = round(math.sin(math.radians(angle)), 12), round(math.cos(math.radians(angle)), 12)
        source_row = cosine * row + sine * column + (height - 1) / 2
        source_column = -sine * row + cosine * column + (width - 1) / 2
        top, left = source_row.floor(), source_column.floor()
        down, right = source_row - top, source_column - left
        corners = []
        for dr, wr in ((0, 1 - down), (1, down)):
            for dc, wc in ((0, 1 - right), (1, right)):
                r, c = top + dr, left + dc
                inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
                place = r.clamp(0, height - 1) * width + c.clamp(0, width - 1)
                corners.append((place.long().flatten(), (wr * wc * inside).float().flatten()))
        index.append(torch.stack([place for place, _ in corners]))
        weight.append(torch.stack([share for _, share in corners]))
    taps, shares = torch.stack(index), torch.stack(weight)
    if all(angle % 90 == 0 for angle in degrees) and height == width:
        return taps[:, :1], shares[:, :1]
    return taps, shares
