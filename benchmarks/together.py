"""Many settings at once: N learning rates together against one after the other, in one run.

    python benchmarks/together.py [--settings 8] [--rounds 30] [--repeats 3] [--methods fedavg,pefll] [--device auto]

Digits, 20 clients of which 4 come late, 5 a round, the network `mlp`; evaluated at the end. Both ways do the same
work on the vector engine, and the benchmark compares their results. They take turns, and the best of the repeats
counts. On a GPU both replay CUDA graphs.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from common import turns, where
from latecomer import Federation, federate, make_engine, make_task, methods, train
from latecomer.engines import pick_device
from latecomer.nets.models import MLP

PLAN = {"cohort": 5, "evaluate_every": 10**9}
FEWER: dict[str, dict[str, Any]] = {"pefll": {"steps": 10}}


def settings(name: str, federation: Federation, count: int) -> list[Any]:
    """The same method with learning rates from a tenth of the default to the default."""
    kind, task = methods.get(name), make_task(federation, MLP)
    sizes = {"task": task, "clients": len(federation), "members": federation.members}
    highest = kind(**sizes).lr
    rates = [highest * 10 ** (-k / max(1, count - 1)) for k in range(count)]
    return [kind(**sizes, lr=rate, **FEWER.get(name, {})) for rate in rates]


def measure(name: str, count: int, rounds: int, repeats: int, device: str) -> tuple[float, float, float]:
    """Seconds one after the other, seconds together, and the largest difference of an accuracy."""
    federation = federate("digits", partition="classes", clients=20, unseen=0.2)
    several = settings(name, federation, count)

    def apart() -> list[dict[str, Any]]:
        engines = [make_engine("vector", method, [federation], device) for method in several]
        return [train.run(m, federation, e, rounds=rounds, **PLAN) for m, e in zip(several, engines, strict=True)]

    def together() -> list[dict[str, Any]]:
        return train.together([(m, federation) for m in several], "vector", device, rounds=rounds, **PLAN)

    found: dict[str, list[dict[str, Any]]] = {}
    sides = {
        "apart": lambda: found.update(apart=apart()),
        "together": lambda: found.update(together=together()),
    }
    best = {way: min(seconds) for way, seconds in turns(sides, repeats, pick_device(device)).items()}
    pairs = zip(found["apart"], found["together"], strict=True)
    gap = max(abs(a[part]["accuracy"] - b[part]["accuracy"]) for a, b in pairs for part in ("seen", "unseen"))
    return best["apart"], best["together"], gap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default="2,8,32")
    parser.add_argument("--methods", default="fedavg,pefll")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    print(where())
    for name in options.methods.split(","):
        for count in map(int, options.settings.split(",")):
            apart, together, gap = measure(name, count, options.rounds, options.repeats, options.device)
            print(
                f"{name:8} {count:3} settings, {options.rounds} rounds: one after the other {apart:7.2f} s, together "
                f"{together:7.2f} s, {apart / together:5.2f} x; accuracies differ by at most {gap:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
