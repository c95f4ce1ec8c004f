"""Between server and clients: a SuperLink, and the nodes that are connected to it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from flwr.app import Context, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, Metadata
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid as FlowerGrid
from flwr.serverapp import ServerApp
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

from ...errors import ProtocolError
from ...tree import Tree
from .hello import HELLO, Hello, Welcome
from .wire import MOST

LOG = logging.getLogger(__name__)
T = TypeVar("T")
SHORTEST, LONGEST, SLOWER = 0.1, 1.0, 1.3  # seconds between two looks for replies, and how the pause grows
PARTS = 1000  # of a reply: Flower cuts 4 GB into some eight hundred, and each takes a request
REASON = 500  # letters that are read of a node's own words


class Link:
    """Flower's grid, asked for replies more often while they come, and where the clients live."""

    def __init__(self, grid: FlowerGrid) -> None:
        self.grid = grid
        self.nodes: dict[int, int] = {}  # by the number of the client

    def node(self, run: int, client: int) -> int:
        return self.nodes[client]

    def memories(self, run: int) -> Tree:
        """None: what a client keeps, it keeps on its own disk."""
        return {}

    def remember(self, run: int, kept: Tree) -> None:
        """Nothing: clients do."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Replies as they come. What comes twice, too late or unasked for is not among them.

        Who has not answered when half of the time is over is asked once more: a SuperLink hands a message out once, and
        a node that is killed between taking it and writing it down does not know of it. To the very same message a
        client has the same reply.
        """
        began, sent = time.monotonic(), list(messages)
        end, again = (began + (math.inf if timeout is None else share * timeout) for share in (1, 0.5))
        waiting = _numbered(self.grid.push_messages(sent), sent)
        asked = {number: number for number in waiting}  # and by its own number, of which message one is a copy
        coming: dict[str, Coming] = {}
        pause = SHORTEST
        while waiting and time.monotonic() < end:
            time.sleep(pause)
            pause = min(pause * SLOWER, LONGEST)
            if time.monotonic() > again:
                again = math.inf
                asked |= _numbered(self.grid.push_messages([_copy(message) for message in waiting.values()]), waiting)
            for number, reply in self._arrived({copy for copy, whose in asked.items() if whose in waiting}, coming):
                whose = asked.get(number, "")
                if waiting.pop(whose, None) is not None:
                    pause = SHORTEST
                    if reply is not None:
                        vars(reply.metadata)["_reply_to_message_id"] = whose
                        yield reply

    def _arrived(self, waiting: set[str], coming: dict[str, Coming]) -> Iterator[tuple[str, Message | None]]:
        """Replies that are here, each with what it replies to; None: nobody can read it.

        Flower's own `pull_messages` fetches and unpacks all of them together: one whose parts are no records would end
        the run, and one whose parts never come would keep the others waiting.
        """
        if not isinstance(self.grid, HttpGrid):
            replies = self.grid.pull_messages(sorted(waiting))
            yield from ((reply.metadata.reply_to_message_id, reply) for reply in replies)
            return
        client, node, run = self.grid._runtime_client, self.grid.node, self.grid.run.run_id
        if unheard := waiting - coming.keys():
            found = client.PullMessages(PullAppMessagesRequest(message_ids=sorted(unheard)))
            for head, parts in zip(found.messages_list, found.message_object_trees, strict=True):
                names = [part.object_id for part in iterate_object_tree(parts)]
                coming.setdefault(head.metadata.reply_to_message_id, Coming(head.metadata, names))
        for asked, one in [*coming.items()]:
            reply = None
            try:
                if not one.whole(make_pull_object_fn_protobuf(client.PullObject, node, run)):
                    continue
                reply = one.opened()
            except httpx.HTTPError:  # of the SuperLink, and no client's fault
                raise
            except Exception as error:  # whatever Flower's readers raise about bytes that a client chose
                LOG.warning("A reply of node %d cannot be read (%s)", one.told.src_node_id, type(error).__name__)
            del coming[asked]
            client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=one.told.message_id)
            )
            yield asked, reply

    def present(self) -> list[int]:
        """The nodes that are connected."""
        return sorted(self.grid.get_node_ids())

    def hello(self, nodes: Iterable[int], hello: Hello, timeout: float) -> dict[int, Welcome | str]:
        """Tell nodes what will be trained. What each of them says of itself, or why it refuses; silence is neither."""
        content = hello.pack()
        messages = [Message(content, dst_node_id=node, message_type=f"query.{HELLO}") for node in nodes]
        replies = list(self.send_and_receive(messages, timeout=timeout)) if messages else []
        places = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        return {places[reply.metadata.reply_to_message_id]: _welcome(reply) for reply in replies}


@dataclass
class Coming:
    """A reply that the SuperLink has, perhaps not all of it yet."""

    told: Metadata  # who sent it, and what it replies to, as the SuperLink has checked
    parts: list[str]
    contents: dict[str, bytes] = field(default_factory=dict)

    def whole(self, pull: Callable[[str], bytes]) -> bool:
        """Fetch what is there, and say whether that is all."""
        if len(self.parts) > PARTS:
            raise ProtocolError(f"It has {len(self.parts)} parts, and {PARTS} are enough.")
        try:
            for part in self.parts:
                if part not in self.contents:
                    self.contents[part] = pull(part)
                    if sum(map(len, self.contents.values())) > MOST:
                        raise ProtocolError(f"It has more than {MOST} bytes.")
        except ObjectUnavailableError:  # its sender is still at it
            return False
        return True

    def opened(self) -> Message:
        """As a message. What it says of itself besides its content, nobody has checked, and nobody reads."""
        reply = inflate_object_from_contents(self.told.message_id, self.contents)
        if not isinstance(reply, Message):
            raise ProtocolError("It is no message.")
        names = ("message_id", "reply_to_message_id", "src_node_id")
        vars(reply.metadata).update({f"_{name}": getattr(self.told, name) for name in names})
        return reply


def _numbered(numbers: Iterable[str], some: Iterable[T]) -> dict[str, T]:
    """By the numbers that messages got. What Flower does not take has none; where all are too much for it, none has."""
    return {number: one for number, one in zip(numbers, some, strict=False) if number}


def _copy(message: Message) -> Message:
    told = message.metadata
    return Message(message.content, dst_node_id=told.dst_node_id, message_type=told.message_type)


def _welcome(reply: Message) -> Welcome | str:
    if reply.has_error():
        return "".join(letter if letter.isprintable() else " " for letter in str(reply.error.reason)[:REASON])
    try:
        return Welcome.unpack(reply.content)
    except ProtocolError as error:
        return str(error)


def server_app(main: Callable[[Link, Mapping[str, Any]], None]) -> ServerApp:
    """A ServerApp that calls a function of ours with the link and the settings of the run."""
    app = ServerApp()

    @app.main()
    def run(grid: FlowerGrid, context: Context) -> None:
        main(Link(grid), context.run_config)

    return app
