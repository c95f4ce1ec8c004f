"""On the client: a ClientApp that does the step a message names. Its data and its memory never leave it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from ... import tree
from ...data.federation import Federation
from ...errors import ProtocolError, StepError
from ...method import Method
from ...tree import Tree
from ..home import WEIGHT, Homes, PackedHome, entropy
from .wire import Header, pack, unpack

MEMORY, SCRATCH, NUMBER, OCCASION, HELD = "memory", "scratch", "scratch-number", "occasion", "held"


def client_app(method: Method, federations: Sequence[Federation], *, simulated: bool = False) -> ClientApp:
    """One action a client step, so that a server can ask for these and for nothing else.

    A client's noise is secret. Only clients that are `simulated` draw it from the public seed, so that a run repeats.
    """
    app, side = ClientApp(), Side(method, federations, None if simulated else entropy)
    for step in steps(type(method)):
        app.query(step)(partial(side.do, step))
    return app


def steps(kind: type[Method]) -> list[str]:
    """The names of a method's client steps: they take `home`, and all else by keyword."""
    return [name for name, function in inspect.getmembers(kind, inspect.isfunction) if _is_step(function)]


def blank_memory(method: Method, federation: Federation) -> Tree:
    """What a client holds before its first round; it follows from the method and the seed, so nobody sends it."""
    return method.memory(torch.Generator().manual_seed(federation.seed))


# on the client


class Side:
    """What clients know before the first message: the method, and where their own examples are."""

    def __init__(
        self, method: Method, federations: Sequence[Federation], entropy: Callable[[int], Tensor] | None
    ) -> None:
        self.method, self.entropy = method, entropy
        self.homes = Homes(federations, torch.device("cpu"), method.task.dtype)
        self.blanks = [blank_memory(method, federation) for federation in federations]

    def do(self, step: str, message: Message, context: Context) -> Message:
        """One step of the client that the context belongs to."""
        header = Header.unpack(message.content.config_records["header"])
        arrays = message.content.array_records
        notes = Notes(context.state, header)
        card = self.homes.cards(header.run, torch.tensor([int(context.node_config["partition-id"])]))[0]
        memory = notes.memory(self.blanks[header.run])
        room = self.homes.room(card)
        home = PackedHome(self.homes, card, torch.tensor(header.round), memory, self.entropy, room)
        reply = getattr(self.method, step)(home, **notes.receive(arrays["shared"]), **unpack(arrays["each"]))
        if not bool(
            tree.finite(reply | {"kept": home.memory})
        ):  # nonsense is silence, and the silent keep what they had
            raise StepError(f"Step {step!r} came to numbers that are not finite.")
        notes.remember(home.memory)
        weight = MetricRecord({"weight": int(card[WEIGHT])})
        return Message(RecordDict({"reply": pack(reply), "metrics": weight}), reply_to=message)


class Notes:
    """A client's own records in its `context.state`: memory, an evaluation's scribbles, and what this round sent."""

    def __init__(self, state: RecordDict, header: Header) -> None:
        self.state, self.header = state, header

    def memory(self, blank: Tree) -> Tree:
        """The memory; in an evaluation that has scribbled over it, those scribbles."""
        number, scratch = self.state.config_records.get(NUMBER), self.header.scratch
        here = SCRATCH if scratch is not None and number is not None and number["scratch"] == scratch else MEMORY
        return unpack(self.state.array_records[here]) if here in self.state else blank

    def remember(self, memory: Tree) -> None:
        if not memory:
            return
        if self.header.scratch is None:
            self.state[MEMORY] = pack(memory)
        else:
            self.state[SCRATCH], self.state[NUMBER] = pack(memory), ConfigRecord({"scratch": self.header.scratch})

    def receive(self, shared: ArrayRecord) -> Tree:
        """What all clients are sent now, and what the server need not send again."""
        held, sent = self._held(), unpack(shared)
        if missing := set(self.header.recall) - held.keys():
            raise ProtocolError(f"This client does not hold {', '.join(sorted(missing))} in round {self.header.round}.")
        if sent:
            self.state[self._drawer] = pack(held | sent) if held else shared
        return sent | {name: held[name] for name in self.header.recall}

    def _held(self) -> Tree:
        """What arrived in this round. An evaluation may have rounds of its own, which all end with it."""
        header = self.header
        occasion = f"round {header.round}" if header.scratch is None else f"evaluation {header.scratch}"
        before = self.state.config_records.get(OCCASION)
        if before is None or before["name"] != occasion:
            for name in [name for name in self.state if name.startswith(HELD)]:
                del self.state[name]
            self.state[OCCASION] = ConfigRecord({"name": occasion})
        return unpack(self.state.array_records.get(self._drawer, ArrayRecord()))

    @property
    def _drawer(self) -> str:
        return f"{HELD} {self.header.round}"


def _is_step(function: Any) -> bool:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return positional == ["home"] and not function.__name__.startswith("_")
