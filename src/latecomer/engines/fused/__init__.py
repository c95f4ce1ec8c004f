"""Blocks of local training by the kernels of engines/kernels, wherever a dimension of `vmap` makes rows of clients."""

from .rows import kernels
from .training import cross_entropy, draw, move, split, take

__all__ = ["cross_entropy", "draw", "kernels", "move", "split", "take"]
