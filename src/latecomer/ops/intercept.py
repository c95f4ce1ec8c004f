"""What other people's models call: while an engine maps on a GPU, our operations stand in for PyTorch's functions.

Each operation's file says which function it stands in for, and when it leaves the work to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from .convolution import conv2d
from .linear import linear

T = TypeVar("T")
STANDS_IN: dict[Any, Callable[..., Any]] = {torch.conv2d: conv2d, F.linear: linear}


def intercepted(function: Callable[..., T]) -> Callable[..., T]:
    """The function, with PyTorch's convolutions and linear layers computed our way where that is better."""

    def wrapped(*args: Any) -> T:
        with _Interception():
            return function(*args)

    return wrapped


class _Interception(TorchFunctionMode):
    """Not active while it handles a call, so an operation can leave the work to PyTorch's function by calling it."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        kinds: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return STANDS_IN.get(function, function)(*args, **(kwargs or {}))
