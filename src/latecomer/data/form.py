"""The form of examples: what whoever brings more of them must bring, and how a model sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, OddValue
from .arrays import checked_x, checked_y, kind_of

if TYPE_CHECKING:  # whoever only checks examples may have no torch
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Form:
    """Of one example, as it is stored; images are uint8, [height, width, channels]."""

    dtype: str
    stored: tuple[int, ...]
    classes: int
    text: bool = False  # sequences of class numbers
    mean: tuple[float, ...] = ()  # per channel, of pixels in [0, 1]; empty: pixels are only divided by 255
    std: tuple[float, ...] = ()

    @property
    def images(self) -> bool:
        return self.dtype == "uint8"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example as a model sees it: channels come first."""
        return (self.stored[-1], *self.stored[:-1]) if self.images else self.stored

    @property
    def seen(self) -> torch.dtype:
        """The kind of numbers that a model sees: what is small to store is made large."""
        import torch

        kept: torch.dtype = getattr(torch, self.dtype)
        if self.images or kept.is_floating_point:
            return torch.float32
        return torch.int64 if kept in (torch.int8, torch.int16) else kept

    def prepare(self, x: Tensor) -> Tensor:
        """Examples as they are stored, [n, ...], made ready for a model."""
        import torch

        if not self.images:
            return x.to(self.seen)
        mean, std = (torch.tensor(t or d).expand(self.stored[-1]) for t, d in ((self.mean, 0.0), (self.std, 1.0)))
        scale, shift = (part[:, None, None] for part in (1 / (255 * std), -mean / std))
        return x.movedim(-1, -3).to(torch.float32) * scale + shift

    def examples(self, x: Any, name: str, origin: str) -> NDArray[Any]:
        """New examples, if they are of this form; grey images may leave out the one channel."""
        found = checked_x(_array(x, name, origin), name, origin)
        if found.dtype == np.uint8 and found.ndim == 3:
            found = found[..., None]
        if not len(found):
            raise DataError(f"{name} in {origin} is empty.")
        if found.shape[1:] != self.stored or (found.dtype.kind == "f") != (self.dtype.startswith("float")):
            asked = f"{self.dtype} {list(self.stored)}"
            raise DataError(f"{name} in {origin} holds {kind_of(found)}; this run was trained on {asked}.")
        low, high = self.range
        if (self.text or found.dtype != self.dtype) and len(wrong := found[(found < low) | (found > high)]):
            raise OddValue(f"{name} in {origin} holds the number {wrong[0]}; they must be from {low} to {high}.")
        return found.astype(self.dtype, copy=False)

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest number in an example."""
        if self.text:
            return 0, self.classes - 1
        kept = np.dtype(self.dtype)
        return (np.iinfo(kept).min, np.iinfo(kept).max) if kept.kind in "iu" else (-np.inf, np.inf)

    def labels(self, y: Any, count: int, name: str, origin: str) -> NDArray[Any]:
        """Labels of `count` examples, each a class of this form, or -1 where it is unknown."""
        found = checked_y(_array(y, name, origin), name, origin)
        if found.shape != (count,):
            raise DataError(
                f"{name} in {origin} has shape {found.shape}; there must be one label for {count} examples."
            )
        if len(wrong := found[(found < -1) | (found >= self.classes)]):
            raise OddValue(
                f"{name} in {origin} holds the label {wrong[0]}; the classes are 0 to {self.classes - 1} (-1: unknown)."
            )
        return found

    def table(self) -> dict[str, Any]:
        """As plain values, for TOML and JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Self:
        """What `table` gave; a ValueError where it cannot have."""
        hints = get_type_hints(cls)
        values: dict[str, Any] = {
            name: tuple(table[name]) if get_args(hint) else table[name] for name, hint in hints.items()
        }
        for name, hint in hints.items():
            inner = get_args(hint)[0] if get_args(hint) else hint
            for one in values[name] if get_args(hint) else (values[name],):
                if not isinstance(one, inner) or (inner is int and one <= 0):
                    raise ValueError(f"{name} cannot be {table[name]!r}")
        if values["dtype"] not in ("uint8", "int8", "int16", "int32", "int64", "float32", "float64", "bool"):
            raise ValueError(f"dtype cannot be {values['dtype']!r}")
        return cls(**values)


def _array(values: Any, name: str, origin: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} in {origin} is no array: its rows are not all alike.") from error
