"""On the client: a ClientApp that does the step a message names. Its data and its memory never leave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from ... import tree
from ...data.federation import Federation
from ...errors import LatecomerError, ProtocolError, StepError
from ...method import Method
from ...steps import check_names, perform, phase_of, phases_of, steps
from ..blank import blank_memory
from ..home import WEIGHT, Homes, PackedHome, entropy
from .notes import Notes
from .spending import charge
from .wire import Header, pack, unpack


def client_app(
    method: Method, federations: Sequence[Federation], *, simulated: bool = False, reports_scores: bool = False
) -> ClientApp:
    """One action a client step, so that a server can ask for these and for nothing else.

    A member answers the steps of rounds and of personalisation, any other client those of personalisation alone, and
    `score` is answered by clients that agreed to report scores. A client's noise is secret. Only clients that are
    `simulated` draw it from the public seed, so that a run repeats, and report scores in any case.
    """
    app, side = ClientApp(), Side(method, federations, None if simulated else entropy, reports_scores or simulated)
    for step in steps(type(method)):
        app.query(step)(partial(side.do, step))
    return app


# on the client


class Side:
    """What clients know before the first message: the method, and where their own examples are."""

    def __init__(
        self,
        method: Method,
        federations: Sequence[Federation],
        entropy: Callable[[int], Tensor] | None,
        reports_scores: bool,
    ) -> None:
        self.method, self.entropy, self.reports_scores = method, entropy, reports_scores
        self.homes = Homes(federations, torch.device("cpu"), method.task.dtype)
        self.blanks = [blank_memory(method, federation.seed) for federation in federations]

    def do(self, step: str, message: Message, context: Context) -> Message:
        """The answer. What a client raises travels: of what nobody raised on purpose, that it failed and no more."""
        try:
            return self.answer(step, message, context)
        except LatecomerError:
            raise
        except Exception as error:  # PyTorch's sentences have numbers in them, which may be a client's own
            if self.entropy is None:  # simulated, with nothing to hide
                raise
            raise StepError(f"This client failed at {step!r}; its own log says why.") from error

    def answer(self, step: str, message: Message, context: Context) -> Message:
        """One step of the client that the context belongs to, if it agrees to it."""
        client, arrays = int(context.node_config["partition-id"]), message.content.array_records
        header = self.read(message.content, step)
        phase = phase_of(header.round, header.scratch)
        self.agree(step, header, client)
        notes, work = Notes(context.state, header), getattr(self.method, step)
        sent = unpack(arrays["shared"]) | notes.recall() | unpack(arrays["each"])
        check_names(work, sent)
        notes.answer(step, arrays["shared"])
        row = self.homes.client_rows(header.run, torch.tensor([client]))[0]
        memory = notes.memory(self.blanks[header.run])
        home = PackedHome(self.homes, row, torch.tensor(header.round), memory, self.entropy, self.homes.room(row))
        charge(context.state, self.method.gives_away(step, phase), message, header.round)
        reply = perform(self.method, step, home, sent, phase)
        if not bool(tree.finite(reply | {"kept": home.kept})):
            raise ProtocolError("This client's answer was not finite.")  # and the silent keep what they had
        notes.remember(home.kept)
        content = RecordDict({"reply": pack(reply)})
        if phase == "round":
            content["metrics"] = MetricRecord({"weight": int(row[WEIGHT])})
        return Message(content, reply_to=message)

    def read(self, content: RecordDict, step: str) -> Header:
        """What a message says about itself; refuse what is none for a step, or for a run that is not here."""
        if "header" not in content.config_records or not {"shared", "each"} <= content.array_records.keys():
            raise ProtocolError("A message must have a header, what all clients are sent, and what this one is.")
        header = Header.unpack(content.config_records["header"])
        if header.step != step or not 0 <= header.run < len(self.blanks):
            raise ProtocolError(f"A message about {header.step!r} in run {header.run} cannot ask for {step!r} here.")
        return header

    def agree(self, step: str, header: Header, client: int) -> None:
        """Refuse what the method does not let a client in this role be asked for."""
        phase, declared = phase_of(header.round, header.scratch), phases_of(type(self.method), step)
        if phase == "round" and client >= self.method.members:
            raise ProtocolError(f"This client is not a member, so no round of training can ask it for {step!r}.")
        if phase == "personalise" and "score" in declared:
            if not self.reports_scores:
                raise ProtocolError(f"This client does not report scores, so nobody can ask it for {step!r}.")
        elif phase not in declared:
            raise ProtocolError(f"This client does not answer {step!r} in {phase!r}, only in {' and '.join(declared)}.")
