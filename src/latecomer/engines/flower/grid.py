"""Between server and clients: a grid inside this process. Real messages, a real ClientApp, no network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import uuid4

import torch
from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from ... import tree
from ...tree import Tree
from .notes import MEMORY
from .wire import pack, unpack

RAISED = 2  # Flower's code for a ClientApp that raised
SPAN = 2**32  # node ids that one run in lockstep has to itself


class LocalGrid:
    """Delivers messages one by one. Every client of every run is a node with a context of its own."""

    def __init__(self, app: ClientApp) -> None:
        self.app = app
        self.contexts: dict[int, Context] = {}
        _identify()

    def node(self, run: int, client: int) -> int:
        return (run + 1) * SPAN + client

    def context(self, node: int) -> Context:
        if node not in self.contexts:
            place: UserConfig = {"partition-id": node % SPAN}
            self.contexts[node] = Context(run_id=1, node_id=node, node_config=place, state=RecordDict(), run_config={})
        return self.contexts[node]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())  # as Flower's own grids do
            reply = self.deliver(message)
            if reply is not None:
                yield reply

    def memories(self, run: int) -> Tree:
        """All that the clients of a run have written, in the form that every engine reads."""
        contexts = {node % SPAN: context for node, context in self.contexts.items() if node // SPAN == run + 1}
        states = {client: context.state for client, context in contexts.items() if MEMORY in context.state}
        if not states:
            return {}
        ids = sorted(states)
        rows = [unpack(states[client][MEMORY]) for client in ids]
        return {"ids": torch.tensor(ids), "rows": tree.stack(rows)}

    def remember(self, run: int, kept: Tree) -> None:
        for node in [node for node in self.contexts if node // SPAN == run + 1]:
            del self.contexts[node]
        for k, client in enumerate(kept["ids"].tolist() if kept else []):
            self.context(self.node(run, client)).state[MEMORY] = pack(tree.row(kept["rows"], k))

    def deliver(self, message: Message) -> Message | None:
        """The client's reply, or the error that a node sends in its place; None would be a node that is gone."""
        try:
            return self.app(message, self.context(message.metadata.dst_node_id))
        except Exception as error:  # whatever a client raises must reach the server as a message
            return Message(Error(RAISED, f"{type(error).__name__}: {error}"), reply_to=message)


def _identify() -> None:
    """Messages carry the identity of the process that makes them; outside a Flower run it has none yet."""
    try:
        _ = TaskIdentity.run_id
    except RuntimeError:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
