"""A client that does not exist: it shows what answers look like before anybody has given one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from .. import tree
from ..clients import Ask, Clients
from ..data.federation import Examples, Federation, Rows
from ..errors import LatecomerError, StepError
from ..method import Method
from ..steps import Phase, answers_of, perform
from ..tree import Tree
from .home import LEFT, Homes, PackedHome

CPU = torch.device("cpu")


def made_up(
    method: Method, step: str, sent: Tree, memory: Tree, phase: Phase, largest: Mapping[str, int] | None = None
) -> Tree:
    """An answer of the right shape: by a client with one blank example, in a home with room for the `largest`."""
    task, rows = method.task, Rows.of([[0]])
    examples = Examples(task.blank(1), torch.zeros(1, dtype=torch.long), task.classes)
    labelled, unturned, budget = torch.ones(1, dtype=torch.bool), torch.zeros(1).short(), torch.zeros(1).char()
    homes = Homes([Federation(examples, rows, rows, rows, 1, labelled, unturned, budget)], CPU, task.dtype)
    homes.largest |= largest or {}
    home = PackedHome(homes, homes.client_rows(0, torch.tensor([0]))[0], torch.tensor(0), memory)
    try:
        with torch.no_grad():
            return perform(method, step, home, sent, phase)
    except LatecomerError:
        raise
    except Exception as error:
        raise StepError(
            f"Step {step!r} failed on a made-up client, which shows what a reply looks like: {error}"
        ) from error


def blank_memory(method: Method, seed: int) -> Tree:
    """What a client holds before its first round; it follows from the method and the seed, so nobody sends it."""
    own = method.memory(torch.Generator().manual_seed(seed))
    left = _Trial(method, own).left() if method.processors.keeps else {}
    return own | ({LEFT: left} if left else {})


class _Trial:
    """An engine whose only client does not exist: rounds of training on it show what each step answers."""

    one_by_one, device = True, CPU

    def __init__(self, method: Method, memory: Tree) -> None:
        self.method, self.memory = method, memory
        self.found: dict[str, Tree] = {}

    def left(self) -> Tree:
        """Of every step whose answers are sent in part: nothing left yet."""
        openings = {getattr(self.method, name) for name in self.method.opening}  # a round before and one after each
        for number in sorted({0} | openings):
            state = self.method.init(torch.Generator().manual_seed(0))
            self.method.round(state, Clients(self, torch.tensor([0]), number))
        blanks = {
            step: self.method.processors.left(reply, answers_of(type(self.method), step))
            for step, reply in self.found.items()
        }
        return {step: blank for step, blank in blanks.items() if blank}

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        for ask in asks:
            sent = ask.shared | ask.recalled | tree.row(ask.each, 0)
            self.found[step] = made_up(self.method, step, sent, self.memory, "score")  # in no round: as it is answered
            ask.take(slice(0, 1), tree.map(lambda leaf: leaf[None], self.found[step]), torch.ones(1), torch.ones(1) > 0)

    def memories(self, run: int) -> Tree:
        return {}

    def remember(self, run: int, kept: Tree) -> None:
        """A client that does not exist has nothing to remember."""
