"""The boundary between server and clients.

A method calls `clients.run(self.step, shared=..., each=...)`; everything that crosses is an argument or the return
value of that call. Names, phases, faults, bytes, non-finite replies and the ledger are handled here and nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from . import tree
from .errors import ProtocolError, TooFewReplies
from .faults import DROP, Faults, spoil
from .ops.stopwatch import Stopwatch
from .ops.upload import upload
from .replies import By, Collector, Replies, Rules
from .secure.sizes import besides
from .steps import Phase, Step, answers_of, check_names, check_phase, listed, phase_of
from .tree import Tree


@dataclass(frozen=True)
class Sending:
    """What goes to the clients: the same for all, a row for each, and names of what they hold already this round."""

    shared: Tree = field(default_factory=dict)
    each: Tree = field(default_factory=dict)
    recall: tuple[str, ...] = ()
    to: Tensor | None = None  # [cohort] bool, on the CPU: who gets it, a row of `each` for everyone; None: everybody


@dataclass
class Ask:
    """One exchange as an engine sees it: who is asked what. The engine answers by calling `take`, once or in parts."""

    run: int  # which of the federations in lockstep
    round: int
    ids: Tensor  # [cohort], on the CPU
    silent: Tensor  # [cohort] bool, on the engine's device: their answers will be ignored, their memory stays as it is
    faults: Tensor | None  # [cohort], likewise: what happens to answers on their way, as a place in `faults.KINDS`
    shared: Tree
    each: Tree  # rows in the order of ids
    recalled: Tree  # what every client was sent earlier this round; it does not travel again
    scratch: int | None  # None in training; else the number of an evaluation, whose memories are not kept
    collector: Collector
    rows: Tensor | None = None  # client rows that the engine made beforehand: it then looks at neither ids nor round

    def take(self, rows: slice, each: Tree, weight: Tensor, heard: Tensor) -> None:
        """Answers of these rows of the cohort; parts come in order."""
        heard = heard & ~self.silent[rows]
        if self.faults is not None:
            each, heard = spoil(each, heard, self.faults[rows])
        self.collector.take(each, weight, heard)

    def part(self, rows: slice) -> Ask:
        """The same, of some of the clients, to be done elsewhere: what all are sent goes there by itself."""
        return replace(
            self,
            ids=self.ids[rows],
            silent=self.silent[rows],
            faults=None if self.faults is None else self.faults[rows],
            shared={},
            each=tree.row(self.each, rows),
            recalled={},
            collector=self.collector.alike(),
        )


class Engine(Protocol):
    """Runs a client step for the clients of one or several asks (several: seeds in lockstep)."""

    device: torch.device

    @property
    def one_by_one(self) -> bool:
        """Whether a step sees the tensors of one client, and not those of many that are mapped."""

    def exchange(self, step: str, asks: Sequence[Ask]) -> None: ...

    def memories(self, run: int) -> Tree:
        """What the clients of a run have kept, for a checkpoint; empty where the engine cannot know."""

    def remember(self, run: int, kept: Tree) -> None:
        """The way back."""


@dataclass(frozen=True)
class Exchange:
    """One line of the ledger. Masks stay tensors until they are written, so that a round never waits for the GPU."""

    round: int
    step: str
    ids: Tensor  # [cohort], on the CPU
    asked: Tensor  # [cohort] bool
    answered: Tensor  # [cohort] bool
    down_each: int  # bytes to one client
    up_each: int  # bytes from one client
    seconds: Callable[[], float] | None  # None: a round replayed as a whole has one time, which its last exchange tells
    skipped: bool = False  # whether the round ended here, for want of replies
    masked: bool = False  # whether replies came under masks, for which keys and shares were sent, too

    def line(self) -> dict[str, Any]:
        asked, answered = self.asked.cpu(), self.answered.cpu()
        counts = int(asked.sum()), int(answered.sum())
        down, up = besides(*counts) if self.masked else (0, 0)
        line: dict[str, Any] = {
            "round": self.round,
            "step": self.step,
            "asked": counts[0],
            "answered": counts[1],
            "down": counts[0] * self.down_each + down,
            "up": counts[1] * self.up_each + up,
            "seconds": None if self.seconds is None else round(self.seconds(), 6),
        }
        if unheard := self.ids[asked & ~answered].tolist():  # no reply, or none that counts
            line["unheard"] = unheard
        return line | ({"skipped": True} if self.skipped else {})


@dataclass
class Clients:
    """A cohort, seen from the server.

    Methods may calculate with `round` and look clients up by `index`, on the server's device; they decide by `number`,
    `ids` and `only`, on the host. Rounds that decide nothing on the host may be replayed as a whole.
    """

    engine: Engine
    ids: Tensor  # [cohort]: who takes part, on the CPU, to decide by
    number: int  # of the round, to decide by; below zero for what is no round of training
    run_index: int = 0
    scratch: int | None = None
    faults: Faults | None = None  # what goes wrong on purpose
    rules: Rules = field(default_factory=Rules)
    min_replies: int = 0  # with fewer replies the round is given up
    noise: Callable[[str, int, torch.dtype], Tensor] | None = None  # (step, size, kind): the server's own, for means
    ledger: list[Exchange] = field(default_factory=list)
    silent: Tensor | None = None  # silent once, silent for the rest of the round
    held: Tree = field(default_factory=dict)  # what every client was sent earlier this round
    asked: frozenset[str] = frozenset()  # names of the steps that all of these clients were asked for this round
    within: tuple[Clients, Tensor] | None = None  # the cohort that these are a part of, and which of it they are

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def phase(self) -> Phase:
        """Whether this is a round of training or personalisation."""
        return phase_of(self.number, self.scratch)

    @property
    def index(self) -> Tensor:
        """The ids on the server's device, to look clients up in a table."""
        return upload(self.ids, self.engine.device)

    @property
    def round(self) -> Tensor:
        """The number of the round, on the server's device, to calculate with."""
        return upload(torch.tensor(self.number), self.engine.device)

    def run(
        self, step: Step, *, shared: Tree | None = None, each: Tree | None = None, recall: Sequence[str] = ()
    ) -> Replies:
        """Let every client of the cohort do `step`, and gather the replies as rows."""
        return self._exchange(step, Sending(shared or {}, each or {}, tuple(recall)), None).replies()

    def mean(
        self,
        step: Step,
        *,
        shared: Tree | None = None,
        each: Tree | None = None,
        recall: Sequence[str] = (),
        by: By = "clients",
    ) -> Tree:
        """The mean of the replies; they are folded as they come and never stacked."""
        noise = partial(self.noise, step.__name__) if self.noise else None
        return self._exchange(step, Sending(shared or {}, each or {}, tuple(recall)), by).mean(noise)

    def send(self, step: Step, sendings: Sending | Sequence[Sending]) -> Replies:
        """Let every client do `step` with what was prepared for it: one exchange a sending, and rows as `run` has them.

        Several sendings, each to a part of the cohort, are for messages whose shapes differ from part to part.
        """
        if isinstance(sendings, Sending):
            return self._exchange(step, sendings, None).replies()
        masks = [torch.ones(len(self), dtype=torch.bool) if part.to is None else part.to for part in sendings]
        if not (torch.stack([torch.zeros(len(self)), *masks]).sum(0) == 1).all():
            raise ProtocolError(f"Step {step.__name__!r} needs one message for every client, neither none nor several.")
        replies = [
            self.only(mask)._exchange(step, part, None).replies() for mask, part in zip(masks, sendings, strict=True)
        ]
        order = upload(torch.cat([mask.nonzero()[:, 0] for mask in masks]).argsort(), self.engine.device)
        each = tree.row(tree.concatenate([part.each for part in replies]), order)
        heard, weight = (torch.cat([getattr(part, name) for part in replies])[order] for name in ("heard", "weight"))
        return Replies(each, heard, weight, self.rules)

    def only(self, which: Tensor) -> Clients:
        """The clients of this cohort for which the mask (on the CPU) holds; they hold what all were sent."""
        silent = None if self.silent is None else self.silent[which.to(self.silent.device)]
        return replace(self, ids=self.ids[which], silent=silent, within=(self, which))

    def turns(self, count: int) -> list[Clients]:
        """The same cohort for `count` rounds of its own, each with batches of its own (for fitting a latecomer)."""
        if self.phase == "round":
            raise ProtocolError("A round of training has no turns; they are for personalisation.")
        return [
            replace(self, number=self.number - 1 - k, held={}, asked=frozenset(), within=None) for k in range(count)
        ]

    def _exchange(self, step: Step, sending: Sending, fold: By | None) -> Collector:
        name = step.__name__
        self._check(step, sending, rows=fold is None)
        shared, each = tree.detach(sending.shared), tree.detach(sending.each)
        silent = torch.zeros(len(self), dtype=torch.bool, device=self.engine.device)
        if self.silent is not None:
            silent = self.silent
        faults = None
        if self.faults is not None:
            faults = upload(self.faults(self.ids, self.number, name).long(), silent.device)
            silent = silent | (faults == DROP)
        kind = answers_of(type(step.__self__), name) if inspect.ismethod(step) else "message"
        rules = self.rules.for_answers(kind, self.phase)
        if rules.secure is not None and fold is None:
            raise ProtocolError(f"The replies to {name!r} come under masks: ask for their mean, by `clients.mean`.")
        collector = Collector(fold, self.phase == "round", rules)
        recalled = {key: self.held[key] for key in sending.recall}
        watch = Stopwatch(self.engine.device)
        ask = self._ask(silent, faults, shared, each, recalled, collector)
        self.engine.exchange(name, [ask])
        heard, masked = collector.heard(~silent), collector.rules.secure is not None
        down = tree.nbytes(shared) + tree.nbytes(each) // max(len(self), 1)
        self._fall_silent(~heard)
        skipped = self._too_few()
        sizes = down, collector.up_each
        self.ledger.append(Exchange(ask.round, name, ask.ids, ~silent, heard, *sizes, watch.stop(), skipped, masked))
        if skipped:
            raise TooFewReplies(f"Fewer than {self.min_replies} clients answered {name!r} in round {ask.round}.")
        self.held = self.held | shared
        self.asked = self.asked | {name}
        return collector

    def _ask(
        self, silent: Tensor, faults: Tensor | None, shared: Tree, each: Tree, recalled: Tree, collector: Collector
    ) -> Ask:
        who = self.run_index, self.number, self.ids, silent, faults
        return Ask(*who, shared, each, recalled, self.scratch, collector)

    def _too_few(self) -> bool:
        """Whether too few of the whole cohort are left."""
        if self.within is not None:
            return self.within[0]._too_few()
        return bool(self.min_replies) and self.silent is not None and int((~self.silent).sum()) < self.min_replies

    def _fall_silent(self, silent: Tensor) -> None:
        """For the rest of the round; the cohort that these are a part of has to know, too."""
        self.silent = silent
        if self.within is not None:
            cohort, which = self.within
            before = torch.zeros(len(cohort), dtype=torch.bool, device=silent.device)
            before = before if cohort.silent is None else cohort.silent
            cohort._fall_silent(before.masked_scatter(upload(which, silent.device), silent))

    def _check(self, step: Step, sending: Sending, rows: bool) -> None:
        name, shared, each = step.__name__, sending.shared, sending.each
        check_phase(step, self.phase)
        if name in self.asked:
            raise ProtocolError(f"Step {name!r} was asked for already; a client answers each step once a round.")
        if sending.to is not None and int(sending.to.sum()) != len(self):
            raise ProtocolError(f"Step {name!r} is sent to {int(sending.to.sum())} of {len(self)} clients alone.")
        if both := shared.keys() & each.keys():
            raise ProtocolError(f"Step {name!r} is sent {listed(both)} both as shared and as each.")
        if self.rules.processors.central and rows and self.phase == "round":
            raise ProtocolError(
                f"Step {name!r} is to be averaged with noise, so its replies cannot be read one by one."
            )
        if unknown := set(sending.recall) - self.held.keys():
            raise ProtocolError(
                f"Step {name!r} recalls {listed(unknown)}, but this round sent only {listed(self.held)}."
            )
        check_names(step, shared.keys() | each.keys() | set(sending.recall))
        for path, leaf in tree.flatten(each).items():
            if leaf.ndim == 0 or len(leaf) != len(self):
                raise ProtocolError(
                    f"Step {name!r}: {path!r} is sent to each of {len(self)} clients but has shape {[*leaf.shape]}."
                )
