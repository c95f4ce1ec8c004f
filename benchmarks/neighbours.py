"""Exact search in one large datastore: all distances in torch, against FAISS (extra `knn`), with the same answers.

    python benchmarks/neighbours.py [--examples 1000,5000,20000,100000] [--features 128] [--queries 100] [--k 10]

The two take turns, and the median of each counts. The time is that of a vote: search, weights and class shares.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch

from common import turns, where
from latecomer.nets.neighbours import Datastore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", default="1000,5000,20000,100000")
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print(where())
    generator = torch.Generator().manual_seed(0)
    for examples in map(int, options.examples.split(",")):
        keys = torch.randn(examples, options.features, generator=generator)
        labels = torch.randint(10, (examples,), generator=generator)
        queries = torch.randn(options.queries, options.features, generator=generator)
        everything = torch.ones(examples, dtype=torch.bool)
        stores = {name: Datastore(keys, labels, everything, 10, name) for name in ("torch", "faiss")}
        sides = {name: partial(store.votes, queries, (options.k,), (1.0,)) for name, store in stores.items()}
        seconds = turns(sides, options.repeats, queries.device)
        votes = {name: side() for name, side in sides.items()}
        torch_, faiss = (statistics.median(seconds[name]) for name in ("torch", "faiss"))
        gap = float((votes["torch"] - votes["faiss"]).abs().max())
        print(
            f"{examples:8,} x {options.features}  {options.queries} queries  torch {1000 * torch_:8.1f} ms  "
            f"FAISS {1000 * faiss:8.1f} ms  {torch_ / faiss:5.1f} x  largest difference of a vote {gap:.1e}"
        )


if __name__ == "__main__":
    main()
