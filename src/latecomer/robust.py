"""Means of replies that a few clients cannot carry away.

Every client counts one, because how many examples it claims to have could be a lie. Nothing here decides on the host
by a value, so that rounds may be replayed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .ops.sums import weighted_sum
from .plan import Average

STEPS = 16  # of Weiszfeld's iteration; its smoothing is halved at each


def average(rows: Tensor, counted: Tensor, kind: Average, trim: float) -> Tensor:
    """One reply in the place of many: [columns] from rows [clients, columns], of whoever is counted [clients].

    `trim` is the share of the clients that may be hostile: so many are cut off at each end by "trimmed", and not
    believed by "krum". The median and the geometric median need not know it: they hold up to one half. Zero where
    nobody counts.
    """
    rows = rows if rows.is_floating_point() else rows.float()
    if not len(rows):
        return rows.new_zeros(rows.shape[1])
    if kind == "mean":
        return _among(counted, rows)
    number = counted.sum()
    hostile = (number.double() * trim - 1e-9).ceil().long()  # 0.07 * 100 is a little more than 7
    if kind == "krum":
        return _krum(rows, counted, number - hostile - 2)
    half = (number - 1).clamp(min=0) // 2
    if kind == "trimmed":
        return _trimmed(rows, counted, torch.minimum(hostile, half))
    median = _trimmed(rows, counted, half)
    return median if kind == "median" else _geometric(rows, counted, median, half)


def _among(which: Tensor, rows: Tensor) -> Tensor:
    """The plain mean of these rows."""
    return weighted_sum(which, rows) / which.sum().clamp(min=1)


def _trimmed(rows: Tensor, counted: Tensor, cut: Tensor) -> Tensor:
    """The mean of every coordinate without its `cut` smallest and largest numbers."""
    ordered = torch.where(counted[:, None], rows, torch.inf).sort(0).values  # whoever does not count comes last
    rank = torch.arange(len(rows), device=rows.device)
    return _among((rank >= cut) & (rank < counted.sum() - cut), ordered)


def _krum(rows: Tensor, counted: Tensor, near: Tensor) -> Tensor:
    """The row with the smallest sum of squared distances to its `near` nearest, but at least to one (Blanchard et al.
    2017). Of several that are equally good, as two clients always are, the mean.
    """
    distance = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")  # as good for rows far from zero
    rank = torch.arange(len(rows), device=rows.device)
    others = counted & (rank[:, None] != rank)
    nearest = torch.where(others, distance, torch.inf).sort(1).values
    score = torch.where(rank < near.clamp(min=1), nearest.square(), 0).sum(1)
    score = torch.where(counted, score, torch.inf)
    return _among(counted & (score == score.min()), rows)


def _geometric(rows: Tensor, counted: Tensor, median: Tensor, half: Tensor) -> Tensor:
    """The point whose distances to the rows have the smallest sum, by Weiszfeld's smoothed iteration (Pillutla et al.
    2022), from the coordinate median, because from the mean the way is as long as the largest row.

    No distance counts as less than a floor. It begins at their median and falls, so that a row on which the iteration
    begins does not hold it.
    """
    limits, centre = torch.finfo(rows.dtype), median
    scale = _trimmed(_distances(rows, median)[:, None], counted, half)
    for step in range(STEPS):
        floor = (scale / 2**step).clamp(limits.tiny, limits.max)
        weight = counted * (floor / torch.maximum(_distances(rows, centre), floor))  # at most one: nothing overflows
        centre = weighted_sum(weight / weight.sum().clamp(min=limits.tiny), rows)
    return centre


def _distances(rows: Tensor, centre: Tensor) -> Tensor:
    distances: Tensor = torch.linalg.vector_norm(rows - centre, dim=1)
    return distances
