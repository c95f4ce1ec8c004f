"""PeFLL on CIFAR-10 at the paper's setting: rounds per second, and accuracy against time.

LATECOMER_DATA=... python benchmarks/pefll_cifar10.py [--rounds 5000] [any other setting of `latecomer run pefll`]
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import torch

from common import where
from latecomer.cli import flags
from latecomer.experiment import Experiment
from latecomer.methods.pefll import PeFLL
from latecomer.run import Run
from latecomer.settings import Settings, settings_of
from latecomer.train import Training

SETTING = {"data": "cifar10", "partition": "classes", "clients": "100", "unseen": "0.1", "watch_unseen": "true"}


def main() -> None:
    print(where())
    known = settings_of(Settings).keys() | settings_of(PeFLL).keys()
    given = flags.read(sys.argv[1:], known, flags.switches(Settings))
    with tempfile.TemporaryDirectory() as folder:
        values = SETTING | {"seeds": "3", "out": folder, "name": "bench"} | given
        run = Run.begin(Experiment.parse("pefll", values))
        began = time.perf_counter()

        def show(training: Training, metrics: dict[str, Any] | None) -> None:
            if metrics is None or metrics["round"] % (10 * training.plan.evaluate_every):
                return
            seen, unseen = (_mean(metrics["runs"], key) for key in ("seen", "unseen"))
            rate = metrics["round"] / metrics["seconds"]
            print(
                f"{metrics['seconds']:7.1f} s  round {metrics['round']:5}  {rate:6.1f} rounds/s  "
                f"seen {seen:5.2f}  unseen {unseen:5.2f}"
            )

        result = run.go(show)
        print(result)
        print(f"in all {time.perf_counter() - began:.1f} s")
        if torch.cuda.is_available():
            print(f"peak GPU memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


def _mean(runs: list[dict[str, Any]], key: str) -> float:
    return sum(run[key]["accuracy"] for run in runs) / len(runs)


if __name__ == "__main__":
    main()
