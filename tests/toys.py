"""Small things to test with: a federation of real digits, a small model, and any method at small settings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from latecomer import methods, tree
from latecomer.clients import Ask, Clients, Engine, Exchange, Sending
from latecomer.data import Federation
from latecomer.engines import make
from latecomer.method import Method
from latecomer.nets.net import Net
from latecomer.settings import settings_of
from latecomer.task import Home, Task
from latecomer.tree import Tree

torch.set_num_threads(1)  # the networks here are so small that a second thread only waits

TRAIN = [5, 9, 12, 17, 20, 24, 30, 8, 15, 22]  # examples of every client; the last three are latecomers
MEMBERS = 7
ROTATION = [0, 90, 0, 30, 0, 0, 180, 0, 90, 0]
BUDGET = list("SLLSSLSLSS")
ENGINES = ["vector", "chunked", "loop", "flower"]


@functools.cache
def federation(seed: int = 0, labelled: tuple[bool, ...] | None = None) -> Federation:
    """Ten clients with 5 to 30 digits (more with a higher seed), some of them turned; each has mostly three classes."""
    digits = load_digits()
    random = np.random.default_rng(seed)
    left = random.permutation(600).tolist()
    rows: dict[str, list[list[int]]] = {"train": [], "val": [], "test": []}
    for client, size in enumerate(TRAIN):
        left.sort(key=lambda k, client=client: (digits.target[k] - client) % 10 >= 3)  # stable: its classes come first
        for split, count in (("train", size + 2 * seed), ("val", 3), ("test", 5)):
            rows[split].append([left.pop(0) for _ in range(count)])
    pixels = (digits.images[:600] * 15.9).astype(np.uint8)
    return Federation.from_arrays(
        pixels,
        digits.target[:600],
        **rows,
        members=MEMBERS,
        rotation=ROTATION,
        labelled=labelled,
        seed=seed,
        budget=BUDGET,
    )


def federations(count: int) -> list[Federation]:
    """Federations of several seeds on the same examples, to train in lockstep."""
    first = federation(0)
    return [first, *(dataclasses.replace(federation(seed), examples=first.examples) for seed in range(1, count))]


def small_model(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))


def task(dtype: torch.dtype = torch.float32, sizes: Sequence[str] = ()) -> Task:
    narrow = Net(functools.partial(small_model, 4))
    shapes = {"S": narrow.shapes, "L": Net(small_model).shapes}
    return Task(Net(small_model), (1, 8, 8), 10, dtype, {size: shapes[size] for size in sizes})


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "apfl-adaptive": ("apfl", {"adaptive": True}),
    "atp-rates": ("atp", {"warmup": 0}),
    "fedprox-fixed": ("fedprox", {"adaptive": False}),
    "fedtta-early": ("fedtta", {"proxy": 0.1, "patience": 1, "adapt_steps": 3}),
    "flowdup-dense": ("flowdup", {"subspace": "dense"}),
    "flowdup-plain": ("flowdup", {"learned_regulariser": False, "server": "sgd", "server_lr": 0.5, "loss": "sum"}),
    "knnper-fifo": ("knnper", {"datastore": "fifo", "weak": 0.5}),
    "knnper-prototypes": ("knnper", {"prototypes": 2, "projection": 4}),
    "odpflhn-phases": ("odpflhn", {"training": "two-phases", "first_phase": 2, "after": 1, "server": "sgd"}),
    "odpflhn-private": ("odpflhn", {"epsilon": 1.0, "pool": "mean", "bound": 1.0, "describe_by": 4}),
    "perfedavg-hf": ("perfedavg", {"variant": "hessian-free"}),
    "pfedhn-budgets": ("pfedhn", {"sizes": "SL"}),
    "pfedhn-fixed": ("pfedhn", {"representation": "class-shares"}),
    "pfedhn-fixed-budgets": ("pfedhn", {"representation": "class-shares", "sizes": "SL"}),
    "pfedhn-pc": ("pfedhn", {"personal_head": True}),
    "pfedhn-spectral": ("pfedhn", {"spectral": True}),
}
"""Settings that change what crosses or what a client keeps, under names of their own."""


def method(name: str, dtype: torch.dtype = torch.float32, **settings: Any) -> Method:
    """A method at settings that make a round cheap, found by what a setting is called and what it means."""
    name, chosen = VARIANTS.get(name, (name, {}))
    settings = chosen | settings
    sizes = settings.pop("sizes", ())  # not a setting of the method: models of several sizes, which its task has
    kind = methods.get(name)
    small = {key: value for key, f in settings_of(kind).items() if (value := _small(key, f)) is not None}
    if dtype == torch.float64:
        kind = doubled(kind)
    return kind(task=task(dtype, sizes), clients=len(TRAIN), members=MEMBERS, **small | settings)


def _small(name: str, f: dataclasses.Field[Any]) -> int | None:
    if isinstance(f.default, bool) or not isinstance(f.default, int):
        return None
    if "batch" in name:
        return 8
    if any(
        word in f"{name} {f.metadata['meaning']}".split()
        for word in ("steps", "epochs", "rounds", "batches", "passes", "exchanges", "chains")
    ):
        return min(f.default, 3)
    return min(f.default, 12) if name in ("hidden", "width") else None


@functools.cache
def doubled(kind: type[Method]) -> type[Any]:
    """The same method, whose numbers begin in double precision and so stay there."""

    class Double(kind):  # type: ignore[misc, valid-type]
        def init(self, generator: torch.Generator) -> Tree:
            return double(super().init(generator))

        def memory(self, generator: torch.Generator) -> Tree:
            return double(super().memory(generator))

    return Double


def double(values: Tree) -> Tree:
    return tree.map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, values)


def engine(name: str, method: Method, federations: Sequence[Federation]) -> Any:
    if name == "chunked":
        return make("vector", method, federations, "cpu", chunk=3)
    return make(name, method, federations, "cpu")


def start(method: Method, seed: int = 0) -> Tree:
    return method.init(torch.Generator().manual_seed(seed))


def cohort(number: int, count: int = 5) -> Tensor:
    return torch.randperm(MEMBERS, generator=torch.Generator().manual_seed(number))[:count]


def rounds(method: Method, engine: Engine, count: int, **options: Any) -> tuple[Tree, list[Exchange]]:
    """The state after some rounds, each with another cohort, and the ledger."""
    state, ledger = start(method), []
    for number in range(count):
        state = method.round(state, Clients(engine, cohort(number), number, ledger=ledger, **options))
    return state, ledger


def everything(state: Tree, engine: Any) -> Tree:
    """A server's state and what every client of the first run remembers: all that a round may change."""
    return {"state": state, "memory": remembered(engine)}


def remembered(engine: Any, run: int = 0, seed: int = 0) -> Tree:
    """What the clients of a run with this seed keep, one row a client, written or not."""
    blank = engine.method.memory(torch.Generator().manual_seed(seed))
    rows = tree.map(lambda leaf: leaf.expand(len(TRAIN), *leaf.shape).clone(), blank)
    written = engine.memories(run)
    return tree.map(lambda row, new: row.index_copy(0, written["ids"], new), rows, written["rows"]) if written else rows


def gap(a: Tree, b: Tree) -> float:
    """The largest difference between two trees, which must have the same leaves of the same shapes and dtypes."""
    first, second = tree.flatten(a), tree.flatten(b)
    assert first.keys() == second.keys()
    for path, leaf in first.items():
        assert leaf.shape == second[path].shape, path
        assert leaf.dtype == second[path].dtype, path
        assert leaf.isfinite().all(), path
        assert second[path].isfinite().all(), path
    return max(
        (float((leaf.double() - second[path].double()).abs().max()) for path, leaf in first.items() if leaf.numel()),
        default=0.0,
    )


def same(a: Tree, b: Tree) -> bool:
    """Bit for bit."""
    first, second = tree.flatten(a), tree.flatten(b)
    return first.keys() == second.keys() and all(
        leaf.dtype == second[path].dtype and torch.equal(leaf, second[path]) for path, leaf in first.items()
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Idle(Method):
    """A method whose rounds do nothing, for the steps that a test adds to it."""

    def init(self, generator: torch.Generator) -> Tree:
        return {}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return state

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return Sending()

    def model(self, home: Home, **sent: Tree) -> Tree:
        return {}

    def logits(self, model: Tree, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :10]


class Spy:
    """An engine that remembers the asks that went through it; their collectors hold the replies."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.device = engine, engine.device
        self.asks: list[tuple[str, Ask]] = []

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        self.engine.exchange(step, asks)
        self.asks += [(step, ask) for ask in asks]
