"""On the server: an exchange becomes one Flower message a client, and the replies become rows again."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from flwr.app import Message

from ... import tree
from ...clients import Ask
from ...errors import ProtocolError
from ...method import Method
from ...steps import phase_of, phases_of
from ...tree import Tree
from ..blank import blank_memory, made_up
from .hello import KEEP_MODEL
from .notes import Body
from .reply import Layout, layout, read, size
from .sums import take_sum
from .terms import Terms
from .wire import Header, pack, payload, request, unflattened

LOG = logging.getLogger(__name__)
REASON = 500  # letters that a log has for a client's own words


class Grid(Protocol):
    """What the engine needs: Flower's own verb, the node where a client lives, and memories where it can reach them."""

    def node(self, run: int, client: int) -> int: ...
    def memories(self, run: int) -> Tree: ...
    def remember(self, run: int, kept: Tree) -> None: ...
    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]: ...


# on the server


class Flower:
    """An engine whose clients are reached by messages alone.

    A reply that does not come in time, or is not what the step must answer, is silence.
    """

    one_by_one = True

    def __init__(
        self,
        method: Method,
        grid: Grid,
        *,
        timeout: float = 600.0,
        largest: Mapping[str, int] | None = None,  # examples that simulated clients' homes have room for, by split
        training: str = "here",  # by which clients know that a server goes on with what it was at
        unscored: Collection[int] = (),  # clients that do not report scores: nobody asks them, and they have none
    ) -> None:
        self.method, self.grid, self.timeout, self.largest = method, grid, timeout, largest
        self.terms, self.training, self.unscored = Terms.of(method), training, unscored
        self.device = torch.device("cpu")
        self.carried = {"down": 0, "up": 0}  # bytes of the arrays that were really in messages
        self.layouts: dict[Any, Layout] = {}

    def memories(self, run: int) -> Tree:
        return self.grid.memories(run)

    def remember(self, run: int, kept: Tree) -> None:
        self.grid.remember(run, kept)

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        if asks[0].collector.rules.secure is not None:  # and all others', too
            for ask in asks:
                take_sum(step, ask, self._layout(step, ask), self._stage)
            return
        layouts = [self._layout(step, ask) for ask in asks]
        messages = [self._messages(step, ask) for ask in asks]
        replies = self._converse([message for part in messages for message in part.values()])
        for ask, part, wanted in zip(asks, messages, layouts, strict=True):
            self._answer(step, ask, part, replies, wanted)

    def _messages(self, step: str, ask: Ask) -> dict[int, Message]:
        """A message for every row of the cohort that is not silent already."""
        whole = None if ask.each else pack({"shared": ask.shared, "each": {}})  # the same bytes for everybody
        return {
            k: self._message(step, ask, k, whole or pack({"shared": ask.shared, "each": tree.row(ask.each, k)}))
            for k, client in enumerate(ask.ids.tolist())
            if not ask.silent[k] and not self._nothing_to_say(step, client)
        }

    def _message(self, action: str, ask: Ask, k: int, body: Body) -> Message:
        """To the client in a row of the cohort."""
        told = {"recall": tuple(ask.recalled), "scratch": ask.scratch, "training": self.training, **vars(self.terms)}
        client = int(ask.ids[k])
        return Message(
            request(Header(step=action, round=ask.round, run=ask.run, client=client, **told), body),
            dst_node_id=self.grid.node(ask.run, client),
            message_type=f"query.{action}",
        )

    def _stage(self, action: str, ask: Ask, messages: Mapping[int, Tree], wanted: Layout) -> Iterator[tuple[int, Tree]]:
        """One stage of a secure mean: messages, and the replies that are ones, by row of the cohort."""
        bodies = {id(message): pack(message) for message in messages.values()}  # mostly the same for all
        sent = {k: self._message(action, ask, k, bodies[id(message)]) for k, message in messages.items()}
        replies = self._converse([*sent.values()])
        for k, message in sent.items():
            reply = replies.pop(message.metadata.message_id, None)
            if reply is not None:
                try:
                    values, _ = self._read(reply, message, wanted, counted=False)
                except ProtocolError as error:
                    self._log(action, ask, k, error)
                else:
                    yield k, values

    def _nothing_to_say(self, step: str, client: int) -> bool:
        return client in self.unscored and "score" in phases_of(type(self.method), step)

    def _converse(self, messages: list[Message]) -> dict[str, Message]:
        """Send and wait. What came back, by the message it replies to: an error may come from another node."""
        self.carried["down"] += sum(payload(message.content) for message in messages)
        replies: dict[str, Message] = {}
        for reply in self.grid.send_and_receive(messages, timeout=self.timeout) if messages else ():
            replies.setdefault(reply.metadata.reply_to_message_id, reply)
        return replies

    def _answer(
        self, step: str, ask: Ask, messages: dict[int, Message], replies: dict[str, Message], wanted: Layout
    ) -> None:
        """Hand over row by row, so that a mean is folded and never stacked."""
        blank = unflattened(
            {path: torch.zeros(shape, dtype=getattr(torch, kind)) for path, (kind, shape) in wanted.items()}
        )
        counted = phase_of(ask.round, ask.scratch) == "round"
        for k, client in enumerate(ask.ids.tolist()):
            values, weight, heard = blank, 0.0, self._nothing_to_say(step, client)
            reply = replies.get(messages[k].metadata.message_id) if k in messages else None
            if reply is not None:
                try:
                    values, weight = self._read(reply, messages[k], wanted, counted)
                    heard = True
                except ProtocolError as error:
                    self._log(step, ask, k, error)
            answer = tree.map(lambda leaf: leaf[None], values)
            ask.take(slice(k, k + 1), answer, torch.tensor([weight]), torch.tensor([heard]))

    def _log(self, action: str, ask: Ask, k: int, error: ProtocolError) -> None:
        LOG.warning("Client %d counts as silent at %r in round %d: %s", int(ask.ids[k]), action, ask.round, error)

    def _read(self, reply: Message, message: Message, wanted: Layout, counted: bool) -> tuple[Tree, float]:
        if reply.has_error():
            raise ProtocolError(f"It failed: {str(reply.error.reason)[:REASON]!r}")  # no line, no colour of its own
        if reply.metadata.src_node_id != message.metadata.dst_node_id:
            raise ProtocolError(f"Node {reply.metadata.src_node_id} answered in its place.")
        values, weight = read(reply.content, wanted, counted)
        self.carried["up"] += size(wanted)
        return values, weight

    def _layout(self, step: str, ask: Ask) -> Layout:
        """What a reply must look like; found out once for every step and shape of message.

        By a client with one example: how many real ones have, they tell, and nothing is computed with that. Steps that
        answer one row an example, as tests do, need to know it of simulated ones.
        """
        if step == KEEP_MODEL:  # no step of a method: a client makes its model, keeps it, and answers nothing
            return {}
        sent = ask.shared | ask.recalled | tree.row(ask.each, 0)
        key = (
            step,
            phase_of(ask.round, ask.scratch),
            tuple((path, leaf.dtype, leaf.shape) for path, leaf in tree.flatten(sent).items()),
        )
        if key not in self.layouts:
            memory = blank_memory(self.method, 0)
            self.layouts[key] = layout(made_up(self.method, step, sent, memory, key[1], self.largest))
        return self.layouts[key]
