"""How many clients fit into memory at once.

A row takes at most

    E x 12 x (I + N)  +  10 x M  +  W   bytes

where E is the number of examples of the largest client (an evaluation sees all of them), I the numbers of one example,
N those that the client model computes from it, and M the bytes that one client is sent and keeps. Every number computed
may be kept, have a gradient and a working copy, of four bytes each; and of what a client trains there are at any time
its message, the weights before and after a step, two velocities, the gradient in parts and in one piece, and the reply.
W is what a method says that grows faster than E (`Method.workspace`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import tree
from ..clients import Ask
from ..data.federation import Federation
from ..method import Method
from ..private import TorchDispatchMode, schema
from ..tree import Tree

CPU_BUDGET = 2**30  # bytes that one chunk may take on a CPU; more rows at once gain nothing there
GPU_SHARE = 0.4  # of the free memory, on a GPU
MUCH = 4  # times more workspace by padding: then clients are better off one by one
PER_NUMBER, COPIES = 12, 10  # bytes of a number that is computed; and of what is sent, see above


def budget(device: torch.device, share: float | None = None, most: int | None = None) -> int:
    """Bytes that one chunk may take: a share of what is free on a GPU, and on a CPU so many."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * (share or GPU_SHARE))
    return most or CPU_BUDGET


def activation_bytes(method: Method) -> int:
    """Bytes for one example in the client model and its gradient, by a dry run without data."""
    blank = method.task.blank(1, "meta")
    with _Counted() as counted:
        method.task.model.skeleton(blank)
    return PER_NUMBER * int(counted.numbers + blank.numel())


def padding(method: Method, federations: Sequence[Federation]) -> float:
    """How many times more workspace clients take that are mapped together, each as large as the largest of all."""
    sizes, counts = torch.cat([federation.train.sizes for federation in federations]).unique(return_counts=True)
    spaces = torch.tensor([float(method.workspace(size)) for size in sizes.tolist()])
    alone = float((spaces * counts).sum())
    return float(spaces.max() * counts.sum()) / alone if alone else 1.0


def message_bytes(ask: Ask, kept: Tree) -> int:
    """Bytes that one client is sent, those it was sent before included, and those it keeps."""
    each = tree.nbytes(ask.each) // max(len(ask.ids), 1)
    return tree.nbytes(ask.shared) + tree.nbytes(ask.recalled) + each + tree.nbytes(kept)


class _Counted(TorchDispatchMode):
    """Counts the numbers that operations compute; looking at numbers in another way computes none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = 0

    def __torch_dispatch__(
        self, operation: Any, kinds: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = operation(*args, **(kwargs or {}))
        fresh = all(returned.alias_info is None for returned in schema(operation).returns)
        for part in out if isinstance(out, tuple | list) else (out,):
            self.numbers += part.numel() if fresh and isinstance(part, Tensor) else 0
        return out
