"""A sweep: several settings and several seeds of a method, trained together.

    python examples/sweep.py

`train.together` takes a list of runs. Those that differ in rates and strengths alone share every exchange with the
clients, so on a GPU, and for small models on a CPU, many settings cost little more than one. Validation data choose
among them; test data are looked at for the chosen one.
"""

from __future__ import annotations

from statistics import fmean

from latecomer import federate, make_task, methods, train
from latecomer.nets.models import MLP

RATES = (0.003, 0.03, 0.3)


def main(rounds: int = 40) -> dict:
    federations = [federate("digits", partition="classes", clients=20, unseen=0.2, seed=seed) for seed in range(3)]
    known = {
        "task": make_task(federations[0], MLP),
        "clients": len(federations[0]),
        "members": federations[0].members,
    }
    fedavgplus = methods.get("fedavgplus")
    runs = [(fedavgplus(**known, lr=rate), federations) for rate in RATES]
    validation = dict.fromkeys(range(len(runs)), 0.0)

    def note(run: int, metrics: dict) -> None:
        validation[run] = max(validation[run], fmean(seed["validation"] for seed in metrics["runs"]))

    results = train.together(runs, rounds=rounds, cohort=8, evaluate_every=10, progress=note)
    for run, rate in enumerate(RATES):
        print(f"lr {rate}: {validation[run]:.1f} % on validation data")
    return results[max(validation, key=validation.__getitem__)]


if __name__ == "__main__":
    result = main()
    print(f"the best of them: seen {result['seen']['accuracy']:.1f} %, unseen {result['unseen']['accuracy']:.1f} %")
