"""All clients of a round at once on one device: `vmap` over clients, in chunks that fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from .. import tree
from ..clients import Ask, Cohort, Whole
from ..data.federation import Federation
from ..errors import MemoryShortage
from ..method import Method
from ..ops.intercept import intercepted
from ..ops.upload import upload
from ..tree import Tree
from .capture.graphs import Graphs
from .capture.replays import Replays
from .capture.tapes import Tapes
from .home import CLIENT, WEIGHT, Homes, PackedHome
from .memory import Shelf
from .room import COPIES, MUCH, activation_bytes, budget, message_bytes, padding

Mapped = Callable[..., tuple[Tree, Tree]]
UNROLLED = 8  # chunks in the replay of a whole round, one after the other; more replay one chunk each


class Vector(Shelf):
    """The default engine. `chunk` is the number of clients at once; 0 chooses it by the memory there is."""

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
        self.graphs = Graphs() if graphs and self.device.type == "cuda" else None
        self.tapes = Tapes() if graphs and self.device.type == "cpu" else None
        self.in_parts = False  # whether whole rounds did not fit into memory

    def whole(self, rows: int) -> Whole | None:
        """Whole rounds by replay, if the host has nothing to look up: neither memories nor model sizes."""
        replays = self.graphs or self.tapes
        host = self.method.task.sizes or any(memories.blank for memories in self.kept)
        long = rows > UNROLLED * self.chunk
        return None if replays is None or self.in_parts or host or long else _Rounds(self, replays)

    def prepare(self, run: int, ids: Tensor, numbers: Tensor) -> Cohort:
        """What rounds need to know about their clients [rounds, cohort], on the device."""
        cards = self.homes.cards(run, ids)
        slips = upload(torch.cat([cards, numbers[:, None, None].expand_as(cards[..., :1])], -1), self.device)
        return Cohort(slips[..., CLIENT].contiguous(), slips)

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        for some in same_shapes(asks):
            groups = [[ask] for ask in some] if self._shares_filters(some[0]) else [some]
            for group in groups:
                self._together(step, group)

    def _shares_filters(self, ask: Ask) -> bool:
        """Whether asks together would make groups of one convolution, which on a CPU takes longer than one by one."""
        sent = tree.leaves(ask.shared | ask.recalled)
        return self.device.type == "cpu" and any(leaf.ndim == 4 for leaf in sent)

    def _together(self, step: str, asks: Sequence[Ask], first: int = 0) -> None:
        """The clients of all asks, from the place `first` of each on."""
        most = self.chunk if self.fixed else min(self.chunk, self._fitting(asks))
        if len(asks) > most:  # more runs than rows
            for some in (asks[:most], asks[most:]):
                self._together(step, some, first)
            return
        longest = max(len(ask.ids) for ask in asks)
        rows = min(longest, max(1, most // len(asks)))
        if not self.fixed:
            rows = -(-longest // -(-longest // rows))  # as many chunks, but none that is mostly padding
        while first < longest:
            try:
                chunk = self._compute(step, asks, first, rows)
            except torch.OutOfMemoryError:
                if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                    raise  # nothing can be done within a graph
                chunk = None
            if chunk is None:  # here, where the exception no longer holds on to what the failed attempt had
                self._make_room(rows * len(asks))
                self._together(step, asks, first)
                return
            for k, ask in enumerate(asks):
                self._hand_over(ask, slice(first, min(first + rows, len(ask.ids))), *(tree.row(t, k) for t in chunk))
            first += rows

    def _compute(self, step: str, asks: Sequence[Ask], first: int, rows: int) -> tuple[Tree, Tree, Tree]:
        """Clients `first` to `first + rows` of every ask: their replies, memories and weights, [asks, rows, ...]."""
        ids = [_part(ask.ids, first, rows) for ask in asks]
        slips = torch.stack(
            [
                self.prepare(ask.run, some[None], torch.as_tensor(ask.round).reshape(1)).slips[0]
                if ask.cohort is None
                else _part(ask.cohort.slips, first, rows)
                for ask, some in zip(asks, ids, strict=True)
            ]
        )
        cards, rounds = slips[..., :-1], slips[..., -1]
        memories = [self.of(ask.run, ask.scratch).read(some) for ask, some in zip(asks, ids, strict=True)]
        reply, kept = self._run(
            step,
            (
                cards,
                rounds,
                _stack(memories),
                _stack([ask.shared | ask.recalled for ask in asks]),
                _stack([tree.map(lambda leaf: _part(leaf, first, rows), ask.each) for ask in asks]),
            ),
        )
        return reply, kept, {"weight": cards[..., WEIGHT].float()}

    def _hand_over(self, ask: Ask, rows: slice, reply: Tree, kept: Tree, weight: Tree) -> None:
        count = rows.stop - rows.start
        if count <= 0:
            return
        reply, kept, weight = (tree.row(part, slice(count)) for part in (reply, kept, weight))
        well = torch.ones(count, dtype=torch.bool, device=self.device)
        if kept:
            well = tree.finite(reply | {"kept": kept}, rows=True)  # who keeps nonsense has not answered
            self.of(ask.run, ask.scratch).write(ask.ids[rows], kept, well & ~ask.silent[rows])
        ask.take(rows, reply, weight["weight"], well)

    def _run(self, step: str, inputs: tuple[Any, ...]) -> tuple[Tree, Tree]:
        asks, shared = len(inputs[0]), bool(inputs[3])
        function = self._nested(step) if asks > 1 and shared else self._flat(step, asks)
        replays = self.graphs or self.tapes
        result: tuple[Tree, Tree] = replays(step, function, inputs) if replays else function(*inputs)
        return result

    def _work(self, step: str) -> Callable[..., Tree]:
        """The step, for one client."""
        work: Callable[..., Tree] = getattr(self.method, step)
        return work

    def _rows(self, step: str) -> Mapped:
        """The step, mapped over the clients of one ask."""
        work = self._work(step)

        def one(card: Tensor, round: Tensor, memory: Tree, shared: Tree, each: Tree) -> tuple[Tree, Tree]:  # noqa: A002
            home = PackedHome(self.homes, card, round, memory)
            return work(home, **shared, **each), home.memory

        rows: Mapped = vmap(one, in_dims=(0, 0, 0, None, 0), randomness="error")
        return rows if self.device.type == "cpu" else intercepted(rows)

    def _nested(self, step: str) -> Mapped:
        """Over asks, then over the clients of each: what an ask's clients share is not copied for every client."""
        return vmap(self._rows(step), in_dims=0, randomness="error")

    def _flat(self, step: str, asks: int) -> Mapped:
        """All clients of all asks as rows of one map, which costs less than a nested one; nothing is shared."""
        rows = self._rows(step)

        def function(cards: Tensor, rounds: Tensor, memory: Tree, shared: Tree, each: Tree) -> tuple[Tree, Tree]:
            reply, kept = rows(
                cards.flatten(0, 1), rounds.flatten(0, 1), _flatten(memory), tree.row(shared, 0), _flatten(each)
            )
            return _unflatten(reply, asks), _unflatten(kept, asks)

        return function

    def _fitting(self, asks: Sequence[Ask] = ()) -> int:
        """How many clients fit, if each may hold the activations of its largest split and what it is sent."""
        largest = max((message_bytes(ask, self.kept[ask.run].blank) for ask in asks), default=0)
        return max(1, self.budget // max(self.activations + COPIES * largest, 1))

    def _make_room(self, rows: int) -> None:
        """After running out of memory: half the rows, or, if the user fixed them, a sentence."""
        if self.graphs is not None:
            self.graphs.clear()
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


@dataclass(frozen=True)
class _Rounds:
    """Whole rounds as graphs or tapes."""

    engine: Vector
    replays: Replays

    def prepare(self, run: int, ids: Tensor, numbers: Tensor) -> Cohort:
        return self.engine.prepare(run, ids, numbers)

    def __call__(self, rounds: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        try:
            return self.replays("a whole round", rounds, inputs, lasting=False)
        except torch.OutOfMemoryError:
            self.engine.in_parts = True  # from now on exchange by exchange, which needs less
        self.replays.clear()  # here, where the exception no longer holds on to what the failed attempt had
        torch.cuda.empty_cache()
        return rounds(*inputs)


def same_shapes(asks: Sequence[Ask]) -> list[list[Ask]]:
    """Asks whose messages have the same shapes share a map; a seed whose turn is a model of another size does not."""
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


def _flatten(rows: Tree) -> Tree:
    return tree.map(lambda leaf: leaf.flatten(0, 1), rows)


def _unflatten(rows: Tree, asks: int) -> Tree:
    return tree.map(lambda leaf: leaf.unflatten(0, (asks, -1)), rows)


def _stack(trees: list[Tree]) -> Tree:
    return tree.map(lambda leaf: leaf[None], trees[0]) if len(trees) == 1 else tree.stack(trees)


def _part(leaf: Tensor, first: int, rows: int) -> Tensor:
    """Rows `first` to `first + rows`; what there is too little of is filled up with the last row."""
    some = leaf[first : first + rows]
    missing = rows - len(some)
    return torch.cat([some, leaf[-1:].expand(missing, *leaf.shape[1:])]) if missing else some
