"""Freed memory is kept for the next use, where the C library would give it back to the system at once.

glibc hands every array of 32 MiB and more back when it is freed. The next one of its size comes page by page, filled
with zeros, at 2 microseconds for a page of 4 kB where this was measured (docs/speed.md): more than arithmetic.
"""

from __future__ import annotations

import ctypes
import os
import sys

import torch

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # the names of glibc's mallopt, without their M_
KEPT = 2**30  # bytes at the end of the heap that may lie idle
CHOSEN = ("GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep(device: torch.device | str = "cpu") -> bool:
    """Keep freed memory, for the rest of the process; whether that was done. A user's own choice stays.

    It is for processes that compute on a CPU, and it changes all of the process: so only the command line calls it,
    and whoever writes a program of their own and wants the same speed.
    """
    if torch.device(device).type != "cpu":
        return False
    if not sys.platform.startswith("linux") or any(name in os.environ for name in CHOSEN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return mallopt is not None and bool(mallopt(TRIM_THRESHOLD, KEPT)) and bool(mallopt(MMAP_MAX, 0))
