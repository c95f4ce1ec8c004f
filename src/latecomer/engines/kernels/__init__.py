"""Triton kernels for what many small networks do at once. Importing this needs Triton."""

from .convolution import back, forward, stage
from .dense import dense, dense_back
from .drawing import draw
from .norm import norm, norm_back
from .pooling import pool, unpool
from .training import cross_entropy, cross_entropy_slope, take
from .vectors import adam, join, length, move, total
from .wide import back as wide_back
from .wide import forward as wide_forward

__all__ = [
    "adam",
    "back",
    "cross_entropy",
    "cross_entropy_slope",
    "dense",
    "dense_back",
    "draw",
    "forward",
    "join",
    "length",
    "move",
    "norm",
    "norm_back",
    "pool",
    "stage",
    "take",
    "total",
    "unpool",
    "wide_back",
    "wide_forward",
]
