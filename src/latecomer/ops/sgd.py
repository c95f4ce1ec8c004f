"""A step of stochastic gradient descent: clip the gradient, add weight decay, then momentum, as torch's SGD does.

`step` is a client's, for weights that lie end to end in one vector; `step_of_leaves` is a server's. The rule stands
below the conditions in `step`. In its place come
- on a CPU, for one client, the same part by part, so that a gradient is neither joined nor scaled first;
- on a CPU, for a server, PyTorch's fused kernel;
- on a GPU, where clients are mapped, a kernel that reads a gradient's parts from where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from . import by_torch
from .lengths import BLOCK, clip_factor, length, sums_of_squares
from .mapping import HAS_TRITON, Final, Number, differentiated, for_kernels, untransformed
from .parts import end_to_end
from .triton_tools import whole_rows


def used(number: Number) -> bool:
    """Whether a setting whose 0 means "not at all" is in use. One number a row is, even if some of them are 0."""
    return isinstance(number, Tensor) or bool(number)


def at_rest(weights: Tensor, momentum: Number) -> Tensor:
    """The velocity to begin with; without momentum there is none."""
    return torch.zeros_like(weights if used(momentum) else weights[:0])


def step(
    weights: Tensor,
    gradient: Sequence[Tensor],
    velocity: Tensor,
    moving: Tensor,
    lr: Number,
    momentum: Number,
    decay: Number,
    clip: Number,
) -> tuple[Tensor, Tensor]:
    """One step along a gradient, which comes in parts; from weights and velocity to the next, if it is `moving`."""
    numbers = not any(isinstance(rate, Tensor) for rate in (lr, momentum, decay, clip))
    if numbers and weights.device.type == "cpu" and untransformed():
        rates = float(lr), float(momentum), float(decay), float(clip)
        return _part_by_part(weights, gradient, velocity, *rates) if moving else (weights, velocity)
    tensors = weights, velocity, moving, *gradient
    # at first all may begin from the same weights, and only gradients differ
    if numbers and for_kernels(gradient[0]) and not any(differentiated(tensor) for tensor in tensors):
        rows = [tensor[None] for tensor in tensors]
        after = _Step.apply(*rows[:3], lr, momentum, decay, clip, *rows[3:])  # type: ignore[no-untyped-call]
        return after[0].squeeze(0), after[1].squeeze(0) if momentum else velocity

    moves = moving[None].to(weights.dtype)
    direction = gradient[0] if len(gradient) == 1 else torch.cat(list(gradient))
    factor = clip_factor(length(direction), clip) if used(clip) else None
    if used(momentum):
        # factors of one number each let be what does not move; choosing by `where` is one more pass over the weights
        kept = velocity * (1 - moves * (1 - _like(momentum, moves)))
        velocity = torch.addcmul(kept, direction, moves if factor is None else moves * factor)
        if used(decay):
            velocity = torch.addcmul(velocity, weights, moves * _like(decay, moves))
        direction = velocity
    else:
        direction = direction if factor is None else direction * factor
        if isinstance(decay, Tensor):
            direction = torch.addcmul(direction, weights, _like(decay, direction)[None])
        elif decay:
            direction = torch.add(direction, weights, alpha=decay)
    if isinstance(lr, Tensor):
        return torch.addcmul(weights, direction, moves * -_like(lr, moves)), velocity
    return torch.addcmul(weights, direction, moves, value=-lr), velocity


def step_of_leaves(
    leaves: Mapping[str, Tensor],
    gradient: Mapping[str, Tensor],
    velocity: Tensor | None,
    moving: Tensor | None,
    lr: Number,
    momentum: Number,
    decay: Number,
    clip: Number,
) -> tuple[Tensor, Tensor]:
    """The same for weights that come as leaves by their paths, as their gradient does; without `moving` they move.

    Weights and velocity come back end to end. A velocity that is None is at rest.
    """
    weights = torch.cat([leaf.reshape(-1) for leaf in leaves.values()]) if leaves else torch.zeros(0)
    velocity = at_rest(weights, momentum) if velocity is None else velocity
    if moving is None and by_torch.fits(leaves):
        return _by_torch(weights, leaves, gradient, velocity.clone(), lr, momentum, decay, clip)
    parts = [gradient[path].reshape(-1) for path in leaves]
    direction = torch.cat(parts) if parts else torch.zeros(0)
    moving = torch.ones((), dtype=torch.bool, device=weights.device) if moving is None else moving
    return step(weights, [direction], velocity, moving, lr, momentum, decay, clip)


def _like(number: Any, array: Tensor) -> Any:
    """A setting, in the precision of an array."""
    return number.to(array.dtype) if isinstance(number, Tensor) else number


def _part_by_part(
    weights: Tensor, gradient: Sequence[Tensor], velocity: Tensor, lr: float, momentum: float, decay: float, clip: float
) -> tuple[Tensor, Tensor]:
    factor, sizes = float(clip_factor(length(*gradient), clip)) if clip else 1.0, [len(part) for part in gradient]
    out, faster = torch.empty_like(weights), torch.empty_like(velocity)
    parts = zip(weights.split(sizes), gradient, out.split(sizes), strict=True)
    if not momentum:
        for weight, direction, after in parts:
            torch.add(weight, direction, alpha=-lr * factor, out=after)
            if decay:
                after.add_(weight, alpha=-lr * decay)
        return out, velocity
    for (weight, direction, after), old, new in zip(parts, velocity.split(sizes), faster.split(sizes), strict=True):
        torch.mul(old, momentum, out=new).add_(direction, alpha=factor)
        if decay:
            new.add_(weight, alpha=decay)
        torch.add(weight, new, alpha=-lr, out=after)
    return out, faster


def _by_torch(
    weights: Tensor,
    leaves: Mapping[str, Tensor],
    gradient: Mapping[str, Tensor],
    velocity: Tensor,
    lr: Any,
    momentum: Any,
    decay: Any,
    clip: Number,
) -> tuple[Tensor, Tensor]:
    """Changes weights and velocity in place."""
    _, sizes, gradients = by_torch.blocks(leaves, gradient, clip)
    sgd(
        list(weights.split(sizes)), gradients, list(velocity.split(sizes)) if momentum else [None] * len(sizes),
        fused=True, lr=lr, momentum=momentum, weight_decay=decay, dampening=0.0, nesterov=False, maximize=False,
    )  # fmt: skip
    return weights, velocity


class _Step(Final):
    """Who differentiates through a step takes the plain operations."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        return step_of_rows(*inputs)


if HAS_TRITON:
    import triton
    import triton.language as tl

    from .parts import load_joined

    @triton.jit
    def _step_kernel(
        gradient, strides, weights, velocity, moving, squares, out, out_velocity, lr, momentum, decay, clip,
        weights_stride, starts, count: tl.constexpr, blocks: tl.constexpr, clips: tl.constexpr, runs: tl.constexpr,
        BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    ):  # fmt: skip
        row = tl.program_id(1).to(tl.int64)
        first = tl.program_id(0) * BLOCK
        at = first + tl.arange(0, BLOCK)
        good = at < count
        weight = tl.load(weights + row * weights_stride + at, mask=good, other=0.0)
        change = load_joined(gradient, strides, row, first, starts, BLOCK)
        at += row * count
        if clips:
            block = tl.arange(0, BLOCKS)
            length = tl.sqrt(tl.sum(tl.load(squares + row * blocks + block, mask=block < blocks, other=0.0), 0))
            factor = clip / (length + 1e-6)
            change *= tl.where(factor > 1.0, 1.0, factor)  # so written, NaN stays NaN
        change += decay * weight
        go = tl.load(moving + row) != 0
        if runs:
            speed = tl.load(velocity + at, mask=good, other=0.0)
            change += momentum * speed
            tl.store(out_velocity + at, tl.where(go, change, speed), mask=good)
        tl.store(out + at, tl.where(go, weight - lr * change, weight), mask=good)


def step_of_rows(
    weights: Tensor,
    velocity: Tensor,
    moving: Tensor,
    lr: float,
    momentum: float,
    decay: float,
    clip: float,
    *gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """A step of weights [rows, count]; rows that are not moving stay. Without momentum no velocity comes back."""
    weights, velocity = whole_rows(weights), velocity.contiguous()
    rows, count = weights.shape
    ends = end_to_end(gradient)
    blocks = triton.cdiv(count, BLOCK)
    squares = sums_of_squares(ends) if clip else weights.new_empty(rows, blocks)
    out, after = weights.new_empty(rows, count), torch.empty_like(velocity if momentum else velocity[:, :0])
    _step_kernel[(blocks, rows)](
        ends.parts, ends.strides, weights, velocity, moving.contiguous(), squares, out, after, lr, momentum, decay,
        clip, weights.stride(0), ends.starts, count, blocks, clip > 0, momentum > 0, BLOCK,
        triton.next_power_of_2(blocks),
    )  # fmt: skip
    return out, after
