"""Exchanges on a CPU as tapes: the plain operations that a mapped step comes down to, without what leads to them.

With many small networks, most of a round is not arithmetic but Python and PyTorch's transforms (`vmap`, `grad`), which
arrive at the same operations every time. A tape has these operations, as the source of a Python function. Playing it
does the same arithmetic in the same order, so the results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from .replays import Replay, Replays

LONGEST = 30_000  # operations on a tape; a function with more goes on running as it is


class Tapes(Replays):
    """Plays tapes."""

    def _form(self, leaf: Tensor) -> tuple[Any, ...]:
        return leaf.shape, leaf.dtype, leaf.stride(), leaf.storage_offset()

    def _capture(
        self, function: Callable[..., Any], leaves: list[Tensor], shape: TreeSpec, lasting: bool
    ) -> tuple[Replay, Any]:
        inputs = [leaf.view_as(leaf) for leaf in leaves]  # tensors of their own, though somebody be passed twice
        with torch.no_grad(), _Recorder(inputs) as recorder:
            result = function(*tree_unflatten(inputs, shape))
        if recorder.calls is None:
            return lambda leaves, _: function(*tree_unflatten(leaves, shape)), result
        outputs, form = tree_flatten(result)
        program = recorder.program(outputs)

        def play(leaves: list[Tensor], _: bool) -> Any:
            with torch.no_grad():
                return tree_unflatten(program(*leaves), form)

        return play, result


@dataclass
class _Call:
    operation: Any
    arguments: str  # as source
    used: set[str]  # names of tensors among them
    made: list[str]  # names of the tensors it returns; "" for what is none, or has its name already
    several: bool  # whether it returns a list


class _Recorder(TorchDispatchMode):
    """Writes down every operation that reaches the CPU: below `vmap` and `grad`, so of plain tensors.

    Names begin with x for inputs, t for what was computed, and c for all that comes from elsewhere and stays the same.
    """

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] | None = []  # None: what was seen cannot be played
        self.inputs = {f"x{k}": leaf for k, leaf in enumerate(inputs)}
        self.constants: dict[str, Any] = {}
        self.names: Any = WeakTensorKeyDictionary()  # recording keeps no tensor alive that nobody else needs
        self.names.update({leaf: name for name, leaf in self.inputs.items()})
        self.foreign = {_storage(leaf) for leaf in inputs}  # memory that is not the function's own
        self.count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        if self.calls is not None:
            self._note(self.calls, operation, args, kwargs or {}, result)
        return result

    def _note(self, calls: list[_Call], operation: Any, args: Any, kwargs: Any, result: Any) -> None:
        if not operation._schema.is_mutable and _same_view(args, result):
            self.names[result] = self._name(args[0])
            return
        words = [self._text(value) for value in args] + [f"{key}={self._text(value)}" for key, value in kwargs.items()]
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        abroad = any(_storage(tensor) in self.foreign for tensor in _written(operation, args, kwargs))
        if abroad or len(calls) >= LONGEST or _decides(operation, tensors):
            self.calls = None
            return
        several = isinstance(result, tuple | list)
        made = [self._new(value) for value in (result if several else [result])]
        calls.append(_Call(operation, ", ".join(words), {self._name(tensor) for tensor in tensors}, made, several))

    def _new(self, value: Any) -> str:
        if not isinstance(value, Tensor) or value in self.names:
            return ""
        self.count += 1
        self.names[value] = name = f"t{self.count}"
        return name

    def _name(self, tensor: Tensor) -> str:
        if tensor not in self.names:
            self.names[tensor] = self._constant(tensor)
            self.foreign.add(_storage(tensor))
        return str(self.names[tensor])

    def _text(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self._name(value)
        if isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value):
            return f"[{', '.join(self._text(item) for item in value)}]"
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def program(self, outputs: list[Any]) -> Callable[..., list[Any]]:
        """What was recorded, as a function from inputs to outputs. What nobody needs is left out, or freed at once."""
        returned = [self._text(value) for value in outputs]
        operations: dict[str, Any] = {}
        needed, lines = set(returned), []
        for number, call in enumerate(reversed(self.calls or [])):
            if not call.operation._schema.is_mutable and needed.isdisjoint(call.made):
                continue
            last = {name for name in call.used if name.startswith("t")} - needed
            last |= {name for name in call.made if name} - needed
            needed |= call.used
            targets = ", ".join(name or "_" for name in call.made) + "," * call.several
            free = "".join(f"{name} = " for name in sorted(last))
            lines.append(f" {targets} = f{number}({call.arguments})" + f"; {free}None" * bool(free))
            operations[f"f{number}"] = call.operation
        head, tail = f"def play({', '.join(self.inputs)}):", f" return [{', '.join(returned)}]"
        space = operations | self.constants
        exec("\n".join([head, *reversed(lines), tail]), space)
        return space["play"]  # type: ignore[no-any-return]


def _decides(operation: Any, tensors: list[Tensor]) -> bool:
    """Whether the numbers, and not the shapes alone, say what comes back to the host: a number, or a shape."""
    if operation is torch.ops.aten.index.Tensor:
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:])
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.intersection(operation.tags))


def _written(operation: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an operation changes in place."""
    given = dict(zip((argument.name for argument in operation._schema.arguments), args, strict=False)) | kwargs
    changed = [argument.name for argument in operation._schema.arguments if argument.is_write]
    return [leaf for leaf in tree_leaves([given[name] for name in changed]) if isinstance(leaf, Tensor)]


def _same_view(args: Any, result: Any) -> bool:
    """Whether an operation did nothing but give its first argument another name."""
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not isinstance(result, Tensor) or first is result:
        return False
    return first.dtype == result.dtype and first.is_set_to(result)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
