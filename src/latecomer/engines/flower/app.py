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
from ...method import Home, Method
from ...privacy import Ledger
from ...steps import Phase, check_names, perform, phase_of, phases_of, steps
from ...tree import Tree
from ..blank import blank_memory
from ..home import WEIGHT, Homes, PackedHome, entropy
from .hello import KEEP_MODEL
from .masks import Masks, stages, under_masks
from .notes import Body, Notes, Traffic
from .spending import charge, ledger
from .terms import Terms
from .wire import Header, blob_of, fingerprint, pack, unpack

Keeper = Callable[[Home, Tree, Traffic, Ledger], None]
"""Makes a client's own model, from what `personalise` sent, and keeps it, with what the client has sent and spent."""


def client_app(
    method: Method, federations: Sequence[Federation], *, simulated: bool = False, reports_scores: bool = False
) -> ClientApp:
    """One action a client step, so that a server can ask for these and for nothing else.

    A member answers the steps of rounds and of personalisation, any other client those of personalisation alone, and
    `score` is answered by clients that agreed to report scores. A client's noise is secret. Only clients that are
    `simulated` draw it from the public seed, so that a run repeats, and report scores in any case.
    """
    app, side = ClientApp(), Side(method, federations, None if simulated else entropy, reports_scores or simulated)

    def answer(step: str, message: Message, context: Context) -> Message:
        return side.do(step, message, context.state, int(context.node_config["partition-id"]))

    for step in (*steps(type(method)), *side.stages):
        app.query(step)(partial(answer, step))
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
        keeper: Keeper | None = None,  # of the model that a client makes of what `personalise` sends
    ) -> None:
        self.method, self.entropy, self.reports_scores, self.keeper = method, entropy, reports_scores, keeper
        self.terms, self.stages = Terms.of(method), stages(method)
        self.homes = Homes(federations, torch.device("cpu"), method.task.dtype)
        self.blanks = [blank_memory(method, federation.seed) for federation in federations]

    def do(self, step: str, message: Message, state: RecordDict, client: int) -> Message:
        """The answer. What a client raises travels: of what nobody raised on purpose, that it failed and no more."""
        try:
            return self.answer(step, message, state, client)
        except LatecomerError:
            raise
        except Exception as error:  # PyTorch's sentences have numbers in them, which may be a client's own
            if self.entropy is None:  # simulated, with nothing to hide
                raise
            raise StepError(f"This client failed at {step!r}; its own log says why.") from error

    def answer(self, step: str, message: Message, state: RecordDict, client: int) -> Message:
        """One step of the client whose state it is, if it agrees to it."""
        header, sent = self.read(message.content, step, client)
        phase = phase_of(header.round, header.scratch)
        self.agree(step, phase, client)
        body: Body = message.content["body"]  # type: ignore[assignment]
        notes, asked = Notes(state, header), fingerprint(header, blob_of(body))
        row = self.homes.client_rows(header.run, torch.tensor([client]))[0]
        masked, reply = under_masks(self.method, step, phase), notes.kept(step, asked)
        if reply is None and step in self.stages:
            notes.answer(step, asked, None, tree.nbytes(sent))
            stage, around = self.stages[step]
            values = Masks(state, notes.place("masks", around)).answer(stage, client, sent)
            reply = pack(values)
            notes.keep(step, reply, tree.nbytes(values))
        if reply is None:
            given = sent["shared"] | notes.recall() | sent["each"]
            check_names(self.method.model if step == KEEP_MODEL else getattr(self.method, step), given)
            notes.answer(step, asked, body if sent["shared"] else None, tree.nbytes(sent))
            memory = notes.memory(self.blanks[header.run])
            home = PackedHome(self.homes, row, torch.tensor(header.round), memory, self.entropy, self.homes.room(row))
            charge(state, self.method.gives_away(step, phase), message, header.round)
            if step == KEEP_MODEL and self.keeper is not None:
                self.keeper(home, given, notes.traffic, ledger(state))
                values = {}
            else:
                values = perform(self.method, step, home, given, phase)
            if not bool(tree.finite(values | {"kept": home.kept})):
                raise ProtocolError("This client's answer was not finite.")  # and the silent keep what they had
            if masked:
                masks = Masks(state, notes.place("masks", step))
                values = masks.hide(self.method, values, int(row[WEIGHT]), sent["masks"])
            notes.remember(home.kept)
            reply = pack(values)
            notes.keep(step, reply, tree.nbytes(values))
        content = RecordDict({"body": reply})
        if phase == "round" and not masked and step not in self.stages:
            content["metrics"] = MetricRecord({"weight": int(row[WEIGHT])})
        return Message(content, reply_to=message)

    def read(self, content: RecordDict, step: str, client: int) -> tuple[Header, Tree]:
        """A message, if it is one for a step of this client in a run that is here, by a server that means the same."""
        if set(content) != {"header", "body"} or "header" not in content.config_records:
            raise ProtocolError("A message must have a header and a body, and nothing else.")
        header = Header.unpack(content.config_records["header"])
        if header.step != step or not 0 <= header.run < len(self.blanks):
            raise ProtocolError(f"A message about {header.step!r} in run {header.run} cannot ask for {step!r} here.")
        if header.client != client:
            raise ProtocolError(f"A message for client {header.client} came to client {client}.")
        self.terms.check(Terms(header.method, header.settings, header.version))
        sent = unpack(content["body"])
        parts = {"shared", "each"}
        if under_masks(self.method, step, phase_of(header.round, header.scratch)):
            parts |= {"masks"}
        if sent.keys() != parts or not all(isinstance(part, dict) for part in sent.values()):
            raise ProtocolError("A message must have what all clients are sent, and what this one is.")
        return header, sent

    def agree(self, step: str, phase: Phase, client: int) -> None:
        """Refuse what the method does not let a client in this role be asked for."""
        declared = phases_of(type(self.method), step)
        if step == KEEP_MODEL and self.keeper is not None:
            declared = ("personalise",)
        if step in self.stages:
            declared = ("round",)
        if phase == "round" and client >= self.method.members:
            raise ProtocolError(f"This client is not a member, so no round of training can ask it for {step!r}.")
        if phase == "personalise" and "score" in declared:
            if not self.reports_scores:
                raise ProtocolError(f"This client does not report scores, so nobody can ask it for {step!r}.")
        elif phase not in declared:
            raise ProtocolError(f"This client does not answer {step!r} in {phase!r}, only in {' and '.join(declared)}.")
