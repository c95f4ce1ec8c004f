"""GroupNorm, and if asked for the sum with a residual and ReLU.

Where `vmap` maps over float32 images on a GPU, one kernel does all of it. A program holds some groups of one image, so
everything is read once. What the way forward knew of a group, its mean and its spread, the way back works out again: it
needs the images anyway. What only a gradient of a gradient needs is written in plain operations.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .mapping import HAS_TRITON, Rows, for_kernels, padded_size
from .triton_tools import channels_last, whole_rows

if HAS_TRITON:
    import triton
    import triton.language as tl

LARGEST_GROUP = 2**14  # numbers of a group that a program can hold
NUMBERS, CHANNELS = 2**13, 32  # that one program holds at most, if a group is not larger


class Norm(nn.GroupNorm):
    """GroupNorm, the sum with a residual if there is one, and ReLU if asked for, as one layer."""

    def __init__(self, groups: int, channels: int, relu: bool = False) -> None:
        super().__init__(groups, channels)
        self.relu = relu

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return norm(x, self.weight, self.bias, residual, self.num_groups, self.eps, self.relu)


def norm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, groups: int, epsilon: float, relu: bool
) -> Tensor:
    """GroupNorm; then a residual is added, and ReLU follows, each if asked for."""
    if for_kernels(x) and _takes(x, groups):
        inputs = (None if value is None else value[None] for value in (x, weight, bias, residual))
        found: Tensor = _Norm.apply(*inputs, groups, epsilon, relu).squeeze(0)  # type: ignore[no-untyped-call]
        return found
    x = x.contiguous()  # with channels last, it cannot be mapped on a CPU
    out = F.group_norm(x, groups, weight, bias, epsilon)
    out = out if residual is None else out + residual
    return F.relu(out) if relu else out


def _takes(x: Tensor, groups: int) -> bool:
    """Whether the kernels are made for these images."""
    if x.ndim != 4 or x.shape[1] % 4:
        return False
    return padded_size((x.shape[-2] * x.shape[-1], x.shape[1] // groups)) <= LARGEST_GROUP


def mend_group_norms(model: nn.Module) -> None:
    """Lets PyTorch's own GroupNorms, in other people's models, be mapped on a CPU: see `norm`."""
    for layer in model.modules():
        if isinstance(layer, nn.GroupNorm) and not isinstance(layer, Norm):
            layer.register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(),))


class _Norm(Rows):
    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return norm_rows(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, _, ctx.groups, ctx.epsilon, relu = inputs
        ctx.save_for_backward(x, weight, output if relu else None)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate = ctx.saved_tensors
        gate = None if gate is None else gate.detach()  # it only says where a gradient passes
        needs_passed = gate is not None and ctx.needs_input_grad[3]
        found = _NormGradients.apply(gradient, gate, x, weight, ctx.groups, ctx.epsilon, needs_passed)  # type: ignore[no-untyped-call]
        by_x, passed, *rest = found
        by_residual = passed if needs_passed else gradient
        return by_x, *rest, by_residual if ctx.needs_input_grad[3] else None, None, None, None


class _NormGradients(Rows):
    """Gradients of images; gradients that passed the gate (nothing, unless needed); gradients of weight and bias."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        return norm_gradient_rows(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.groups, ctx.epsilon, ctx.needs_passed = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor | None, ...]:
        gradient, gate, x, weight = ctx.saved_tensors

        def plain(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
            return norm_gradients(gradient, gate, x, weight, ctx.groups, ctx.epsilon, ctx.needs_passed)

        pull: Any = torch.func.vjp(plain, gradient, x, weight)[1]
        by_gradient, by_x, by_weight = pull(errors)
        return by_gradient, None, by_x, by_weight, None, None, None


def norm_gradients(
    gradient: Tensor, gate: Tensor | None, x: Tensor, weight: Tensor, groups: int, epsilon: float, needs_passed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `norm_gradient_rows` computes, in plain operations."""
    passed = gradient if gate is None else gradient * (gate > 0)
    grouped = x.unflatten(2, (groups, -1))
    centred = grouped - grouped.mean((3, 4, 5), keepdim=True)
    shrunk = (centred.square().mean((3, 4, 5), keepdim=True) + epsilon).rsqrt()
    value = centred * shrunk
    error = (passed * weight[:, None, :, None, None]).unflatten(2, (groups, -1))
    level, tilt = error.mean((3, 4, 5), keepdim=True), (error * value).mean((3, 4, 5), keepdim=True)
    by_x = ((error - level - value * tilt) * shrunk).flatten(2, 3)
    kept = passed if needs_passed else passed.flatten(1)[:, :0]
    return by_x, kept, (passed * value.flatten(2, 3)).sum((1, 3, 4)), passed.sum((1, 3, 4))


# kernels, for images [rows, size, channels, height, width]


def norm_rows(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, groups: int, epsilon: float, relu: bool
) -> Tensor:
    seen = channels_last(x)
    added = None if residual is None else channels_last(residual)
    weight, bias, out = whole_rows(weight), whole_rows(bias), torch.empty_like(seen)
    grid, shape, blocks, warps = _plan(seen, groups)
    _forward_kernel[grid](
        seen, weight, bias, seen if added is None else added, out, weight.stride(0), bias.stride(0), x.shape[1],
        epsilon, *shape, added is not None, relu, *blocks, num_warps=warps,
    )  # fmt: skip
    return out.permute(0, 1, 4, 2, 3)


def norm_gradient_rows(
    gradient: Tensor, gate: Tensor | None, x: Tensor, weight: Tensor, groups: int, epsilon: float, needs_passed: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the images; those that passed the gate, or nothing; the gradients of weight and bias."""
    seen, error, weight = channels_last(x), channels_last(gradient), whole_rows(weight)
    opened = None if gate is None else channels_last(gate)
    by_x = torch.empty_like(seen)
    passed = torch.empty_like(seen) if needs_passed else by_x
    sums = x.new_empty(2, *x.shape[:3])
    grid, shape, blocks, warps = _plan(seen, groups)
    _backward_kernel[grid](
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


if HAS_TRITON:

    @triton.jit
    def _place(
        pixels: tl.constexpr,
        groups: tl.constexpr,
        each: tl.constexpr,
        P: tl.constexpr,
        G: tl.constexpr,
        E: tl.constexpr,
    ):
        """Which image; where the numbers of some of its groups are, [pixels, groups, channels of one]; the channels."""
        banks: tl.constexpr = (
            groups + G - 1
        ) // G  # of one image, side by side, because they share what is read at once
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
    def _forward_kernel(
        x, weight, bias, residual, out, weight_stride, bias_stride, size, epsilon, pixels: tl.constexpr,
        groups: tl.constexpr, each: tl.constexpr, added: tl.constexpr, relu: tl.constexpr,
        P: tl.constexpr, G: tl.constexpr, E: tl.constexpr,
    ):  # fmt: skip
        image, at, good, channel, known = _place(pixels, groups, each, P, G, E)
        net = image // size
        value, _ = _normal(x, at, good, pixels, each, epsilon)
        value = value * tl.load(weight + net * weight_stride + channel, mask=known, other=0.0)
        value += tl.load(bias + net * bias_stride + channel, mask=known, other=0.0)
        if added:
            value += tl.load(residual + at, mask=good, other=0.0)
        if relu:
            value = tl.where(value <= 0, 0.0, value)  # so written, NaN stays NaN
        tl.store(out + at, value, mask=good)

    @triton.jit
    def _backward_kernel(
        gradient, gate, x, weight, by_x, passed, sums, weight_stride, size, count, epsilon, pixels: tl.constexpr,
        groups: tl.constexpr, each: tl.constexpr, gated: tl.constexpr, kept: tl.constexpr, P: tl.constexpr,
        G: tl.constexpr, E: tl.constexpr,
    ):  # fmt: skip
        """The gradient of images; what ReLU let through; an image's share in the gradients of weight and bias."""
        image, at, good, channel, known = _place(pixels, groups, each, P, G, E)
        error = tl.load(gradient + at, mask=good, other=0.0)
        if gated:
            error = tl.where(tl.load(gate + at, mask=good, other=0.0) > 0, error, 0.0)
        if kept:
            tl.store(passed + at, error, mask=good)
        value, shrunk = _normal(x, at, good, pixels, each, epsilon)
        share = sums + image * (groups * each) + channel
        tl.store(share, tl.sum(error * value, 0, keep_dims=True), mask=known)
        tl.store(share + count, tl.sum(error, 0, keep_dims=True), mask=known)
        error *= tl.load(weight + image // size * weight_stride + channel, mask=known, other=0.0)
        level = tl.sum(tl.sum(error, 2, keep_dims=True), 0, keep_dims=True) / (pixels * each)
        tilt = tl.sum(tl.sum(error * value, 2, keep_dims=True), 0, keep_dims=True) / (pixels * each)
        tl.store(by_x + at, (error - level - value * tilt) * shrunk, mask=good)
