"""A step of Adam (Kingma and Ba, 2015), over all leaves of a server's weights.

The rule stands below the condition in `step`. In its place comes, where nobody maps, PyTorch's fused kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adam import adam

from . import by_torch
from .by_torch import branch
from .lengths import clip_factor, length
from .mapping import Number

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
        joined = torch.cat([leaf.reshape(-1) for leaf in leaves.values()])
        first, second = moments[0].clone(), moments[1].clone()
        branches, sizes, blocks = by_torch.blocks(leaves, gradient, clip)
        parts = list(joined.split(sizes))
        if shrink:
            for name, part in zip(branches, parts, strict=True):
                part.mul_(shrink[name])
        counts = [moments[2].clone() for _ in parts]
        adam(
            parts, blocks, list(first.split(sizes)), list(second.split(sizes)), [], counts, fused=True,
            lr=lr, beta1=betas[0], beta2=betas[1], eps=epsilon, weight_decay=0.0, amsgrad=False, maximize=False,
        )  # fmt: skip
        return joined, (first, second, counts[0])

    first, second, count = moments[0], moments[1], moments[2] + 1
    rate, correction = lr / (1 - betas[0] ** count), 1 - betas[1] ** count  # both means begin at zero, and are biased
    weights = [leaf.reshape(-1) for leaf in leaves.values()]
    gradients = [gradient[path].reshape(-1) for path in leaves]
    shrinks = [shrink[branch(path)] if shrink else 1.0 for path in leaves]
    shrunk = [leaf * factor for leaf, factor in zip(weights, shrinks, strict=True)] if shrink else weights
    direction = torch.cat(gradients) if gradients else torch.zeros(0)
    if clip:
        direction = direction * clip_factor(length(direction), clip)
    first = first.lerp(direction, 1 - betas[0])
    second = betas[1] * second + (1 - betas[1]) * direction.square()
    after = torch.cat(shrunk) if shrunk else torch.zeros(0)
    return after - rate * first / ((second / correction).sqrt() + epsilon), (first, second, count)
