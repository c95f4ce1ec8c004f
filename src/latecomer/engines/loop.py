"""Client by client: for debugging (errors name client, round, step and argument) and for wide models on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from .. import tree
from ..clients import Ask
from ..data.federation import Federation
from ..errors import LatecomerError, StepError
from ..method import Method
from ..ops.upload import upload
from ..steps import perform, phase_of
from ..tree import Tree
from .home import WEIGHT, Homes, PackedHome
from .memory import KeepsMemories

T = TypeVar("T")
SMALL = 2**15  # weights below which a step is mostly Python, of which only one thread can run at a time


class Loop(KeepsMemories):
    """One client at a time, or on a CPU one for every thread that PyTorch may use.

    A network as small as a client's cannot keep two threads busy, but two networks can, and they never wait for each
    other. A client that is left over gets all threads. Networks that are smaller still take turns.
    """

    one_by_one = True

    def __init__(
        self,
        method: Method,
        federations: Sequence[Federation],
        device: torch.device | str = "cpu",
        entropy: Callable[[int], Tensor] | None = None,  # where clients' noise comes from; None: it is simulated
    ) -> None:
        self.method, self.entropy = method, entropy
        self.device = torch.device(device)
        self.homes = Homes(federations, self.device, method.task.dtype)
        super().__init__(method, federations, self.device)
        alone = self.device.type != "cpu" or method.task.model.size < SMALL
        self.threads = 1 if alone else torch.get_num_threads()
        ready = partial(_settle, method, self.device)  # not a method of ours: threads would keep the engine alive
        self.pool = ThreadPoolExecutor(self.threads, initializer=ready) if self.threads > 1 else None

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._one_by_one(step, ask)
        torch.set_num_threads(
            torch.get_num_threads()
        )  # else a thread begun after the pool's would have one, as they do

    def _one_by_one(self, step: str, ask: Ask) -> None:
        memories = self.of(ask.run, ask.scratch)
        rows = upload(self.homes.client_rows(ask.run, ask.ids), self.device)

        def work(k: int) -> tuple[Tree, Tree]:
            home = self.home(ask.run, int(ask.ids[k]), ask.round, ask.scratch)
            return self._work(step, ask, k, home), home.kept

        for k, (reply, memory) in enumerate(self._in_order(work, len(ask.ids))):
            one = slice(k, k + 1)
            answer = tree.map(lambda leaf: leaf[None], reply)
            well = torch.ones(1, dtype=torch.bool, device=self.device)
            if kept := tree.map(lambda leaf: leaf[None], memory):
                well = tree.finite(answer | {"kept": kept}, rows=True)  # who keeps nonsense has not answered
                memories.write(ask.ids[one], kept, well & ~ask.silent[one])
            ask.take(one, answer, rows[one, WEIGHT].float(), well)

    def home(self, run: int, client: int, number: int, scratch: int | None) -> PackedHome:
        """A client's home in a round, with what it keeps."""
        ids = torch.tensor([client])
        (row,), memory = self.homes.client_rows(run, ids), tree.row(self.of(run, scratch).read(ids), 0)
        told, when = upload(row, self.device), torch.tensor(number, device=self.device)
        return PackedHome(self.homes, told, when, memory, self.entropy, self.homes.room(row))

    def _in_order(self, work: Callable[[int], T], count: int) -> Iterator[T]:
        """The results for 0 to `count`. So many at a time as there are threads, so that never more wait to be used."""
        together = count - count % self.threads if self.pool else 0
        for first in range(0, together, self.threads):
            assert self.pool
            yield from self.pool.map(work, range(first, first + self.threads))
        yield from map(work, range(together, count))

    def _work(self, step: str, ask: Ask, k: int, home: PackedHome) -> Tree:
        message = ask.shared | ask.recalled | tree.row(ask.each, k)
        try:
            with torch.no_grad():  # steps take gradients themselves, and nobody takes any of a step (learn.py)
                reply = perform(self.method, step, home, message, phase_of(ask.round, ask.scratch))
        except LatecomerError:
            raise
        except Exception as error:
            raise StepError(
                f"Client {int(ask.ids[k])} failed in round {ask.round} at step {step!r}, "
                f"sent {_describe(message)}: {error}"
            ) from error
        return reply


def _settle(method: Method, device: torch.device) -> None:
    """Prepare a thread of the pool."""
    torch.set_num_threads(1)
    method.settle(device)


def _describe(message: Tree) -> str:
    """The arguments, the broken ones first: what a person looks for."""
    flat = tree.flatten(message)
    broken = [name for name, leaf in flat.items() if not bool(leaf.isfinite().all())]
    if broken:
        return f"{', '.join(broken)} with values that are not finite"
    return ", ".join(f"{name} {tuple(leaf.shape)}" for name, leaf in flat.items()) or "nothing"
