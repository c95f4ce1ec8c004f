"""First calls, with a toy in the place of Triton (test_cuda.py has the real)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from latecomer.ops.first_calls import FirstCalls


class Toy:
    """A Triton that can compile: it knows what lies on the disk, and in which order what was done."""

    def __init__(self, disk: str = "") -> None:
        self.runtime, self.compilation = SimpleNamespace(jit_cache_hook=None), SimpleNamespace(listener=None)
        self.disk, self.done = set(disk), list[str]()


class Kernel:
    """Adds one."""

    def __init__(self, toy: Toy, name: str, kind: str = "*fp32", constant: Any = 16) -> None:
        self.toy, self.name, self.binary = toy, name, False
        self.about = {"signature": {"x": kind}, "constants": {(1,): constant}, "specialization_data": name}
        self.meanwhile: Callable[[], Any] = lambda: None

    def __call__(self, number: int) -> int:
        hook = self.toy.runtime.jit_cache_hook
        if not self.binary and hook and hook(key="", fn=SimpleNamespace(jit_function=self), compile=self.about):
            return -1000
        if not self.binary:
            self.preload(self.name)
        self.toy.done.append(f"run {self.name}")
        return number + 1

    def preload(self, data: str) -> SimpleNamespace:
        assert data == self.name
        self.meanwhile()
        if self.toy.compilation.listener:
            self.toy.compilation.listener(src=self, cache_hit=self.name in self.toy.disk)
        self.binary = True
        self.toy.disk.add(self.name)
        self.toy.done.append(f"compile {self.name}")
        return SimpleNamespace(run=None)


def again(calls: FirstCalls, function: Callable[[int], int], number: int) -> int:
    """As `Graphs` does, with a plain call in the place of a capture."""
    makes_sense, result = calls(function, (number,))
    return int(result) if makes_sense else function(number)


def test_what_is_missing_is_compiled_side_by_side() -> None:
    toy = Toy()
    first, second, third = kernels = [Kernel(toy, name) for name in "abc"]
    both = threading.Barrier(2, timeout=30)
    second.meanwhile = third.meanwhile = both.wait  # neither is compiled before the other is begun
    calls = FirstCalls(toy)
    assert again(calls, lambda x: third(second(first(x))), 0) == 3
    assert toy.done[:2] == ["compile a", "run a"], "the first tells that the disk is empty"
    assert sorted(toy.done[2:4]) == ["compile b", "compile c"]
    assert toy.done[4:] == ["run a", "run b", "run c"]
    assert toy.runtime.jit_cache_hook is toy.compilation.listener is None
    assert all(kernel.binary for kernel in kernels)
    toy.done.clear()
    later = Kernel(toy, "d")
    assert again(calls, lambda x: later(first(x)), 0) == 2
    assert toy.done == ["run a", "compile d", "run a", "run d"], "known by now: nothing is compiled on the way"


def test_kernels_on_the_disk_are_called_once() -> None:
    toy = Toy("ab")
    first, second = Kernel(toy, "a"), Kernel(toy, "b")
    assert FirstCalls(toy)(lambda x: second(first(x)), (0,)) == (True, 2)
    assert toy.done == ["compile a", "run a", "compile b", "run b"]


@pytest.mark.parametrize("how", [{"kind": "*i64"}, {"constant": (0, 8)}], ids=["makes an index", "has a tuple"])
def test_kernels_that_cannot_wait(how: dict[str, Any]) -> None:
    toy = Toy()
    first, index, last = Kernel(toy, "a"), Kernel(toy, "i", **how), Kernel(toy, "b")
    seen = []

    def function(x: int) -> int:
        seen.append(index(0))
        return last(first(x))

    calls = FirstCalls(toy)
    calls(first, (0,))
    assert again(calls, function, 0) == 2
    assert seen == [1, 1], "it made sense both times"


def test_errors_of_a_call_that_makes_no_sense_are_not_the_functions() -> None:
    toy = Toy()
    first, second = Kernel(toy, "a"), Kernel(toy, "b")

    def function(x: int) -> int:
        if (y := second(first(x))) < 0:
            raise RuntimeError("negative")
        return y

    calls = FirstCalls(toy)
    assert calls(function, (0,)) == (True, 2)
    with pytest.raises(RuntimeError, match="negative"):
        calls(function, (-5,))
    assert toy.runtime.jit_cache_hook is None
