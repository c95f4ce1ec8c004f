"""What the benchmarks share: made-up data of the right shape, and a line that says where a number was measured."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import numpy as np
import torch

import latecomer
from latecomer import Federation


def where() -> str:
    """Machine, versions and commit, for the head of every benchmark's output."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return (
        f"latecomer {latecomer.__version__} {commit}; torch {torch.__version__}; python {platform.python_version()}; "
        f"{platform.machine()}, {torch.get_num_threads()} threads; {gpu}"
    )


def noise(clients: int, examples: int, shape: tuple[int, int, int] = (32, 32, 3), classes: int = 10) -> Federation:
    """Clients with random pixels: as fast or slow as real ones."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (clients * examples, *shape), dtype=np.uint8)
    y = generator.integers(0, classes, clients * examples)
    rows = np.arange(clients * examples).reshape(clients, examples)
    return Federation.from_arrays(
        x, y, train=list(rows), test=list(rows[:, :8]), val=list(rows[:, :8]), classes=classes
    )


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
