"""FLowDUP on CIFAR-10 at the paper's setting, for each share of labelled clients: accuracy against rounds and time.

LATECOMER_DATA=... python benchmarks/flowdup_cifar10.py [--labelled 0.2] [any other setting of `latecomer run flowdup`]

475 members, 25 validators and 100 latecomers have 100 images of two classes each, the latecomers' from the test images.
Validators select the reported round; latecomers are watched along the way and select nothing.
"""

from __future__ import annotations

from common import where
from latecomer.methods.flowdup import FLowDUP
from runs import given, go

SETTING = {
    "data": "cifar10", "partition": "classes", "split": "flowdup", "unseen_labelled": "false", "clients": "600",
    "unseen": str(100 / 600), "validators": str(25 / 600), "validation": "0", "model": "cnn64", "seeds": "3",
    "evaluate_every": "20", "watch_unseen": "true",
}  # fmt: skip
LAMBDA = {"1.0": "1e-4", "0.2": "1e-3", "0.1": "1e-2"}  # by the share of labelled clients; to be tuned on validators


def main() -> None:
    print(where())
    chosen = given(FLowDUP)
    shares = [chosen["labelled"]] if "labelled" in chosen else list(LAMBDA)
    for share in shares:
        values = SETTING | {"labelled": share, "lambda_reg": LAMBDA.get(share, "1e-3")} | chosen
        print(f"labelled {values['labelled']}, lambda {values['lambda_reg']}")
        go("flowdup", values, every=5)


if __name__ == "__main__":
    main()
