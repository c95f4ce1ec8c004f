"""Exchanges spread over the workers of a Ray cluster: cores, GPUs, machines (extra 'ray').

engine.py   in this process: an exchange is cut into units of some clients, and what they answered is added in order
crew.py     in this process: who does which unit, and who else does it where a worker dies
worker.py   in an actor: does a unit with an engine of its own, folds its answers, keeps nothing
cluster.py  between them: a cluster to work on, which is started where none is named
cargo.py    tensors as arrays, which Ray carries without copying them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...data.federation import Federation
from ...method import Method

if TYPE_CHECKING:
    from .engine import Ray


def spread(
    method: Method,
    federations: Sequence[Federation],
    device: torch.device,
    *,
    chunk: int = 0,
    graphs: bool = True,
    workers: int = 0,
    address: str = "",
    gpus: bool = True,
) -> Ray:
    """An engine on the cluster at `address`, or on one of this machine's cores; `device` is the server's own."""
    from .cluster import connect

    connect(address)
    from .engine import Ray

    return Ray(method, federations, device, chunk=chunk, graphs=graphs, workers=workers, gpus=gpus)
