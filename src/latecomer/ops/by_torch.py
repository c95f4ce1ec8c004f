"""What PyTorch's own fused optimisers need, which take a server's step: used by sgd.py and adam.py alone.

They work in place, so on copies, and what is mapped cannot be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

import torch
from torch import Tensor

from .lengths import clip_factor, length
from .mapping import Number, transformed

SMALL = 2**15  # numbers of a leaf that is updated together with its neighbours: what it costs alone is the call


def fits(leaves: Mapping[str, Tensor]) -> bool:
    """Whether they take these leaves."""
    kinds = {(leaf.device.type, leaf.dtype) for leaf in leaves.values()}
    return len(kinds) == 1 and kinds.pop()[0] in ("cpu", "cuda") and not transformed()


def branch(path: str) -> str:
    return path.partition("/")[0]


def blocks(
    leaves: Mapping[str, Tensor], gradient: Mapping[str, Tensor], clip: Number
) -> tuple[list[str], list[int], list[Tensor]]:
    """Leaves that are updated together, neighbours of one branch if they are small: of every block its branch, its
    size, and its clipped gradient as a vector, which is copied only if it has to be.
    """
    large = {path: leaf.numel() >= SMALL for path, leaf in leaves.items()}
    together = [list(paths) for _, paths in groupby(large, lambda path: (branch(path), large[path] and path))]
    parts = [[gradient[path].to(leaves[path].dtype).reshape(-1) for path in paths] for paths in together]
    gradients = [torch.cat(some) if len(some) > 1 else some[0].contiguous() for some in parts]
    if clip:
        factor = clip_factor(length(*gradients), clip)
        # on a CPU it costs nothing to see that there is nothing to do; a GPU's host must not wait for a number
        nothing = factor.device.type == "cpu" and bool(factor == 1)
        gradients = gradients if nothing else [part * factor for part in gradients]
    return [branch(paths[0]) for paths in together], [len(part) for part in gradients], gradients
