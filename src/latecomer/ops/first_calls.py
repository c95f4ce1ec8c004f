"""First calls: kernels compiled side by side, where Triton would compile each when it is first launched.

A first call begins as any other, with the kernels that Triton keeps on the disk. If one is not there and has to be
compiled, others will have to be, too: from then on, launches of kernels that are missing are only noted. What such a
call computes makes no sense, and nobody looks at it; all that was noted is compiled at once, and the function has to be
called again.
"""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from .mapping import HAS_TRITON


def first_calls() -> FirstCalls | None:
    """For this Triton, if there is one and it has what it takes."""
    if not HAS_TRITON:
        return None
    knobs, jit = importlib.import_module("triton.knobs"), importlib.import_module("triton").JITFunction
    hooks = (knobs.runtime, "jit_cache_hook"), (knobs.compilation, "listener"), (jit, "preload")
    return FirstCalls(knobs) if all(hasattr(owner, name) for owner, name in hooks) else None


class FirstCalls:
    """Calls functions for the first time. They must be pure, and look at no numbers on the host."""

    def __init__(self, knobs: Any) -> None:
        self._knobs = knobs  # Triton's
        self._compiling = False  # whether a kernel was not on the disk

    def __call__(self, function: Callable[..., Any], inputs: tuple[Any, ...]) -> tuple[bool, Any]:
        """Whether what it returned makes sense, and that. If not, all is warmed up and compiled for the next call."""
        missing: dict[str, Any] = {}
        failed, result = False, None
        try:
            with self._noting(missing):
                result = function(*inputs)
        except RuntimeError:  # of numbers that make no sense, perhaps; if not, the second call will tell
            if not missing:
                raise
            failed = True
        if not missing:
            return True, result
        result = None  # the next call may need its memory
        _compile(missing)
        return (True, function(*inputs)) if failed else (False, None)

    @contextmanager
    def _noting(self, missing: dict[str, Any]) -> Iterator[None]:
        def asked(*, fn: Any, compile: Any, **_: Any) -> bool:  # noqa: A002
            """Triton asks about every kernel it does not have yet; told yes, it neither compiles nor launches it."""
            note = self._compiling and _can_wait(compile)
            if note:
                missing[compile["specialization_data"]] = fn.jit_function
            return note

        def compiled(*, cache_hit: bool, **_: Any) -> None:
            self._compiling |= not cache_hit

        runtime, compilation = self._knobs.runtime, self._knobs.compilation
        before = runtime.jit_cache_hook, compilation.listener
        runtime.jit_cache_hook, compilation.listener = asked, compiled
        try:
            yield
        finally:
            runtime.jit_cache_hook, compilation.listener = before


def _can_wait(kernel: Any) -> bool:
    """What a kernel of whole numbers makes may be an index, which must make sense. And `preload` knows no tuples."""
    tuples = any(isinstance(value, tuple) for value in kernel["constants"].values())
    return "fp32" in str(kernel["signature"]) and not tuples


def _compile(missing: dict[str, Any]) -> None:
    """All at once: most of it is done by C++ without Python's lock, or by programs (ptxas, the C compiler)."""
    with ThreadPoolExecutor() as pool:
        variants = defaultdict(list)
        binaries = pool.map(lambda kernel, data: kernel.preload(data), missing.values(), missing)
        for kernel, binary in zip(missing.values(), binaries, strict=True):
            variants[kernel].append(binary)
        list(pool.map(_load, variants.values()))


def _load(binaries: list[Any]) -> None:
    """One after the other, as they share what launches them, a little C program that the first one makes."""
    for binary in binaries:
        binary.run  # noqa: B018  # makes it ready to run
