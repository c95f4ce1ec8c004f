"""Between server and clients: a SuperLink, and the nodes that are connected to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid as FlowerGrid
from flwr.serverapp import ServerApp

from ...errors import ProtocolError
from ...tree import Tree
from .hello import HELLO, Hello, Welcome

SHORTEST, LONGEST, SLOWER = 0.1, 1.0, 1.3  # seconds between two looks for replies, and how the pause grows
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
        """Replies as they come. What comes twice, too late or unasked for is not among them."""
        end = None if timeout is None else time.monotonic() + timeout
        waiting = {number for number in self.grid.push_messages(list(messages)) if number}
        pause = SHORTEST
        while waiting and (end is None or time.monotonic() < end):
            time.sleep(pause)
            pause = min(pause * SLOWER, LONGEST)
            for reply in self.grid.pull_messages(sorted(waiting)):
                if reply.metadata.reply_to_message_id in waiting:
                    waiting.remove(reply.metadata.reply_to_message_id)
                    pause = SHORTEST
                    yield reply

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


def _welcome(reply: Message) -> Welcome | str:
    if reply.has_error():
        return str(reply.error.reason)[:REASON]
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
