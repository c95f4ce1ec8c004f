"""Triton kernels for what many small networks do at once. Importing this needs Triton."""

from .convolution import back, forward, stage
from .dense import dense, dense_back
from .norm import norm, norm_back
from .pooling import pool, unpool
from .wide import back as wide_back
from .wide import forward as wide_forward

__all__ = [
    "back",
    "dense",
    "dense_back",
    "forward",
    "norm",
    "norm_back",
    "pool",
    "stage",
    "unpool",
    "wide_back",
    "wide_forward",
]
