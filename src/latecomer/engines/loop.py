"""One client at a time: for debugging (errors name client, round, step and argument) and for wide models on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import tree
from ..clients import Ask
from ..data.federation import Federation
from ..errors import LatecomerError, StepError
from ..method import Method
from ..tree import Tree
from .home import WEIGHT, Homes, PackedHome
from .memory import Shelf


class Loop(Shelf):
    def __init__(self, method: Method, federations: Sequence[Federation], device: torch.device | str = "cpu") -> None:
        self.method = method
        self.device = torch.device(device)
        self.homes = Homes(federations, self.device, method.task.dtype)
        super().__init__(method, federations, self.device)

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._one_by_one(step, ask)

    def _one_by_one(self, step: str, ask: Ask) -> None:
        memories = self.of(ask.run, ask.scratch)
        cards = tree.upload(self.homes.cards(ask.run, ask.ids), self.device)
        round_ = torch.tensor(ask.round, device=self.device)
        for k, client in enumerate(ask.ids.tolist()):
            home = PackedHome(self.homes, cards[k], round_, tree.row(memories.read(ask.ids[k : k + 1]), 0))
            message = ask.shared | ask.recalled | tree.row(ask.each, k)
            try:
                reply = getattr(self.method, step)(home, **message)
            except LatecomerError:
                raise
            except Exception as error:
                raise StepError(
                    f"Client {client} failed in round {ask.round} at step {step!r}, sent {_describe(message)}: {error}"
                ) from error
            one = slice(k, k + 1)
            answer = tree.map(lambda leaf: leaf[None], reply)
            if kept := tree.map(lambda leaf: leaf[None], home.memory):
                well = tree.finite(answer | {"kept": kept}, rows=True) & ~ask.silent[one]
                memories.write(ask.ids[one], kept, well)
            ask.take(one, answer, cards[one, WEIGHT].float(), torch.ones(1, dtype=torch.bool, device=self.device))


def _describe(message: Tree) -> str:
    """The arguments, the broken ones first: what a person looks for."""
    flat = tree.flatten(message)
    broken = [name for name, leaf in flat.items() if not bool(leaf.isfinite().all())]
    if broken:
        return f"{', '.join(broken)} with values that are not finite"
    return ", ".join(f"{name} {tuple(leaf.shape)}" for name, leaf in flat.items()) or "nothing"
