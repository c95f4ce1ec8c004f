"""Blocks of local training by the kernels of engines/kernels, wherever a dimension of `vmap` makes rows of clients."""

from .convolution import convolve, pool, stage, wide
from .norm import norm
from .rows import kernels
from .training import dense

__all__ = [
    "convolve",
    "dense",
    "kernels",
    "norm",
    "pool",
    "stage",
    "wide",
]
