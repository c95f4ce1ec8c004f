"""One client in ten sends a hundred times its update: what that does to plain averaging, and to what withstands it.

    python benchmarks/hostile.py [--seeds 5] [--rounds 30] [--method fedavg]

FedAvg on digits with all of ten clients in every round: dealt alike, and two classes to each. PeFLL and pFedHN with 40
members, four of them hostile, of which ten are drawn. The hostile ones train as the others do, and multiply what they
answer. Accuracies are those of all members after the last round: nothing selects.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from common import where
from latecomer.clients import Ask, Engine
from latecomer.faults import HUGE
from latecomer.runs.experiment import Experiment
from latecomer.train import Training

EVERY = 10  # of so many clients the first is hostile
STEP = "fit"  # at which it is
MEANS: dict[str, dict[str, Any]] = {
    "mean": {},
    "mean, clipped at 1": {"clip_update": 1.0},
    "median": {"average": "median"},
    "trimmed": {"average": "trimmed"},
    "krum": {"average": "krum"},
    "geometric": {"average": "geometric"},
}
LIMITS: dict[str, dict[str, Any]] = {
    "no limit": {},
    **{f"clipped at {most:g}": {"clip_update": most} for most in (0.3, 1.0, 3.0)},
}
TEN = {"data": "digits", "clients": 10, "cohort": 0, "lr": 0.1, "epochs": 2, "batch": 16, "rounds": 30}
MANY = {"data": "digits", "clients": 50, "unseen": 0.2, "cohort": 10, "steps": 10, "lr": 0.05, "rounds": 100}
SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, dict[str, Any]]]] = {
    "FedAvg, dealt alike": ("fedavg", {**TEN, "partition": "iid"}, MEANS),
    "FedAvg, two classes each": ("fedavg", {**TEN, "partition": "classes"}, MEANS),
    "PeFLL, two classes each": ("pefll", {**MANY, "server_lr": 0.002}, LIMITS),
    "pFedHN, two classes each": ("pfedhn", {**MANY, "rounds": 300}, LIMITS),
}


class Besieged:
    """An engine some of whose clients are hostile."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.device = engine, engine.device
        self.one_by_one, self.memories, self.remember = engine.one_by_one, engine.memories, engine.remember

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        for ask in asks:
            if step == STEP and ask.scratch is None:
                ask.faults = (ask.ids % EVERY == 0).long().to(self.device) * HUGE
        self.engine.exchange(step, asks)


def accuracies(name: str, settings: dict[str, Any], hostile: bool) -> list[float]:
    """Of the members after the last round, in percent: one number a seed."""
    training = Experiment.parse(name, settings | {"evaluate_every": settings["rounds"]}).training()
    if hostile:
        training = Training(training.methods, training.federations, Besieged(training.engine), training.plan)
    return [members.summary()["accuracy"] for members, _ in training.complete()]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=0, help="0: 30 of FedAvg, 100 of PeFLL, 300 of pFedHN")
    parser.add_argument("--method", default="", help="this one alone")
    options = parser.parse_args(words)
    print(where(), vars(options), sep="\n")
    began = time.perf_counter()
    for title, (name, settings, rules) in SETTINGS.items():
        if options.method in ("", name):
            print(f"\n| {title} | all honest | one in ten hostile |\n|---|---|---|")
            for rule, chosen in rules.items():
                whole = settings | chosen | {"seeds": options.seeds, "rounds": options.rounds or settings["rounds"]}
                honest, attacked = (spread(accuracies(name, whole, hostile)) for hostile in (False, True))
                print(f"| {rule} | {honest} | {attacked} |", flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s")


def spread(several: Sequence[float]) -> str:
    return f"{fmean(several):.1f}" + (f" ± {stdev(several):.1f}" if len(several) > 1 else "")


if __name__ == "__main__":
    main()
