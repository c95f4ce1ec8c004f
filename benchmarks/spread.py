"""The Ray engine on this machine: two workers against one, what crosses, and what a unit and a byte cost.

    python benchmarks/spread.py                # all of it, in about two minutes on two idle cores
    python benchmarks/spread.py speed --repeats 9
    python benchmarks/spread.py traffic
    python benchmarks/spread.py costs

speed     a round of FedAvg with a LeNet on 32 clients: by one worker, by two, and in this process on one thread
traffic   bytes between workers and driver in `Clients.mean`, for cohorts of several sizes in as many units
costs     seconds of an exchange that computes nothing, by the number of its units and the bytes that clients keep
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from common import noise, turns, where
from latecomer import make_task
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.engines.ray.cluster import connect
from latecomer.method import Home, Method, Sending, Tree, asked_in
from latecomer.methods.fedavg import FedAvg
from latecomer.nets.models import LeNet

CPU = torch.device("cpu")
UNITS = 4  # of an exchange, where traffic is measured


def fedavg(clients: int, examples: int) -> tuple[FedAvg, Any]:
    federation = noise(clients, examples)
    return FedAvg(task=make_task(federation, LeNet), clients=clients, members=clients), federation


def speed(repeats: int, clients: int = 32, examples: int = 256) -> None:
    from latecomer.engines.ray.engine import choose

    method, federation = fedavg(clients, examples)
    state = method.init(torch.Generator().manual_seed(0))
    engines = {
        f"{count} worker{'s' * (count > 1)}": make("ray", method, federation, "cpu", workers=count) for count in (2, 1)
    }
    engines["in process"] = make(choose(method, [federation], "cpu"), method, federation, "cpu", chunk=4)
    for engine in engines.values():
        while getattr(getattr(engine, "crew", None), "coming", False):  # all workers are there before the clock starts
            method.round(state, Clients(engine, torch.arange(8), 0))
    sides = {
        name: lambda engine=engine: method.round(state, Clients(engine, torch.arange(clients), 0))
        for name, engine in engines.items()
    }
    seconds = turns(sides, repeats, CPU)
    for name, each in seconds.items():
        print(f"{name:<12} {statistics.median(each):7.3f} s a round (median of {len(each)}), best {min(each):.3f}")
    one, two = seconds["1 worker"], seconds["2 workers"]
    ratios = sorted(a / b for a, b in zip(one, two, strict=True))
    print(f"two workers against one: {statistics.median(ratios):.2f} (median; {ratios[0]:.2f} to {ratios[-1]:.2f})")
    inside = sorted(a / b for a, b in zip(seconds["in process"], one, strict=True))
    print(f"one worker against in process: {statistics.median(inside):.2f}")


def size(value: Any) -> int:
    """Bytes that Ray makes of something."""
    from ray._private.worker import global_worker

    from latecomer.engines.ray.cargo import lending

    with lending():
        return int(global_worker.get_serialization_context().serialize(value).total_bytes)


class Scales:
    """Between an engine and its crew: weighs what crosses."""

    def __init__(self, crew: Any) -> None:
        self.crew, self.down, self.up = crew, 0, 0

    def do(self, calls: Any) -> Iterator[Any]:
        for call in calls:
            step, ask, rows, _ = call.args
            self.down += size((step, ask.part(rows)))
        for found in self.crew.do(calls):
            self.up += size(found)
            yield found


def traffic(cohorts: tuple[int, ...] = (16, 32, 64, 128)) -> None:
    method, federation = fedavg(max(cohorts), 8)
    state = method.init(torch.Generator().manual_seed(0))
    print(f"one model: {size(state):,} bytes, sent once a machine; every exchange has {UNITS} units")
    for cohort in cohorts:
        for what in ("mean", "run"):
            engine: Any = make("ray", method, federation, "cpu", workers=2, chunk=cohort // UNITS)
            engine.crew = Scales(engine.crew)
            clients = Clients(engine, torch.arange(cohort), 0)
            getattr(clients, what)(method.fit, shared=state)
            crossed = f"{engine.crew.down:>12,} bytes to workers, {engine.crew.up:>12,} back"
            print(f"Clients.{what:<4} of {cohort:>3} clients: {crossed}")


@dataclass(frozen=True, kw_only=True)
class Keeps(Method):
    """Clients that do nothing and keep so many numbers."""

    numbers: int = 0

    def memory(self, generator: torch.Generator) -> Tree:
        return {"kept": torch.zeros(self.numbers)} if self.numbers else {}

    @asked_in("round")
    def nothing(self, home: Home) -> Tree:
        return {"done": home.round.float()}

    def init(self, generator: torch.Generator) -> Tree:
        return {}

    def round(self, state: Tree, clients: Clients) -> Tree:
        clients.mean(self.nothing)
        return state

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return Sending()

    def model(self, home: Home, **sent: Tree) -> Tree:
        return {}


def costs(repeats: int) -> None:
    federation = noise(256, 8)
    task = make_task(federation, LeNet)
    for clients, chunk, numbers in (
        (1, 1, 0),
        (64, 1, 0),
        (256, 1, 0),
        (256, 16, 0),
        (32, 8, 0),
        (32, 8, 131_072),
        (32, 8, 1_048_576),
    ):
        method = Keeps(task=task, clients=256, members=256, numbers=numbers)
        engine: Any = make("ray", method, federation, "cpu", chunk=chunk)
        seconds = []
        for number in range(repeats + 3):
            began = time.perf_counter()
            method.round({}, Clients(engine, torch.arange(clients), number))
            seconds.append(time.perf_counter() - began)
        kept = f", each keeps {4 * numbers / 1e6:.1f} MB" if numbers else ""
        took = 1e3 * statistics.median(seconds[3:])
        print(f"{clients:>3} clients in units of {chunk:>2}{kept}: {took:8.2f} ms an exchange")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", nargs="*", default=["speed", "traffic", "costs"])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    connect()
    print(where())
    for what in given.what:
        print(f"\n{what}")
        traffic() if what == "traffic" else speed(given.repeats) if what == "speed" else costs(given.repeats)


if __name__ == "__main__":
    main()
