"""Exchanges and whole rounds on a CPU as tapes: the plain operations that they come down to, and nothing else.

With many small networks, most of a round is not arithmetic but Python and PyTorch's transforms (`vmap`, `grad`), which
arrive at the same operations every time. A tape has these operations, as the source of a Python function. Playing it
does the same arithmetic in the same order on as many threads, so the results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from .replays import Replay, Replays

Program = Callable[..., list[Any] | None]
"""From inputs to outputs; None if it was recorded where the host was told other numbers."""
TELL = torch.ops.aten._local_scalar_dense.default  # a number, to the host
LONGEST = 30_000  # operations on a tape; a function with more goes on running as it is
UNFIT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Operations that tell the host numbers, or a shape that depends on numbers."""


class Tapes(Replays):
    """Plays tapes."""

    def _form(self, leaf: Tensor) -> tuple[Any, ...]:
        return leaf.shape, leaf.dtype, leaf.stride()

    def _capture(
        self, function: Callable[..., Any], leaves: list[Tensor], shape: TreeSpec, lasting: bool
    ) -> tuple[Replay, Any]:
        inputs = [leaf.view_as(leaf) for leaf in leaves]  # tensors of their own, though somebody be passed twice
        with _Recorder(inputs) as recorder:
            result = function(*tree_unflatten(inputs, shape))
        outputs, form = tree_flatten(result)
        program = None if recorder.calls is None else recorder.program(outputs)
        return _Tape(function, shape, program, form, self._one), result


@dataclass
class _Tape:
    """A recorded call. When it is first played, the function is called, too: if they differ, the tape is no good."""

    function: Callable[..., Any]
    shape: TreeSpec
    program: Program | None
    form: TreeSpec
    as_one: Callable[[], AbstractContextManager[None]]  # calls within are not tapes of their own
    checked: bool = False
    luck: int = 0  # how much more often it could be played than not

    def __call__(self, leaves: list[Tensor], lasting: bool) -> Any:
        played = None if self.program is None else self._played(self.program, leaves)
        if self.checked and played is not None:
            return tree_unflatten(played, self.form)
        inputs = tree_unflatten(leaves, self.shape)
        if played is None:
            return self.function(*inputs)
        with self.as_one():
            result = self.function(*inputs)
        outputs, form = tree_flatten(result)
        self.checked = form == self.form and all(map(_same, played, outputs))
        self.program = self.program if self.checked else None
        return result

    def _played(self, program: Program, leaves: list[Tensor]) -> list[Any] | None:
        """What the program returns. One that more often finds other numbers than it knows is given up."""
        threads = torch.get_num_threads()
        try:
            with torch.no_grad():
                played = program(*leaves)
        finally:
            torch.set_num_threads(threads)
        self.luck += 1 if played is not None else -1
        self.program = program if self.luck >= 0 else None
        return played


@dataclass
class _Call:
    operation: Any
    arguments: str  # as source
    used: set[str]  # names of tensors among them
    made: list[str]  # names of the tensors it returns; "" for what is none, or has its name already
    several: bool  # whether it returns a list
    threads: int  # how many it may use: some sums depend on it
    told: str = ""  # the name of the number that it told the host


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
        tensors, several = _tensors((args, kwargs)), isinstance(result, tuple | list)
        if self._unfit(operation, args, kwargs, tensors + _tensors(result)) or len(calls) >= LONGEST:
            self.calls = None
            return
        if not operation._schema.is_mutable and _same_view(args, result):
            self.names[result] = self._name(args[0])
            return
        words = [self._text(value) for value in args] + [f"{key}={self._text(value)}" for key, value in kwargs.items()]
        made = [self._new(value) for value in (result if several else [result])]
        used = {self._name(tensor) for tensor in tensors}
        told = self._constant(result) if operation is TELL else ""
        calls.append(_Call(operation, ", ".join(words), used, made, several, torch.get_num_threads(), told))

    def _unfit(self, operation: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> bool:
        """Whether an operation may do something else the next time, or change what is not the function's own."""
        if operation is torch.ops.aten.index.Tensor:
            decides = any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _tensors(args[1:]))
        else:
            decides = operation is not TELL and not UNFIT.isdisjoint(operation.tags)
        fixed = (
            operation is torch.ops.aten.as_strided.default
        )  # to a place in memory, which an input may not have again
        abroad = [args[0]] if fixed else _written(operation, args, kwargs)
        elsewhere = any(
            tensor.device.type != "cpu" for tensor in tensors
        )  # of no numbers: forward derivatives make such
        reshaped = torch.Tag.inplace_view in operation.tags and self._has_namesake(args[0])
        return decides or elsewhere or reshaped or any(self._is_foreign(tensor) for tensor in abroad)

    def _is_foreign(self, tensor: Tensor) -> bool:
        """Whether its memory is an input's or a constant's."""
        return tensor not in self.names or _storage(tensor) in self.foreign

    def _has_namesake(self, tensor: Tensor) -> bool:
        """Whether another tensor goes by its name, which would change its shape with it."""
        return list(self.names.values()).count(self._name(tensor)) > 1

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

    def program(self, outputs: list[Any]) -> Program:
        """What was recorded, as a function from inputs to outputs. What nobody needs is left out, or freed at once."""
        names = [self._text(value) for value in outputs]
        operations: dict[str, Any] = {"threads": torch.set_num_threads}
        needed, lines, threads = set(names), [], 0
        for number, call in enumerate(reversed(self.calls or [])):
            if any(call.made) and not call.operation._schema.is_mutable and needed.isdisjoint(call.made):
                continue
            if threads and call.threads != threads:
                lines.append(f" threads({threads})")
            threads = call.threads
            last = {name for name in call.used if name.startswith("t")} - needed
            last |= {name for name in call.made if name} - needed
            needed |= call.used
            targets = ", ".join(name or "_" for name in call.made) + "," * call.several
            free = "".join(f"{name} = " for name in sorted(last))
            if call.told:
                lines.append(f" if _ != {call.told}: return")
            lines.append(f" {targets} = f{number}({call.arguments})" + f"; {free}None" * bool(free))
            operations[f"f{number}"] = call.operation._op  # itself; called as a Python object, each would need a frame
        fixed = {name for name, value in self.constants.items() if isinstance(value, Tensor)}
        returned = ", ".join(name + ".clone()" * (name in fixed) for name in names)  # somebody may write into it
        head, tail = f"def play({', '.join(self.inputs)}):", f" return [{returned}]"
        space = operations | self.constants
        exec("\n".join([head, f" threads({threads})" * bool(threads), *reversed(lines), tail]), space)
        return space["play"]  # type: ignore[no-any-return]


def _written(operation: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an operation changes in place."""
    if not operation._schema.is_mutable:
        return []
    given = dict(zip((argument.name for argument in operation._schema.arguments), args, strict=False)) | kwargs
    changed = [argument.name for argument in operation._schema.arguments if argument.is_write]
    return _tensors([given[name] for name in changed])


def _same_view(args: Any, result: Any) -> bool:
    """Whether an operation did nothing but give its first argument another name."""
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not isinstance(result, Tensor) or first is result:
        return False
    kinds = [(tensor.dtype, tensor.is_conj(), tensor.is_neg()) for tensor in (first, result)]
    return kinds[0] == kinds[1] and first.is_set_to(result)


def _same(a: Any, b: Any) -> bool:
    """Whether two outputs are the same, to the last bit."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and bool(((a == b) | ((a != a) & (b != b))).all())


def _tensors(values: Any) -> list[Tensor]:
    """Those in what an operation is given or returns; `tree_leaves`, for trees of any kind, was slow to record with."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, tuple | list):
        return []
    return [tensor for value in values for tensor in _tensors(value)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
