"""On the client: one that can take part in any training, and makes its method from what a hello says: data, no code."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from ...data.federation import Federation
from ...errors import LatecomerError, OddValue, ProtocolError, RunError, StepError
from ...method import Method
from ...steps import steps
from ..home import entropy
from .app import Keeper, Side
from .hello import HELLO, KEEP_MODEL, Hello, Welcome
from .spending import LEDGER
from .wire import Header, check_name

TRAINING = "training"  # in a client's state: what it knows of a training
NOBODY = -1  # the number of a client that has none yet
AT_ONCE = 4  # trainings whose methods are kept ready


class Host(Protocol):
    """Who owns the examples, and decides what they are used for. Whatever it refuses it says in one sentence."""

    reports_scores: bool

    def welcome(self, hello: Hello) -> Welcome:
        """The answer to a server that wants to begin a training."""

    def takes_part(self, settings: str, client: int) -> tuple[Method, Federation]:
        """The method of such a training, and a federation in which the client of this number has the examples."""

    def keeper(self, training: str, settings: str, client: int) -> Keeper:
        """Makes the client's own model of what `personalise` sends, and keeps it."""


class Participant:
    """Answers messages of any training. What it knows of one is in that training's state and nowhere else."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.sides: OrderedDict[tuple[str, str, int], Side] = OrderedDict()

    def answer(self, message: Message, state: RecordDict) -> Message:
        """The reply, and what has to be kept of it in the state; or one sentence why there is none."""
        action = message.metadata.message_type.partition(".")[2]
        if action == HELLO:
            return self._welcome(message, state)
        header = header_of(message)
        training = state.config_records.get(TRAINING)
        if training is None or training["training"] != header.training:
            raise ProtocolError(f"Nobody has said hello here for the training {header.training!r}.")
        known = int(training["client"])  # type: ignore[arg-type]
        if known not in (NOBODY, header.client):
            raise ProtocolError(f"This is client {known} of the training {header.training!r}, not {header.client}.")
        side = self._side(header.training, str(training["settings"]), header.client)
        if action not in (KEEP_MODEL, *steps(type(side.method)), *side.stages):
            raise ProtocolError(f"{side.terms.method} has no step {action!r}.")
        training["client"] = header.client
        return side.do(action, message, state, header.client)

    def _welcome(self, message: Message, state: RecordDict) -> Message:
        """A training that is here already goes on: the server was killed, and asks who is there."""
        hello = Hello.unpack(message.content)
        welcome = self.host.welcome(hello)
        known = state.config_records.get(TRAINING)
        if known is None or known["training"] != hello.training:
            for name in [name for name in state if name != LEDGER]:
                del state[name]
            known = state[TRAINING] = ConfigRecord({"training": hello.training, "client": NOBODY})
        known["settings"] = hello.settings
        return Message(welcome.pack(), reply_to=message)

    def _side(self, training: str, settings: str, client: int) -> Side:
        """Made once; after a restart, or when many trainings go on at once, again."""
        key = training, settings, client
        if key not in self.sides:
            method, federation = self.host.takes_part(settings, client)
            keeper = self.host.keeper(training, settings, client)
            self.sides[key] = Side(method, [federation], entropy, self.host.reports_scores, keeper)
        self.sides.move_to_end(key)
        while len(self.sides) > AT_ONCE:
            self.sides.popitem(last=False)
        return self.sides[key]


def header_of(message: Message) -> Header:
    record = message.content.config_records.get("header")
    if record is None:
        raise ProtocolError("A message must have a header and a body, and nothing else.")
    return Header.unpack(record)


def training_of(message: Message) -> str:
    """Which training a message belongs to, whatever else it says."""
    name = dict(message.content.config_records.get("header", {})).get("training") if message.has_content() else None
    if not isinstance(name, str):
        raise ProtocolError("A message must have a header that names its training.")
    check_name(name)
    return name


def for_server(error: LatecomerError) -> LatecomerError:
    """What a server may read of an error: no path, and no number of the client's own, which it could ask for."""
    if isinstance(error, RunError | OddValue):
        return StepError("Something on this client's side does not fit; its own log says what.")
    return error


class ParticipantApp(ClientApp):
    """For a stock SuperNode, which starts a process for each message: all that lasts is in `context.state`."""

    def __init__(self, host_for: HostFor) -> None:
        super().__init__()
        self.host_for = host_for

    def __call__(self, message: Message, context: Context) -> Message:
        try:
            return Participant(self.host_for(dict(context.node_config))).answer(message, context.state)
        except LatecomerError as error:
            raise for_server(error) from error
        except Exception as error:  # what nobody foresaw may have numbers in it that are the client's own
            raise StepError("This client failed; its own log says why.") from error


class HostFor(Protocol):
    """Who answers on a node that was started with this `--node-config`."""

    def __call__(self, config: dict[str, object]) -> Host: ...
