"""Between server and clients: a SuperLink, and the nodes that are connected to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid as FlowerGrid
from flwr.serverapp import ServerApp

from ... import __version__
from ...evaluate import MOST_EXAMPLES
from ...tree import Tree

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

    def hello(
        self, nodes: Iterable[int], method: str, training: str, settings: str, timeout: float
    ) -> dict[int, Greeting | str]:
        """Tell nodes what will be trained. What each of them says of itself, or why it refuses; silence is neither."""
        header = ConfigRecord({"version": __version__, "training": training, "method": method})
        content = RecordDict({"header": header, "body": ConfigRecord({"settings": settings})})
        messages = [Message(content, dst_node_id=node, message_type="query.hello") for node in nodes]
        replies = list(self.send_and_receive(messages, timeout=timeout)) if messages else []
        places = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        return {
            places[reply.metadata.reply_to_message_id]: _refusal(reply) or Greeting.read(reply.content)
            for reply in replies
        }


@dataclass(frozen=True)
class Greeting:
    """What a node says of itself before it takes part."""

    prefers: int  # the number that it would like; below zero: any
    labelled: bool
    train: int  # examples
    val: int  # to be scored by; none unless it agreed to report scores
    test: int

    @staticmethod
    def read(content: RecordDict) -> Greeting | str:
        """Of a reply; a sentence where it is none."""
        told: dict[str, Any] = dict(content.config_records.get("body", {}))
        counts: dict[str, Any] = {name: told.get(name) for name in ("prefers", "train", "val", "test")}
        if type(told.get("labelled")) is not bool or not all(_possible(name, count) for name, count in counts.items()):
            return "It did not say, in numbers that can be, how many examples it has."
        return Greeting(labelled=told["labelled"], **counts)


def _possible(name: str, count: Any) -> bool:
    least = {"prefers": -1, "train": 1}.get(name, 0)
    return type(count) is int and least <= count <= MOST_EXAMPLES


def _refusal(reply: Message) -> str:
    """Why a node does not take part, in its own words; empty where it does."""
    return (str(reply.error.reason)[:REASON] or "It failed.") if reply.has_error() else ""


def server_app(main: Callable[[Link, Mapping[str, Any]], None]) -> ServerApp:
    """A ServerApp that calls a function of ours with the link and the settings of the run."""
    app = ServerApp()

    @app.main()
    def run(grid: FlowerGrid, context: Context) -> None:
        main(Link(grid), context.run_config)

    return app
