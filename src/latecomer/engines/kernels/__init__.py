"""Triton kernels for what many small networks do at once. Importing this needs Triton."""

from .drawing import draw
from .training import cross_entropy, cross_entropy_slope, take
from .vectors import adam, join, length, move, total

__all__ = [
    "adam",
    "cross_entropy",
    "cross_entropy_slope",
    "draw",
    "join",
    "length",
    "move",
    "take",
    "total",
]
