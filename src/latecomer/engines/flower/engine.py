"""On the server: an exchange becomes one Flower message a client, and the replies become rows again."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from flwr.app import Message, RecordDict

from ... import tree
from ...clients import Ask
from ...data.federation import Examples, Federation, Rows
from ...method import Method
from ...tree import Tree
from ..home import Homes, PackedHome
from .app import blank_memory
from .wire import Header, pack, payload, unpack

LOG = logging.getLogger(__name__)


class Grid(Protocol):
    """What the engine needs: Flower's own verb, the node where a client lives, and memories where it can reach them."""

    def node(self, run: int, client: int) -> int: ...
    def memories(self, run: int) -> Tree: ...
    def remember(self, run: int, kept: Tree) -> None: ...
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]: ...


# on the server


class Flower:
    """An engine whose clients are reached by messages alone. A reply that does not come in time is silence."""

    def __init__(self, method: Method, grid: Grid, *, timeout: float = 600.0) -> None:
        self.method, self.grid, self.timeout = method, grid, timeout
        self.device = torch.device("cpu")
        self.carried = {"down": 0, "up": 0}  # bytes of the arrays that were really in messages

    def memories(self, run: int) -> Tree:
        return self.grid.memories(run)

    def remember(self, run: int, kept: Tree) -> None:
        self.grid.remember(run, kept)

    def whole(self, rows: int) -> None:
        return None

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        messages = [self._messages(step, ask) for ask in asks]
        replies = self._converse([message for part in messages for message in part.values()])
        for ask, part in zip(asks, messages, strict=True):
            self._answer(step, ask, {k: replies.get(message.metadata.message_id) for k, message in part.items()})

    def _messages(self, step: str, ask: Ask) -> dict[int, Message]:
        """A message for every row of the cohort that is not silent already."""
        header = Header(step, int(ask.round), ask.run, tuple(ask.recalled), ask.scratch).pack()
        shared = pack(ask.shared)
        return {
            k: Message(
                RecordDict({"header": header, "shared": shared, "each": pack(tree.row(ask.each, k))}),
                dst_node_id=self.grid.node(ask.run, client),
                message_type=f"query.{step}",
            )
            for k, client in enumerate(ask.ids.tolist())
            if not ask.silent[k]
        }

    def _converse(self, messages: list[Message]) -> dict[str, RecordDict]:
        """Send and wait. What came back, by the message it replies to: an error may come from another node."""
        self.carried["down"] += sum(payload(message.content) for message in messages)
        replies = {}
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout) if messages else ():
            if reply.has_error():
                LOG.warning("A client failed at %s: %s", reply.metadata.message_type, reply.error.reason)
                continue
            self.carried["up"] += payload(reply.content)
            replies[reply.metadata.reply_to_message_id] = reply.content
        return replies

    def _answer(self, step: str, ask: Ask, contents: dict[int, RecordDict | None]) -> None:
        """Hand over row by row, so that a mean is folded and never stacked."""
        heard = {k: content for k, content in contents.items() if content is not None}
        rows = {k: unpack(content.array_records["reply"]) for k, content in heard.items()}
        blank = tree.map(torch.zeros_like, next(iter(rows.values())) if rows else self._made_up(step, ask))
        for k in range(len(ask.ids)):
            weight: Any = heard[k].metric_records["metrics"]["weight"] if k in heard else 0
            answer = tree.map(lambda leaf: leaf[None], rows.get(k, blank))
            ask.take(slice(k, k + 1), answer, torch.tensor([float(weight)]), torch.tensor([k in heard]))

    def _made_up(self, step: str, ask: Ask) -> Tree:
        """A reply of the right shape where nobody answered: by a client that does not exist, with one blank example."""
        task, rows = self.method.task, Rows.of([[0]])
        examples = Examples(task.blank(1), torch.zeros(1, dtype=torch.long), task.classes)
        labelled, unturned, budget = torch.ones(1, dtype=torch.bool), torch.zeros(1).short(), torch.zeros(1).char()
        nobody = Federation(examples, rows, rows, rows, 1, labelled, unturned, budget)
        homes = Homes([nobody], self.device, task.dtype)
        card = homes.cards(0, torch.tensor([0]))[0]
        home = PackedHome(homes, card, torch.tensor(0), blank_memory(self.method, nobody))
        reply: Tree = getattr(self.method, step)(home, **ask.shared, **ask.recalled, **tree.row(ask.each, 0))
        return reply
