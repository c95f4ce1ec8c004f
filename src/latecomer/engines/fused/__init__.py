"""Blocks of local training by the kernels of engines/kernels, wherever a dimension of `vmap` makes rows of clients."""

from .convolution import convolve, pool, stage, wide
from .norm import norm
from .rows import kernels
from .training import cross_entropy, dense, draw, move, split, take

__all__ = [
    "convolve",
    "cross_entropy",
    "dense",
    "draw",
    "kernels",
    "move",
    "norm",
    "pool",
    "split",
    "stage",
    "take",
    "wide",
]
