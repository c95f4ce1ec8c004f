"""Data of your own: arrays, and for every client the rows that it owns.

    python examples/own_data.py

Twelve sensors measure the same two things, each with an offset of its own; the last three arrive after training.
The same arrays as an .npz file (x_train, y_train, x_test, y_test, client_train, client_test) work from the command
line: latecomer run fedavg --data npz:sensors.npz --partition natural --clients 0 --unseen 0.25
"""

from __future__ import annotations

import numpy as np

from latecomer import Federation, make_task, train
from latecomer.methods.pefll import PeFLL
from latecomer.nets.models import MLP

SENSORS, EACH = 12, 60


def sensors() -> Federation:
    random = np.random.default_rng(0)
    offset = random.normal(size=(SENSORS, 1, 2)) * 2
    x = (random.normal(size=(SENSORS, EACH, 2)) + offset).astype(np.float32)
    y = ((x - offset).sum(-1) > 0).astype(np.int64)  # what it means depends on the sensor
    rows = np.arange(SENSORS * EACH).reshape(SENSORS, EACH)
    return Federation.from_arrays(
        x.reshape(-1, 2), y.reshape(-1), train=rows[:, :30], val=rows[:, 30:40], test=rows[:, 40:], members=9
    )


def main(rounds: int = 60) -> dict:
    federation = sensors()
    method = PeFLL(
        task=make_task(federation, MLP), clients=len(federation), members=9, steps=10, lr=0.05, server_lr=2e-3
    )
    return train.run(method, federation, rounds=rounds, cohort=6, evaluate_every=10)


if __name__ == "__main__":
    result = main()
    print(f"seen {result['seen']['accuracy']:.1f} %, unseen {result['unseen']['accuracy']:.1f} %")
