"""All clients of a round at once on one device: `vmap` over clients, in chunks that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import vmap

from .. import tree
from ..clients import Ask
from ..data.federation import Federation
from ..errors import MemoryShortage
from ..method import Method
from ..ops.intercept import intercepted
from ..ops.upload import upload
from ..steps import Phase, Step, performed, phase_of
from ..tree import Tree
from .fitting import COPIES, MUCH, activation_bytes, budget, message_bytes, padding
from .home import WEIGHT, Homes, PackedHome
from .memory import KeepsMemories

if TYPE_CHECKING:
    from ..train import Training
    from .capture.capture import Capture


class Vector(KeepsMemories):
    """The default engine. `chunk` is the number of clients at once; 0 chooses it by the memory there is.

    With `graphs`, exchanges and whole rounds are captured and replayed (engines/capture); without, nothing of that is
    even imported, and every exchange runs as it is written here.
    """

    one_by_one = False

    def __init__(
        self,
        method: Method,
        federations: Sequence[Federation],
        device: torch.device | str = "cpu",
        *,
        chunk: int = 0,
        graphs: bool = True,
    ) -> None:
        self.method = method
        self.device = torch.device(device)
        self.homes = Homes(federations, self.device, method.task.dtype)
        super().__init__(method, federations, self.device)
        largest = max(self.homes.largest.values())
        self.activations = largest * activation_bytes(method) + method.workspace(self.homes.largest["train"])
        self.notes = _padded(self.homes.largest["train"], padding(method, federations))
        self.budget = budget(self.device)
        self.fixed = chunk > 0
        self.chunk = chunk or self._fitting()
        self.capture: Capture | None = None
        if graphs:
            from .capture.capture import Capture

            self.capture = Capture.on(self.device)

    def shortcut(self, training: Training) -> Callable[[], bool] | None:
        """A faster way through the whole rounds of a training, if there is one (engines/capture/rounds.py)."""
        if self.capture is None:
            return None
        from .capture.rounds import WholeRounds

        return WholeRounds.of(training, self, self.capture)

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        """Let the clients of all asks do a step, in chunks: a map over the same number of clients of every ask."""
        phase = phase_of(asks[0].round, asks[0].scratch)  # all are in the same
        waiting = [(group, 0) for group in self._groups(asks)]  # with the place of the first client to do in each ask
        while waiting:
            group, first = waiting.pop(0)
            most = self.chunk if self.fixed else min(self.chunk, self._fitting(group))
            if len(group) > most:  # more runs than rows
                waiting = [(group[:most], first), (group[most:], first), *waiting]
                continue
            longest = max(len(ask.ids) for ask in group)
            rows = min(longest, max(1, most // len(group)))
            if not self.fixed:
                rows = -(-longest // -(-longest // rows))  # as many chunks, but none that is mostly padding
            nested = len(group) > 1 and bool(group[0].shared or group[0].recalled)
            function, done = self._mapped(step, phase, nested), None
            try:
                inputs = self._inputs(group, first, rows, nested)
                done = function(*inputs)
            except torch.OutOfMemoryError:
                if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                    raise  # nothing can be done within a graph
            if done is None:  # here, where the exception no longer holds on to what the failed attempt had
                self._take_less(rows * len(group))
                waiting.insert(0, (group, first))
                continue
            for k, ask in enumerate(group):
                count = min(rows, len(ask.ids) - first)  # what is more is padding
                if count > 0:
                    own: Any = (k, slice(count)) if nested else slice(k * rows, k * rows + count)
                    reply, kept = (tree.row(part, own) for part in done)
                    self._hand_over(ask, slice(first, first + count), reply, kept, inputs[0][own][:, WEIGHT].float())
            if first + rows < longest:
                waiting.insert(0, (group, first + rows))

    def _groups(self, asks: Sequence[Ask]) -> list[Sequence[Ask]]:
        """Asks that share a map: those whose messages have the same shapes.

        But each has a map of its own on a CPU where clients share filters, which would make groups of one convolution:
        that takes longer than one after the other.
        """
        groups: list[Sequence[Ask]] = []
        for some in same_shapes(asks):
            sent = tree.leaves(some[0].shared | some[0].recalled)
            alone = self.device.type == "cpu" and any(leaf.ndim == 4 for leaf in sent)
            groups += [[ask] for ask in some] if alone else [some]
        return groups

    def _inputs(
        self, asks: Sequence[Ask], first: int, rows: int, nested: bool
    ) -> tuple[Tensor, Tensor, Tree, Tree, Tree]:
        """Client rows, numbers of rounds, memories and messages of the clients `first` to `first + rows` of every ask.

        Of several asks they lie end to end, [asks * rows, ...], so that one map does them all. Where clients of an ask
        share a message they are `nested`, [asks, rows, ...]: a map over asks needs no copy of it for every client.
        """
        join = tree.stack if nested else tree.concatenate
        parts: list[Tree] = []
        for ask in asks:
            ids = _part(ask.ids, first, rows)
            if ask.rows is None:
                prepared = self.client_rows(ask.run, ids[None], torch.tensor([ask.round]))[0]
            else:
                prepared = _part(ask.rows, first, rows)
            parts.append(
                {
                    "rows": prepared,
                    "memory": self.of(ask.run, ask.scratch).read(ids),
                    "shared": ask.shared | ask.recalled if nested else {},
                    "each": tree.map(lambda leaf: _part(leaf, first, rows), ask.each),
                }
            )
        joined = parts[0] if len(parts) == 1 else join(parts)
        shared = joined["shared"] if nested else asks[0].shared | asks[0].recalled
        return joined["rows"][..., :-1], joined["rows"][..., -1], joined["memory"], shared, joined["each"]

    def client_rows(self, run: int, ids: Tensor, numbers: Tensor) -> Tensor:
        """What a map needs to know about clients [rounds, cohort], on the device; last, the number of the round."""
        rows = self.homes.client_rows(run, ids)
        return upload(torch.cat([rows, numbers[:, None, None].expand_as(rows[..., :1])], -1), self.device)

    def _mapped(self, step: str, phase: Phase, nested: bool) -> Callable[..., tuple[Tree, Tree]]:
        """The step mapped over clients, or over asks and the clients of each: replies, and what clients keep."""
        work = self._work(step, phase)

        def one(client: Tensor, number: Tensor, memory: Tree, shared: Tree, each: Tree) -> tuple[Tree, Tree]:
            home = PackedHome(self.homes, client, number, memory)
            return work(home, **shared, **each), home.kept

        rows: Callable[..., Any] = vmap(one, in_dims=(0, 0, 0, None, 0), randomness="error")
        rows = rows if self.device.type == "cpu" else intercepted(rows)
        function = vmap(rows, in_dims=0, randomness="error") if nested else rows
        return function if self.capture is None else self.capture(function, f"{step} in {phase}")

    def _work(self, step: str, phase: Phase) -> Step:
        """The step, for one client."""
        return performed(self.method, step, phase)

    def _hand_over(self, ask: Ask, rows: slice, reply: Tree, kept: Tree, weight: Tensor) -> None:
        """Answers and memories of some clients of an ask."""
        well = torch.ones(len(weight), dtype=torch.bool, device=self.device)
        if kept:
            well = tree.finite(reply | {"kept": kept}, rows=True)  # who keeps nonsense has not answered
            self.of(ask.run, ask.scratch).write(ask.ids[rows], kept, well & ~ask.silent[rows])
        ask.take(rows, reply, weight, well)

    def _fitting(self, asks: Sequence[Ask] = ()) -> int:
        """How many clients fit, if each may hold the activations of its largest split and what it is sent."""
        largest = max((message_bytes(ask, self.kept[ask.run].blank) for ask in asks), default=0)
        return max(1, self.budget // max(self.activations + COPIES * largest, 1))

    def _take_less(self, rows: int) -> None:
        """After running out of memory: half the rows, or, if the user fixed them, a sentence."""
        if self.capture is not None:
            self.capture.clear()
        torch.cuda.empty_cache()
        if rows == 1:
            raise MemoryShortage(
                "The GPU is out of memory with a single client; use a smaller --batch or --model."
            ) from None
        if self.fixed:
            fits = max(1, min(rows // 2, self._fitting()))
            raise MemoryShortage(
                f"The GPU is out of memory with {rows} clients at once; --chunk {fits} would fit."
            ) from None
        self.chunk = rows // 2


def same_shapes(asks: Sequence[Ask]) -> list[list[Ask]]:
    """Asks by the shapes of their messages; a seed whose turn is a model of another size does not go with the rest."""
    forms: dict[str, list[Ask]] = {}
    for ask in asks:
        shared, each = tree.flatten(ask.shared | ask.recalled), tree.flatten(ask.each)
        form = (
            {path: leaf.shape for path, leaf in shared.items()},
            {path: leaf.shape[1:] for path, leaf in each.items()},
        )
        forms.setdefault(str(form), []).append(ask)
    return list(forms.values())


def _padded(largest: int, times: float) -> list[str]:
    """What a user should know who chose this engine for clients of very different sizes."""
    if times <= MUCH:
        return []
    return [
        f"The vector engine takes every client to be as large as the largest, which has {largest} examples: "
        f"that is at least {times:.0f} times the work of --engine loop; --examples limits it."
    ]


def _part(leaf: Tensor, first: int, rows: int) -> Tensor:
    """Rows `first` to `first + rows`; what there is too little of is filled up with the last row."""
    some = leaf[first : first + rows]
    missing = rows - len(some)
    return torch.cat([some, leaf[-1:].expand(missing, *leaf.shape[1:])]) if missing else some
