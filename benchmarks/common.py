"""What the benchmarks share: made-up data, the plain loop to compare with, a fair clock, where a figure is from."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import latecomer
from latecomer import Federation, make_task, tree
from latecomer.clients import Clients, Engine
from latecomer.learn import SGD
from latecomer.methods.pfedhn import PFedHN
from latecomer.nets.models import builder
from latecomer.tree import Tree

Data = tuple[Tensor, Tensor]
"""One client's examples, as its model wants them, and their labels."""


# where and on what


def where() -> str:
    """Machine, versions and commit, for the head of every benchmark's output."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return (
        f"latecomer {latecomer.__version__} {commit()}; torch {torch.__version__}; python {platform.python_version()}; "
        f"{processor()}, {torch.get_num_threads()} threads; {gpu}"
    )


def commit() -> str:
    """The commit that runs, with `-dirty` if tracked files were changed; empty where there is no checkout.

    The history of measurements does not count: a measurement must not spoil the next one.
    """
    found = _git("describe", "--always")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/benchmarks/history.jsonl")
    return found + "-dirty" * bool(changed)


def _git(*words: str) -> str:
    try:
        found = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return found.stdout.strip()


def processor() -> str:
    """The CPU's model, where the system tells."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return " ".join((names or [platform.processor() or platform.machine()])[0].split())


# the clock

EAGER = ("plain", "loop")  # sides that capture nothing, so that one time warms them up


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def turns(
    sides: Mapping[str, Callable[[], object]], repeats: int, device: torch.device, enough: float = float("inf")
) -> dict[str, list[float]]:
    """Seconds of every repeat of every side. They take turns, so that a busy machine disturbs all alike.

    No repeat begins after `enough` seconds, but for the first.
    """
    start = time.perf_counter()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    warm = 3 if device.type == "cuda" else 1  # on a GPU, the second time captures a graph
    for repeat in range(warm + repeats):
        if repeat > warm and time.perf_counter() - start > enough:
            break
        for name, work in sides.items():
            if 0 < repeat < warm and name in EAGER:
                continue
            wait(device)
            began = time.perf_counter()
            work()
            wait(device)
            if repeat >= warm:
                seconds[name].append(time.perf_counter() - began)
    return seconds


# the data


def noise(clients: int, examples: int, shape: tuple[int, int, int] = (32, 32, 3), classes: int = 10) -> Federation:
    """Clients with random pixels: as fast or slow as real ones."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (clients * examples, *shape), dtype=np.uint8)
    y = generator.integers(0, classes, clients * examples)
    rows = np.arange(clients * examples).reshape(clients, examples)
    return Federation.from_arrays(
        x, y, train=list(rows), test=list(rows[:, :8]), val=list(rows[:, :8]), classes=classes
    )


# local training: latecomer's exchange, and the plain loop


class Cohort:
    """All clients of a federation train for some steps, each from its own weights, and answer what they changed."""

    def __init__(self, federation: Federation, model: str, steps: int, device: torch.device, batch: int = 32) -> None:
        self.rows, self.device, self.federation = len(federation), device, federation
        self.task = make_task(federation, builder(model, federation.examples.shape))
        self.method = PFedHN(task=self.task, clients=self.rows, members=self.rows, steps=steps, batch=batch)
        params = tree.to(self.task.model.fresh(torch.Generator().manual_seed(0)), device)
        self.params = tree.map(lambda leaf: leaf.expand(self.rows, *leaf.shape).contiguous(), params)
        self.round = 0

    def exchange(self, engine: Engine) -> Tree:
        self.round += 1
        return (
            Clients(engine, torch.arange(self.rows), self.round).run(self.method.fit, each={"params": self.params}).each
        )

    def plain(self) -> Callable[[], Tree]:
        """The same, as one would write it in plain PyTorch."""
        data = [owned(self.federation, client, self.device) for client in range(self.rows)]
        model = module(self.task.model.build, self.device)
        return partial(self._one_by_one, model, data)

    def _one_by_one(self, model: nn.Module, data: list[Data]) -> Tree:
        changes = [
            fit(model, tree.row(self.params, k), mine, self.method.local, self.method.steps, self.method.batch)
            for k, mine in enumerate(data)
        ]
        return tree.stack(changes)


def module(build: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    """A module for the plain loop: with channels last on a CPU, where convolutions are faster so."""
    built = build().to(device)
    return built.to(memory_format=torch.channels_last) if device.type == "cpu" else built


def owned(federation: Federation, client: int, device: torch.device) -> Data:
    """A client's training images as a plain loop keeps them: scaled once, and channels last on a CPU."""
    examples, rows = federation.examples, federation.train[client].long()
    mean, std = (torch.tensor(numbers or (rest,)) for numbers, rest in ((examples.mean, 0.0), (examples.std, 1.0)))
    x = ((examples.x[rows] / 255 - mean) / std).movedim(-1, 1)
    x = x if device.type == "cpu" else x.contiguous()
    return x.to(device), examples.y[rows].to(device)


def batches(count: int, steps: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """Which examples each step sees: shuffled passes, the last batch of a pass as small as it comes."""
    left = steps
    while left:
        for rows in torch.randperm(count, device=device).split(size)[:left]:
            left -= 1
            yield rows


def fit(model: nn.Module, start: Tree, data: Data, sgd: SGD, steps: int, size: int) -> Tree:
    """The plain loop: nn.Module, torch.optim.SGD, cross entropy. Returns what training changed."""
    model.load_state_dict(start)
    x, y = data
    optimiser = torch.optim.SGD(model.parameters(), sgd.lr, sgd.momentum, weight_decay=sgd.weight_decay)
    for rows in batches(len(x), steps, size, x.device):
        optimiser.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        if sgd.clip:
            nn.utils.clip_grad_norm_(model.parameters(), sgd.clip)
        optimiser.step()
    return {name: weight.detach() - start[name] for name, weight in model.named_parameters()}
