"""PeFLL on CIFAR-10 at the paper's setting: rounds per second, and accuracy against time.

LATECOMER_DATA=... python benchmarks/pefll_cifar10.py [--rounds 5000] [any other setting of `latecomer run pefll`]
"""

from __future__ import annotations

from common import where
from latecomer.methods.pefll import PeFLL
from runs import given, go

SETTING = {
    "data": "cifar10", "partition": "classes", "clients": "100", "unseen": "0.1", "watch_unseen": "true", "seeds": "3",
}  # fmt: skip


def main() -> None:
    print(where())
    go("pefll", SETTING | given(PeFLL), every=10)


if __name__ == "__main__":
    main()
