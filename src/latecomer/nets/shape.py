"""What a client model takes for an example; anything else is refused in a sentence."""

from __future__ import annotations

from ..errors import DataError


def image(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """Channels, height and width of an image."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise DataError(f"The model {name!r} takes images of at least 4x4 pixels; an example here has shape {shape}.")
    return shape[0], shape[1], shape[2]


def sequence(shape: tuple[int, ...], name: str) -> int:
    """The length of a sequence of characters."""
    if len(shape) != 1:
        raise DataError(f"The model {name!r} takes sequences of characters; an example here has shape {shape}.")
    return shape[0]
