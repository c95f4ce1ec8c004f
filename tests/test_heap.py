"""Freed memory is kept, unless a user has chosen otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest

from latecomer.engines import heap

PAGES = 48 * 2**20 // 4096


@pytest.fixture(autouse=True)
def nobody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in heap.CHOSEN:
        monkeypatch.delenv(name, raising=False)


FAULTS = """
import resource, torch
from latecomer.engines import heap
assert heap.keep()
faults = []
for _ in range(9):  # the heap grows to its size, and something small may come to lie where the last array was
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert torch.ones({count}).sum() == {count}
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's own")
def test_a_large_array_is_made_of_pages_that_were_there() -> None:
    """In a process of its own, whose heap has no holes yet."""
    if not heap.keep():
        pytest.skip("the C library cannot")
    script = FAULTS.format(count=PAGES * 1024)
    faults = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert int(faults) < PAGES / 10


@pytest.mark.parametrize("name", heap.CHOSEN)
def test_a_users_choice_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert not heap.keep()


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not heap.keep()
