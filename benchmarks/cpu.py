"""Speed and memory on a CPU, as ratios: a round of PeFLL against a plain PyTorch loop, and the engines on digits.

    python benchmarks/cpu.py [--parts round,digits,memory] [--repeats 5] [--threads 2]

round   5 LeNets, 50 local steps of batch 32 (SGD with momentum, weight decay and clipping): a whole round of PeFLL,
        server and all, against the local steps alone, written by hand with nn.Module, torch.optim and channels last.
digits  A round of the demo's methods on its digits (3 seeds in lockstep), vector (with tapes, and with --graphs false)
        against loop: with 10 clients a seed, as in the demo, and with all 56 members.
memory  The largest resident size of a process that does nothing but four such rounds of PeFLL.

Both sides take turns and the best of the repeats counts, so that a busy machine disturbs both alike. What should come
out: a round costs at most 1.05 plain loops and stays under 1 GB. `auto takes` is the choice of `--engine auto`. With
--threads 1 the processor time, in brackets, is worth more than the clock where others use the machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import noise, where
from latecomer import make_task
from latecomer.clients import Clients
from latecomer.engines.auto import faster
from latecomer.engines.loop import Loop
from latecomer.methods.pefll import PeFLL
from latecomer.nets.models import builder

CLIENTS, MEMBERS, EXAMPLES = 5, 100, 500  # of a cohort; in all; each (as many as CIFAR-10 has)
WARM_UP = 3  # rounds: a tape is recorded in the second, and checked in the third


class Plain(nn.Module):
    """PeFLL's LeNet as one writes it by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 5), nn.Conv2d(16, 32, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(800, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        out: Tensor = self.fc3(F.relu(self.fc2(x)))
        return out


def by_hand(x: Tensor, y: Tensor, method: PeFLL) -> None:
    """The local steps of a round, on images that are normalised already and lie with channels last."""
    decay = 2 * method.lambda_theta
    for client in range(CLIENTS):
        net = Plain().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = torch.optim.SGD(net.parameters(), method.lr, method.momentum, weight_decay=decay)
        batches: list[Tensor] = []
        for _ in range(method.steps):
            batches = batches or [*(torch.randperm(EXAMPLES) + client * EXAMPLES).split(method.batch)]
            rows = batches.pop()
            optimiser.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            nn.utils.clip_grad_norm_(net.parameters(), method.clip)
            optimiser.step()


def prepared() -> tuple[PeFLL, Loop, Callable[[int], None]]:
    """PeFLL as its authors run it on CIFAR-10, on random pixels; a round of it is a call."""
    federation = noise(MEMBERS, EXAMPLES)
    task = make_task(federation, builder("lenet", federation.examples.shape))
    method = PeFLL(task=task, clients=MEMBERS, members=MEMBERS)
    engine = Loop(method, [federation], "cpu")
    state = method.init(torch.Generator().manual_seed(0))

    def once(number: int) -> None:
        nonlocal state
        state = method.round(state, Clients(engine, torch.arange(CLIENTS), number))

    return method, engine, once


def rounds(repeats: int) -> None:
    method, engine, once = prepared()
    examples = engine.homes.federations[0].examples
    x = (examples.x.permute(0, 3, 1, 2) / 255.0).contiguous(memory_format=torch.channels_last)
    sides = {"plain loop": lambda _: by_hand(x, examples.y.long(), method), "latecomer": once}
    best = turns(sides, repeats)
    clock, busy = best["plain loop"]
    for name, (seconds, spent) in best.items():
        each, cost = (1000 * value / CLIENTS / method.steps for value in (seconds, spent))
        ratios = f"{seconds / clock:5.2f} ({spent / busy:.2f}) x plain loop"
        print(f"round    {name:10}  {each:6.2f} ({cost:.2f}) ms a client-step  {ratios}", flush=True)
    print(f"         auto takes {faster(method, engine.homes.federations, torch.device('cpu'))}")


def digits(repeats: int) -> None:
    from latecomer.cli.demo import METHODS, SPLIT  # here, because a process that measures its memory needs neither
    from latecomer.runs.experiment import Experiment

    threads, members = torch.get_num_threads(), round(SPLIT["clients"] * (1 - SPLIT["unseen"]))
    for name, own in METHODS.items():
        for cohort in (SPLIT["cohort"], members):
            words = {**SPLIT, **own, "cohort": cohort, "threads": threads, "name": name, "out": "."}
            ways: dict[str, dict[str, Any]] = {
                "loop": {"engine": "loop"},
                "vector, untaped": {"engine": "vector", "graphs": False},
                "vector": {"engine": "vector"},
            }
            all_ways = {way: Experiment.parse(name, {**words, **more}).training() for way, more in ways.items()}
            sides = {way: (lambda _, training=training: training.advance()) for way, training in all_ways.items()}
            best = turns(sides, repeats)
            clock, busy = best["loop"]
            for way, (seconds, spent) in best.items():
                ratios = f"{clock / seconds:5.2f} ({busy / spent:.2f}) x as fast as loop"
                times = f"{1000 * seconds:7.1f} ({1000 * spent:.1f}) ms a round"
                print(f"digits   {name:10} {cohort} clients  {way:15} {times}  {ratios}", flush=True)
        taken = faster(all_ways["loop"].methods[0], all_ways["loop"].federations, torch.device("cpu"))
        print(f"         auto takes {taken}")


def turns(sides: dict[str, Callable[[int], None]], repeats: int) -> dict[str, tuple[float, float]]:
    """The shortest time of each, in seconds by the clock and of the processor."""
    best = dict.fromkeys(sides, (float("inf"), float("inf")))
    for repeat in range(-WARM_UP, repeats):
        for name, work in sides.items():
            began = time.perf_counter(), time.process_time()
            work(repeat + WARM_UP)
            took = time.perf_counter() - began[0], time.process_time() - began[1]
            if repeat >= 0:
                best[name] = min(best[name][0], took[0]), min(best[name][1], took[1])
    return best


def memory(repeats: int) -> None:
    command = [sys.executable, __file__, "--parts", "own-memory", "--threads", str(torch.get_num_threads())]
    megabytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    print(f"memory   {megabytes} MB at most, of 1000 allowed")


def own_memory(repeats: int) -> None:
    _, _, once = prepared()
    for number in range(4):
        once(number)
    lines = Path("/proc/self/status").read_text().splitlines()  # getrusage would tell the parent's peak if it is higher
    print(next(int(line.split()[1]) * 1024 // 10**6 for line in lines if line.startswith("VmHWM")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="round,digits,memory")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{where()}; load {os.getloadavg()[0]:.1f} before")
    parts = {"round": rounds, "digits": digits, "memory": memory, "own-memory": own_memory}
    for part in options.parts.split(","):
        parts[part](options.repeats)


if __name__ == "__main__":
    main()
