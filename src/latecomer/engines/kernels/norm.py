"""GroupNorm, a sum with a short cut, and ReLU, of many networks: images [rows, size, channels, height, width].

A program holds some groups of one image, so everything is read once. What the way forward knew of a group, its mean and
its spread, the way back works out again: it needs the images anyway.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import images, rows_apart

NUMBERS, CHANNELS = 2**13, 32  # that one program holds at most, if a group is not larger


@triton.jit
def _place(
    pixels: tl.constexpr, groups: tl.constexpr, each: tl.constexpr, P: tl.constexpr, G: tl.constexpr, E: tl.constexpr
):
    """Which image; where the numbers of some of its groups are, [pixels, groups, channels of a group]; the channels."""
    banks: tl.constexpr = (groups + G - 1) // G  # of one image, side by side, because they share what is read at once
    image = (tl.program_id(0) // banks).to(tl.int64)
    pixel = tl.arange(0, P)[:, None, None]
    group, part = (tl.program_id(0) % banks * G + tl.arange(0, G))[None, :, None], tl.arange(0, E)[None, None, :]
    channel, known = group * each + part, (group < groups) & (part < each)
    at = image * (pixels * groups * each) + pixel * (groups * each) + channel
    return image, at, (pixel < pixels) & known, channel, known


@triton.jit
def _normal(x, at, good, pixels: tl.constexpr, each: tl.constexpr, epsilon):
    """The numbers, normalised, and by how much they were shrunk."""
    value = tl.load(x + at, mask=good, other=0.0)
    mean = tl.sum(tl.sum(value, 2, keep_dims=True), 0, keep_dims=True) / (pixels * each)
    value = tl.where(good, value - mean, 0.0)
    spread = tl.sum(tl.sum(value * value, 2, keep_dims=True), 0, keep_dims=True) / (pixels * each)
    shrunk = 1 / tl.sqrt(spread + epsilon)
    return value * shrunk, shrunk


@triton.jit
def _norm(
    x, weight, bias, other, out, weight_apart, bias_apart, size, epsilon, pixels: tl.constexpr, groups: tl.constexpr,
    each: tl.constexpr, added: tl.constexpr, relu: tl.constexpr, P: tl.constexpr, G: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    image, at, good, channel, known = _place(pixels, groups, each, P, G, E)
    net = image // size
    value, _ = _normal(x, at, good, pixels, each, epsilon)
    value = value * tl.load(weight + net * weight_apart + channel, mask=known, other=0.0)
    value += tl.load(bias + net * bias_apart + channel, mask=known, other=0.0)
    if added:
        value += tl.load(other + at, mask=good, other=0.0)
    if relu:
        value = tl.where(value <= 0, 0.0, value)  # so written, NaN stays NaN
    tl.store(out + at, value, mask=good)


@triton.jit
def _norm_back(
    slope, gate, x, weight, by_x, passed, sums, weight_apart, size, count, epsilon, pixels: tl.constexpr,
    groups: tl.constexpr, each: tl.constexpr, gated: tl.constexpr, kept: tl.constexpr, P: tl.constexpr,
    G: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The gradient of images; slopes that ReLU let through; an image's share in the gradients of weight and bias."""
    image, at, good, channel, known = _place(pixels, groups, each, P, G, E)
    error = tl.load(slope + at, mask=good, other=0.0)
    if gated:
        error = tl.where(tl.load(gate + at, mask=good, other=0.0) > 0, error, 0.0)
    if kept:
        tl.store(passed + at, error, mask=good)
    value, shrunk = _normal(x, at, good, pixels, each, epsilon)
    share = sums + image * (groups * each) + channel
    tl.store(share, tl.sum(error * value, 0, keep_dims=True), mask=known)
    tl.store(share + count, tl.sum(error, 0, keep_dims=True), mask=known)
    error *= tl.load(weight + image // size * weight_apart + channel, mask=known, other=0.0)
    level = tl.sum(tl.sum(error, 2, keep_dims=True), 0, keep_dims=True) / (pixels * each)
    tilt = tl.sum(tl.sum(error * value, 2, keep_dims=True), 0, keep_dims=True) / (pixels * each)
    tl.store(by_x + at, (error - level - value * tilt) * shrunk, mask=good)


def norm(
    x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None, groups: int, epsilon: float, relu: bool
) -> Tensor:
    seen = images(x, (0, 0))
    added = None if other is None else images(other, (0, 0))
    weight, bias, out = rows_apart(weight), rows_apart(bias), torch.empty_like(seen)
    grid, shape, blocks, warps = _plan(seen, groups)
    _norm[grid](
        seen, weight, bias, seen if added is None else added, out, weight.stride(0), bias.stride(0), x.shape[1],
        epsilon, *shape, added is not None, relu, *blocks, num_warps=warps,
    )  # fmt: skip
    return out.permute(0, 1, 4, 2, 3)


def norm_back(
    slope: Tensor, gate: Tensor | None, x: Tensor, weight: Tensor, groups: int, epsilon: float, needs_passed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the images; the slopes that passed the gate, or nothing; the gradients of weight and bias."""
    seen, error, weight = images(x, (0, 0)), images(slope, (0, 0)), rows_apart(weight)
    opened = None if gate is None else images(gate, (0, 0))
    by_x = torch.empty_like(seen)
    passed = torch.empty_like(seen) if needs_passed else by_x
    sums = x.new_empty(2, *x.shape[:3])
    grid, shape, blocks, warps = _plan(seen, groups)
    _norm_back[grid](
        error, error if opened is None else opened, seen, weight, by_x, passed, sums, weight.stride(0), x.shape[1],
        sums[0].numel(), epsilon, *shape, opened is not None, needs_passed, *blocks, num_warps=warps,
    )  # fmt: skip
    by_weight, by_bias = sums.sum(2)
    kept = passed.permute(0, 1, 4, 2, 3) if needs_passed else x.new_empty(len(x), 0)
    return by_x.permute(0, 1, 4, 2, 3), kept, by_weight, by_bias


def _plan(x: Tensor, groups: int) -> tuple[tuple[int], tuple[int, ...], tuple[int, ...], int]:
    """Programs; pixels, groups and channels of a group; how many of each a program holds; its warps."""
    nets, size, height, width, channels = x.shape
    pixels, each = height * width, channels // groups
    most, long = triton.next_power_of_2(pixels), triton.next_power_of_2(each)
    block = max(1, min(NUMBERS // (most * long), CHANNELS // long, triton.next_power_of_2(groups)))
    programs = nets * size * triton.cdiv(groups, block)
    return (programs,), (pixels, groups, each), (most, block, long), 8 if most * block * long > 4096 else 4
