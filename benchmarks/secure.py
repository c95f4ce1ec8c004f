"""What a secure mean costs a client and the server, and how far it is from the plain mean.

    python benchmarks/secure.py [--cohorts 10,30,100] [--sizes 10000,100000,1000000] [--lost 0.3]

Every line is one exchange by the real protocol in one process. That share of the clients is lost after they have shared
their secrets, which is the dearest moment for the server. Seconds are those of one client, in all four stages, and of
the server; bytes are those of one client that stays to the end, besides the message of the step. `plain` is what the
same numbers take in single precision.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch

import common
from latecomer.secure.fixed import Fixed
from latecomer.secure.protocol import Client, unmasked
from latecomer.secure.sizes import KEYS, SEALED, SHARE, WORD

FIXED = Fixed(8.0)


@dataclass(frozen=True)
class Cost:
    """Of one exchange."""

    client: float  # seconds
    server: float  # seconds
    up: int  # bytes
    down: int  # bytes
    error: float  # largest, in units of the resolution


def measure(cohort: int, size: int, lost: float) -> Cost:
    """One exchange in which every client has one example more than the one before it."""
    generator = torch.Generator().manual_seed(0)
    changes = [torch.randn(size, generator=generator) for _ in range(cohort)]
    began = time.perf_counter()
    begun = {client: Client.begin(client) for client in range(cohort)}
    keys = {client: advertised for client, (_, advertised) in begun.items()}
    shared = {client: state.share(keys) for client, (state, _) in begun.items()}
    early, left = time.perf_counter() - began, range(cohort)[round(lost * cohort) :]
    masking, adding, total, states = 0.0, 0.0, np.zeros(size + 1, np.uint64), {}
    for client in left:
        began = time.perf_counter()
        whole = FIXED.whole(FIXED.round({"change": changes[client]}), client + 1).numpy().view(np.uint64)
        states[client], words = shared[client][0].mask(range(cohort), whole)
        masked = time.perf_counter()
        total += words
        masking, adding = masking + masked - began, adding + time.perf_counter() - masked
    began = time.perf_counter()
    given = {
        client: state.unmask({other: sealed[client] for other, (_, sealed) in shared.items()}, left)[1]
        for client, state in states.items()
    }
    late, began = time.perf_counter() - began, time.perf_counter()
    total = unmasked(total, keys, range(cohort), left, given)
    sums, weight = FIXED.sums(torch.from_numpy(total.view(np.int64)))
    mean = sums / weight
    server = adding + time.perf_counter() - began
    plain = torch.zeros(size, dtype=torch.float64)
    for client in left:
        plain += changes[client].double().clamp(-FIXED.limit, FIXED.limit) * (client + 1)
    error = float((mean - plain / weight).abs().max()) / FIXED.resolution
    up = KEYS + cohort * (SEALED + SHARE) + WORD * (size + 1)
    down = cohort * (KEYS + 2 * WORD + SEALED) + WORD * (1 + len(left))
    return Cost(early / cohort + (masking + late) / len(left), server, up, down, error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohorts", default="10,30,100")
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--lost", type=float, default=0.3)
    arguments = parser.parse_args()
    print(common.where())
    print(f"resolution {FIXED.resolution:.3g}, clipped to {FIXED.limit:g}; {arguments.lost:.0%} of the clients lost")
    print("| cohort | numbers | client, s | server, s | up, kB | down, kB | plain up, kB | largest error, units |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for cohort in map(int, arguments.cohorts.split(",")):
        for size in map(int, arguments.sizes.split(",")):
            cost = measure(cohort, size, arguments.lost)
            kilobytes = [f"{count / 1000:,.1f}" for count in (cost.up, cost.down, 4 * size)]
            cells = [cohort, f"{size:,}", f"{cost.client:.3f}", f"{cost.server:.3f}", *kilobytes, f"{cost.error:.3f}"]
            print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
