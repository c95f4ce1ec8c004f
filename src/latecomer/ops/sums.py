"""Rows of replies: their weighted sum, those that are chosen, and their extremes."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_sum(weight: Tensor, rows: Tensor) -> Tensor:
    """The sum of all rows, each times its weight; what weighs nothing may be nonsense. Counts become fractions."""
    rows = rows if rows.is_floating_point() else rows.float()
    weight = weight.to(rows.dtype)
    return (weight[None] @ chosen(weight != 0, rows))[0]


def chosen(which: Tensor, rows: Tensor) -> Tensor:
    """Rows, with zeros in the place of those that are not chosen. On a CPU it costs nothing to see that all are."""
    if which.device.type == "cpu" and bool(which.all()):
        return rows
    return torch.where(which[:, None], rows, rows.new_zeros(()))


def extremes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest number of every row; NaN is both."""
    if rows.is_cuda:
        low, high = rows.aminmax(dim=1)  # one look at every number
        return low, high
    return rows.amin(1), rows.amax(1)  # on a CPU, seven times as fast as both in one
