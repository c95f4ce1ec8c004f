"""FLowDUP on CIFAR-10 at the paper's setting, for each share of labelled clients: accuracy against rounds and time.

LATECOMER_DATA=... python benchmarks/flowdup_cifar10.py [--labelled 0.2] [any other setting of `latecomer run flowdup`]

475 members, 25 validators and 100 latecomers have 100 images of two classes each, the latecomers' from the test images.
Validators select the reported round; latecomers are watched along the way and select nothing.
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
from latecomer.methods.flowdup import FLowDUP
from latecomer.run import Run
from latecomer.settings import Settings, settings_of
from latecomer.train import Training

SETTING = {
    "data": "cifar10", "partition": "classes", "split": "flowdup", "unseen_labelled": "false", "clients": "600",
    "unseen": str(100 / 600), "validators": str(25 / 600), "validation": "0", "model": "cnn64", "seeds": "3",
    "evaluate_every": "20", "watch_unseen": "true",
}  # fmt: skip
LAMBDA = {"1.0": "1e-4", "0.2": "1e-3", "0.1": "1e-2"}  # by the share of labelled clients; to be tuned on validators


def main() -> None:
    print(where())
    known = settings_of(Settings).keys() | settings_of(FLowDUP).keys()
    given = flags.read(sys.argv[1:], known, flags.switches(Settings) | flags.switches(FLowDUP))
    shares = [given["labelled"]] if "labelled" in given else list(LAMBDA)
    for share in shares:
        train(SETTING | {"labelled": share, "lambda_reg": LAMBDA.get(share, "1e-3")} | given)


def train(values: dict[str, str]) -> None:
    print(f"labelled {values['labelled']}, lambda {values['lambda_reg']}")
    with tempfile.TemporaryDirectory() as folder:
        run = Run.begin(Experiment.parse("flowdup", values | {"out": folder, "name": "bench"}))
        began = time.perf_counter()

        def show(training: Training, metrics: dict[str, Any] | None) -> None:
            last = training.round == training.plan.rounds
            if metrics is None or (metrics["round"] % (5 * training.plan.evaluate_every) and not last):
                return
            runs = metrics["runs"]
            validation = sum(line["validation"] for line in runs) / len(runs)
            watched = [line["unseen"]["accuracy"] for line in runs if "unseen" in line]
            unseen = sum(watched) / max(1, len(watched))
            rate = metrics["round"] / metrics["seconds"]
            print(
                f"{metrics['seconds']:7.1f} s  round {metrics['round']:5}  {rate:6.1f} rounds/s  "
                f"validation {validation:5.2f}" + f"  unseen {unseen:5.2f}" * bool(watched),
                flush=True,
            )

        print(run.go(show))
        print(f"in all {time.perf_counter() - began:.1f} s")
        if torch.cuda.is_available():
            print(f"peak GPU memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
