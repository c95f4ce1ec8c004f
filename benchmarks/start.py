"""How long a run takes to start on a GPU: all that comes before the first round, then rounds and evaluations.

    python benchmarks/start.py pefll --data cifar10 --partition classes --clients 100 --unseen 0.1 --seeds 3

Takes what `latecomer run` takes. Two processes: Triton's kernels compiled, then taken from the disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

WAYS = ("compiled", "from the disk")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            print(f"{way}:", flush=True)
            command = [sys.executable, __file__, *sys.argv[1:]]
            subprocess.run(command, env=os.environ | {"TRITON_CACHE_DIR": folder, "STUDY": "1"}, check=True)


def study(method: str, *words: str) -> None:
    from latecomer.runs import host
    from latecomer.runs.experiment import Experiment  # here: what it imports is part of the start

    values = {name.removeprefix("--").replace("-", "_"): value for name, value in zip(*[iter(words)] * 2, strict=True)}
    experiment = Experiment.parse(method, values)
    host.prepare(experiment.settings)
    training = clocked("before the first round", experiment.training)
    for what in (training.advance, training.evaluate):
        for number in ("first", "second", "third"):
            clocked(f"{number} {'round' if what == training.advance else 'evaluation'}", what)


def clocked(name: str, function: Callable[[], Any]) -> Any:
    import torch

    begin = time.perf_counter()
    result = function()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    print(f"  {time.perf_counter() - begin:6.2f} s  {name}", flush=True)
    return result


if __name__ == "__main__":
    if "STUDY" in os.environ:
        study(*sys.argv[1:])
    else:
        main()
