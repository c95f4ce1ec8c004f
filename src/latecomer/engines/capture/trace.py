"""Traces a function on a CPU: the plain operations that it comes down to, written as the source of a program.

Of `lambda x: (x.view(3) + 1) * 2` the program is

    def program(x0):
     t2 = f1(x0, c1)
     t3 = f0(t2, c2); t2 = None
     return [t3]

where f0 and f1 are PyTorch's operations themselves, and c1 and c2 what they were given besides tensors. Names begin
with x for inputs, t for what was computed, and c for what comes from elsewhere and stays the same. Four things are done
to what was seen: views of all of a tensor are only names for it (`x.view(3)` above); what is computed twice is computed
once; what nobody needs is left out; and what nobody needs any more is freed at once. All else is as it was, in order,
so the results are the same to the last bit. PyTorch's own tracer (`make_fx`) cannot stand here: it ends where the host
looks at a number, which this compares, and knows no aliases (ADR 24).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...private import TorchDispatchMode, schema
from .steady import TELL, decides

Program = Callable[..., list[Any] | None]
"""From inputs to outputs; None where the host would be told another number than when it was traced."""
_ATEN = torch.ops.aten
LARGE = 2**22  # bytes that are not kept for a second use
NAME = re.compile(r"\bt\d+\b")
LONGEST = 30_000  # operations on a tape; a function with more goes on running as it is


@dataclass
class _Call:
    """One operation of a trace."""

    operation: Any
    arguments: str  # as source
    used: set[str]  # names of tensors among them
    made: list[str]  # names of the tensors it returns; "" for what is none, or has its name already
    several: bool  # whether it returns a list
    told: str  # the number that it told the host, as text: 0.0 and -0.0 are two
    large: bool  # whether what it returns is better made twice than kept


class Trace(TorchDispatchMode):
    """Writes down every operation that reaches the CPU: below `vmap` and `grad`, so of plain tensors.

    A tensor that is not an input and that no operation made is a constant. A program must change neither: whoever owns
    them would see it, and the next call would begin with other numbers. So it is known whose memory every tensor is.
    """

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] | None = []  # None: what was seen cannot be played
        self.inputs = {f"x{k}": leaf for k, leaf in enumerate(inputs)}
        self.constants: dict[str, Any] = {}
        self.contents: dict[Any, str] = {}  # their names, by what they are
        self.names: Any = WeakTensorKeyDictionary()  # recording keeps no tensor alive that nobody else needs
        self.names.update({leaf: name for name, leaf in self.inputs.items()})
        self.foreign = {_storage(leaf): leaf for leaf in inputs}  # memory that is not the function's own; kept in use
        self.owners: dict[str, str] = {}  # of a view: the name of what has the memory
        self.written: set[str] = set()  # owners whose memory is written after it was made
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
        if not schema(operation).is_mutable and _same_view(args, result):
            self.names[result] = self._name(args[0])  # another name for the same numbers is no operation
            return
        words = [self._text(value) for value in args] + [f"{key}={self._text(value)}" for key, value in kwargs.items()]
        used = {self._name(tensor) for tensor in tensors}
        owners = {_storage(tensor): self._owner(self._name(tensor)) for tensor in tensors}
        self.written |= {owners[_storage(tensor)] for tensor in _written(operation, args, kwargs)}
        made = [self._new(value, owners) for value in (result if several else [result])]
        if not any(made) and not schema(operation).is_mutable and operation is not TELL and result is not None:
            return  # it gave back what it was given; what returns nothing checks something
        told = repr(result) if operation is TELL else ""
        large = sum(tensor.nbytes for tensor in _tensors(result)) > LARGE
        calls.append(_Call(operation, ", ".join(words), used, made, several, told, large))

    def _unfit(self, operation: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> bool:
        """Whether an operation may do something else the next time, or change what is not the function's own."""
        unknown = operation is not TELL and decides(operation, args)  # what is told can be compared, when it is played
        draws = torch.Tag.nondeterministic_seeded in operation.tags  # to compare would be to draw twice
        placed = operation is _ATEN.as_strided.default  # at a place in memory, which an input may not have again
        abroad = [args[0]] if placed else _written(operation, args, kwargs)
        # forward derivatives make tensors without numbers; others are sparse
        elsewhere = any(tensor.device.type != "cpu" or tensor.layout != torch.strided for tensor in tensors)
        reshaped = torch.Tag.inplace_view in operation.tags and self._has_namesake(args[0])
        return unknown or draws or elsewhere or reshaped or any(self._is_foreign(tensor) for tensor in abroad)

    def _is_foreign(self, tensor: Tensor) -> bool:
        """Whether its memory is an input's or a constant's."""
        return tensor not in self.names or _storage(tensor) in self.foreign

    def _has_namesake(self, tensor: Tensor) -> bool:
        """Whether another tensor goes by its name, which would change its shape with it."""
        return list(self.names.values()).count(self._name(tensor)) > 1

    def _owner(self, name: str) -> str:
        return self.owners.get(name, name)

    def _new(self, value: Any, owners: dict[int, str]) -> str:
        if not isinstance(value, Tensor) or value in self.names:
            return ""
        self.count += 1
        self.names[value] = name = f"t{self.count}"
        self.owners[name] = owners.get(_storage(value), name)
        return name

    def _name(self, tensor: Tensor) -> str:
        if tensor not in self.names:
            self.names[tensor] = self._constant(tensor)
            self.foreign[_storage(tensor)] = tensor
        return str(self.names[tensor])

    def _text(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self._name(value)
        if isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value):
            return f"[{', '.join(self._text(item) for item in value)}]"
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        """A name for it; what is the same has one name."""
        small = not isinstance(value, Tensor) or value.numel() <= 16
        content = _described(value) if isinstance(value, Tensor) and small else value
        name = self.contents.setdefault((type(value), repr(content) if small else id(value)), f"c{len(self.contents)}")
        self.constants.setdefault(name, value)
        return name

    def _once(self, calls: list[_Call]) -> tuple[list[_Call], dict[str, str]]:
        """Calls without what was done before, with the same arguments, and is not written into; new names for that.

        A client of PeFLL, say, describes itself twice a round: the second time to send a gradient back.
        """
        names: dict[str, str] = {}  # what is the same as something earlier

        def known(name: str) -> str:
            return names.get(name, name)

        done: dict[Any, list[str]] = {}
        kept = []
        for call in calls:
            arguments = NAME.sub(lambda found: known(found[0]), call.arguments)
            call = replace(call, arguments=arguments, used=set(map(known, call.used)))
            own = {self._owner(name) for name in (*call.used, *call.made)}
            fresh = not all(call.made) or call.large or not own.isdisjoint(self.written)
            if fresh:
                kept.append(call)
                continue
            earlier = done.setdefault((call.operation, call.arguments), call.made)
            names |= dict(zip(call.made, earlier, strict=True)) if earlier is not call.made else {}
            kept += [call] if earlier is call.made else []
        return kept, names

    def program(self, outputs: list[Any]) -> Program:
        """What was traced, as a function from inputs to outputs."""
        given = [self._text(value) for value in outputs]
        calls, same = self._once(self.calls or [])
        names = [same.get(name, name) for name in given]
        operations: dict[str, Any] = {}
        # from the end to the beginning: what is needed later, and so which use of a tensor is its last
        needed, lines = set(names), []
        for number, call in enumerate(reversed(calls)):
            if any(call.made) and not schema(call.operation).is_mutable and needed.isdisjoint(call.made):
                continue
            last = {name for name in (*call.used, *call.made) if name.startswith("t")} - needed
            needed |= call.used
            targets = ", ".join(name or "_" for name in call.made) + "," * call.several
            free = "".join(f"{name} = " for name in sorted(last))
            if call.told:
                lines.append(f" if repr(_) != {call.told!r}: return")
            lines.append(f" {targets} = f{number}({call.arguments})" + f"; {free}None" * bool(free))
            operations[f"f{number}"] = call.operation._op  # itself; called as a Python object, each would need a frame
        returned = self._returned(given, names, same, [isinstance(value, Tensor) for value in outputs])
        head = f"def program({', '.join(self.inputs)}):"
        space = operations | self.constants
        exec("\n".join([head, *reversed(lines), returned]), space)
        return space["program"]  # type: ignore[no-any-return]

    def _returned(self, given: list[str], names: list[str], same: dict[str, str], tensors: list[bool]) -> str:
        """The last line. Whoever gets an output may write into it, so it must not be a constant's memory, nor that of
        another output which had its own when it was traced."""
        memory = {owner: same.get(owner, owner) for owner in map(self._owner, given)}
        fixed = {owner for owner, name in memory.items() if name.startswith("c")}
        fixed |= {owner for owner, name in memory.items() if list(memory.values()).count(name) > 1}
        words = zip(names, given, tensors, strict=True)
        return f" return [{', '.join(n + '.clone()' * (copy and self._owner(old) in fixed) for n, old, copy in words)}]"


def _written(operation: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an operation changes in place."""
    if not schema(operation).is_mutable:
        return []
    given = dict(zip((argument.name for argument in schema(operation).arguments), args, strict=False)) | kwargs
    changed = [argument.name for argument in schema(operation).arguments if argument.is_write]
    return _tensors([given[name] for name in changed])


def _same_view(args: Any, result: Any) -> bool:
    """Whether an operation did nothing but give its first argument another name."""
    first = args[0] if args else None
    if not isinstance(first, Tensor) or not isinstance(result, Tensor) or first is result:
        return False
    kinds = [(tensor.dtype, tensor.is_conj(), tensor.is_neg()) for tensor in (first, result)]
    return kinds[0] == kinds[1] and first.is_set_to(result)


def _described(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.stride(), tensor.is_conj(), tensor.is_neg(), tensor.shape, tensor.tolist()


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
