"""A step of Adam (Kingma and Ba, 2015), over all leaves of a server's weights.

The rule stands below the conditions in `step`. In its place come, where nobody maps, on a CPU PyTorch's fused kernel,
and on a GPU a kernel that reads weights and gradient from where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from . import by_torch
from .by_torch import branch
from .joins import MOST_PARTS, constants
from .lengths import clip_factor, norm
from .mapping import HAS_TRITON, Number, for_server_kernels

Moments = tuple[Tensor, Tensor, Tensor]
"""The running means of the gradient and of its square, end to end, and how many steps there were."""


def step(
    leaves: Mapping[str, Tensor],
    gradient: Mapping[str, Tensor],
    moments: Moments,
    lr: Number,
    betas: tuple[float, float],
    epsilon: float,
    clip: float,
    shrink: Mapping[str, float] | None,
) -> tuple[Tensor, Moments]:
    """Leaves come by their paths, and go end to end; `shrink` says what to multiply the weights of every branch (the
    first word of a path) with before the step.
    """
    if by_torch.fits(leaves):
        return _by_torch(leaves, gradient, moments, lr, betas, epsilon, clip, shrink)
    first, second, count = moments[0], moments[1], moments[2] + 1
    rate, correction = lr / (1 - betas[0] ** count), 1 - betas[1] ** count  # both means begin at zero, and are biased
    weights = [leaf.reshape(-1) for leaf in leaves.values()]
    gradients = [gradient[path].reshape(-1) for path in leaves]
    shrinks = [shrink[branch(path)] if shrink else 1.0 for path in leaves]
    if for_server_kernels(first):
        factor = clip_factor(norm(*gradients), clip) if clip else torch.ones_like(rate)
        scalars = factor, rate, correction
        after, first, second = step_of_parts(weights, gradients, shrinks, first, second, scalars, betas, epsilon)
        return after, (first, second, count)

    shrunk = [leaf * factor for leaf, factor in zip(weights, shrinks, strict=True)] if shrink else weights
    direction = torch.cat(gradients) if gradients else torch.zeros(0)
    if clip:
        direction = direction * clip_factor(norm(direction), clip)
    first = first.lerp(direction, 1 - betas[0])
    second = betas[1] * second + (1 - betas[1]) * direction.square()
    after = torch.cat(shrunk) if shrunk else torch.zeros(0)
    return after - rate * first / ((second / correction).sqrt() + epsilon), (first, second, count)


def _by_torch(
    leaves: Mapping[str, Tensor],
    gradient: Mapping[str, Tensor],
    moments: Moments,
    lr: Any,
    betas: tuple[float, float],
    epsilon: float,
    clip: float,
    shrink: Mapping[str, float] | None,
) -> tuple[Tensor, Moments]:
    weights = torch.cat([leaf.reshape(-1) for leaf in leaves.values()])
    first, second = moments[0].clone(), moments[1].clone()
    branches, sizes, gradients = by_torch.blocks(leaves, gradient, clip)
    parts = list(weights.split(sizes))
    if shrink:
        for name, part in zip(branches, parts, strict=True):
            part.mul_(shrink[name])
    counts = [moments[2].clone() for _ in parts]
    adam(
        parts, gradients, list(first.split(sizes)), list(second.split(sizes)), [], counts, fused=True, lr=lr,
        beta1=betas[0], beta2=betas[1], eps=epsilon, weight_decay=0.0, amsgrad=False, maximize=False,
    )  # fmt: skip
    return weights, (first, second, counts[0])


if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def _step_kernel(
        weights, gradients, shrinks, first, second, factor, rate, correction, out, out_first, out_second, starts,
        beta1: tl.constexpr, beta2: tl.constexpr, epsilon: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        begin = tl.program_id(0).to(tl.int64) * BLOCK
        at = begin + tl.arange(0, BLOCK)
        weight, direction = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for k in tl.static_range(len(weights)):
            if (begin < starts[k + 1]) & (begin + BLOCK > starts[k]):
                here = (at >= starts[k]) & (at < starts[k + 1])
                weight += tl.load(weights[k] + at - starts[k], mask=here, other=0.0) * shrinks[k]
                direction += tl.load(gradients[k] + at - starts[k], mask=here, other=0.0)
        good = at < starts[len(weights)]
        direction *= tl.load(factor)
        mean = tl.load(first + at, mask=good, other=0.0)
        mean += (1 - beta1) * (direction - mean)
        square = beta2 * tl.load(second + at, mask=good, other=0.0) + (1 - beta2) * direction * direction
        weight -= tl.load(rate) * mean / (tl.sqrt(square / tl.load(correction)) + epsilon)
        tl.store(out + at, weight, mask=good)
        tl.store(out_first + at, mean, mask=good)
        tl.store(out_second + at, square, mask=good)


def step_of_parts(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    shrinks: Sequence[float],
    first: Tensor,
    second: Tensor,
    scalars: tuple[Tensor, Tensor, Tensor],
    betas: tuple[float, float],
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Over one long vector that comes in parts. The scalars are what to clip by, the rate, and the correction."""
    weights, gradients = ([part.contiguous() for part in parts] for parts in (weights, gradients))
    if len(weights) > MOST_PARTS:
        shrunk = [part * factor for part, factor in zip(weights, shrinks, strict=True)]
        weights, gradients, shrinks = [torch.cat(shrunk)], [torch.cat(gradients)], [1.0]
    starts = tuple(accumulate((len(part) for part in weights), initial=0))
    out, out_first, out_second = (torch.empty_like(first) for _ in range(3))
    block = 1024
    _step_kernel[(triton.cdiv(starts[-1], block),)](
        tuple(weights), tuple(gradients), tuple(shrinks), first, second, *scalars, out, out_first, out_second,
        constants(starts), *betas, epsilon, block,
    )  # fmt: skip
    return out, out_first, out_second
