"""Whether a call does the same every time: what it tells the host, by which it could decide otherwise the next time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...private import TorchDispatchMode

_ATEN = torch.ops.aten
TELL = _ATEN._local_scalar_dense.default  # a number, to the host
UNFIT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Operations that tell the host numbers, or a shape that depends on numbers."""
ESCAPES = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.storage, Tensor.data_ptr}
ESCAPES |= {Tensor.__repr__, Tensor.__format__, Tensor.tensor_split, torch.tensor_split}
"""Ways from a CPU's tensor to its numbers that are no operation, or look at them in passing."""


class Unsteady(BaseException):
    """Ends a call that somebody tries to capture: it decides something on the host, so it could not be replayed."""


class Steadily(TorchDispatchMode):
    """Ends a call on a GPU as soon as it tells the host a number, by raising `Unsteady`.

    Numbers that come from the host are constants, unless they come again when the call is `captured`: then the host has
    made them anew, and a replay would not know. Pinned memory is used again at once, so it never holds constants.
    """

    def __init__(self, captured: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.captured = captured

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        here = any(isinstance(value, Tensor) and value.is_cuda for value in args)
        if here and (operation is TELL or decides(operation, args)):
            raise Unsteady
        way = _crossing(operation, args, kwargs or {})
        if way == "down" or (way == "up" and (self.captured or args[-1].is_pinned())):
            raise Unsteady
        return operation(*args, **(kwargs or {}))


class Escapes(TorchFunctionMode):
    """Notices numbers that leave a CPU's tensors without an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.any = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.any = self.any or function in ESCAPES
        return function(*args, **(kwargs or {}))


def decides(operation: Any, args: Any) -> bool:
    """Whether what an operation returns has a shape, or is a number, that depends on numbers; `TELL` is such a one."""
    if operation is _ATEN.index.Tensor:
        chosen = args[1] if len(args) > 1 else ()
        return any(isinstance(which, Tensor) and which.dtype in (torch.bool, torch.uint8) for which in chosen)
    return not UNFIT.isdisjoint(operation.tags)


def _crossing(operation: Any, args: Any, kwargs: Any) -> str:
    """Whether an operation copies its last argument down to the host, or up to the device; empty: neither."""
    if operation not in (_ATEN._to_copy.default, _ATEN.copy_.default) or not isinstance(args[-1], Tensor):
        return ""
    source, target = args[-1].device.type, args[0].device.type
    if operation is _ATEN._to_copy.default and kwargs.get("device") is not None:
        target = torch.device(kwargs["device"]).type
    return "" if source == target else "down" if target == "cpu" else "up"
