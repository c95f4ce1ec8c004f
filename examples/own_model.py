"""A model of your own: any nn.Module whose constructor takes the shape of an example and the number of classes.

    python examples/own_model.py

Client models are pure functions of their weights: no dropout, no running statistics. One that breaks the rules is
refused in a sentence that names the layer.
"""

from __future__ import annotations

from torch import nn

from latecomer import LatecomerError, federate, make_task, train
from latecomer.methods.pefll import PeFLL


class Patches(nn.Sequential):
    """Looks at 4x4 patches, normalises within the client's own batch of features, then decides."""

    def __init__(self, shape, classes):
        channels, height, width = shape
        cells = (height // 4) * (width // 4)
        super().__init__(
            nn.Conv2d(channels, 32, kernel_size=4, stride=4),
            nn.GroupNorm(4, 32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * cells, classes),
        )


class Forgetful(Patches):
    """Breaks a rule: dropout is randomness that the engines cannot repeat."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.insert(3, nn.Dropout(0.5))


def main(rounds: int = 40) -> dict:
    federation = federate("digits", partition="classes", clients=20, unseen=0.2)
    try:
        make_task(federation, Forgetful)
    except LatecomerError as error:
        print(error)
    task = make_task(federation, Patches)
    method = PeFLL(task=task, clients=len(federation), members=federation.members, steps=10, lr=0.05, server_lr=2e-3)
    return train.run(method, federation, rounds=rounds, cohort=8, evaluate_every=10)


if __name__ == "__main__":
    result = main()
    print(f"seen {result['seen']['accuracy']:.1f} %, unseen {result['unseen']['accuracy']:.1f} %")
