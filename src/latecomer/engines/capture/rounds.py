"""The seam between a training and capture: a round of all runs as one captured call, where that can be.

An eager round is `Training.advance`, and nothing else has to be known to follow it. This module does the same round by
one call of one function, from the states of the servers and who takes part, as tensors, to the states after it. Such a
function can be captured (capture.py), and a replay then costs neither Python nor launches. It needs a round that
decides nothing on the host: neither who takes part nor the number of the round may be known to Python, or they would be
frozen into the capture. So `CapturedClients` have both as tensors alone, and looking at them ends the capture; the
training then goes on round by round as it is written.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...clients import Ask, Clients, Engine, Exchange
from ...ops.stopwatch import Stopwatch
from ...replies import Collector, Rules
from ...steps import Phase, phases_of, steps
from ...tree import Tree
from ..home import CLIENT
from .capture import Capture
from .steady import Unsteady

if TYPE_CHECKING:
    from ...train import Training
    from ..vector import Vector

NAME = "a whole round"  # of what is captured
ROUNDS_AHEAD = 64  # rounds whose client rows are sent to the device at a time
CLIENTS_AHEAD = 4096  # clients whose rows are, if a round has not more
UNROLLED = 8  # chunks in the replay of a whole round, one after the other; more replay one chunk each


class CapturedClients(Clients):
    """A cohort whose ids, and the number of whose round, are inputs of a captured call; the host must not look."""

    def __init__(self, engine: Engine, run: int, rows: Tensor, rules: Rules, ledger: list[Exchange]) -> None:
        """`rows` are client rows, [cohort, ...], with the number of the round at the end."""
        super().__init__(engine, torch.empty(0), 0, run, rules=rules, ledger=ledger)
        self.rows = rows

    def __getattribute__(self, name: str) -> Any:
        if name in ("ids", "number"):
            raise Unsteady
        return super().__getattribute__(name)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def phase(self) -> Phase:
        return "round"

    @property
    def index(self) -> Tensor:
        return self.rows[:, CLIENT].contiguous()

    @property
    def round(self) -> Tensor:
        return self.rows[0, -1]

    def _ask(
        self, silent: Tensor, faults: Tensor | None, shared: Tree, each: Tree, recalled: Tree, collector: Collector
    ) -> Ask:
        who = self.run_index, 0, self.rows[:, CLIENT], silent, faults
        return Ask(*who, shared, each, recalled, None, collector, self.rows)


class WholeRounds:
    """Does the rounds of a training as captured calls."""

    @staticmethod
    def of(training: Training, engine: Vector, capture: Capture) -> WholeRounds | None:
        """None where the host has a part in every round: it decides what goes wrong or whether replies are too few,
        looks up memories or the sizes of models, or counts what is released."""
        counted = any(
            method.gives_away(step, "round") is not None
            for method in training.methods
            for step in steps(type(method))
            if "round" in phases_of(type(method), step)
        )
        looks_up = engine.method.task.sizes or any(memories.blank for memories in engine.kept)
        decides = training.plan.faults or training.plan.min_replies
        return None if decides or looks_up or counted else WholeRounds(training, engine, capture)

    def __init__(self, training: Training, engine: Vector, capture: Capture) -> None:
        self.training, self.engine, self.capture = training, engine, capture
        self.possible = True
        self.ahead = min(ROUNDS_AHEAD, max(1, CLIENTS_AHEAD // training.plan.cohort))
        self.prepared: tuple[int, list[Tensor]] = 0, []  # a round, and of every run the client rows from there on

    def __call__(self) -> bool:
        """Do the next round of all runs, and say so; or say that it cannot be done so, and nothing has happened."""
        training = self.training
        if not self.possible or training.plan.cohort * len(training.states) > UNROLLED * self.engine.chunk:
            return False
        watch = Stopwatch(self.engine.device)
        faster = self.capture(self.rounds, NAME, otherwise=lambda *_: None, lasting=False)
        done = None
        try:
            done = faster(training.states, self._rows())
        except torch.OutOfMemoryError:  # from now on exchange by exchange, which needs less
            self.possible = False
        if done is None:
            if not self.possible:  # here, where the exception no longer holds on to what the failed attempt had
                self.capture.clear()
                torch.cuda.empty_cache()
            self.possible = False
            return False
        training.states, masks, told = done
        seconds, answers = watch.stop(), iter(masks.clone())  # the next round may overwrite them
        for run, (ledger, lines) in enumerate(zip(training.ledgers, told, strict=True)):
            ids = training.cohorts(run, training.round)
            for left, (step, down, up, masked) in zip(range(len(lines) - 1, -1, -1), lines, strict=True):
                told_by = None if left else seconds
                who = ids, next(answers), next(answers)
                ledger.append(Exchange(training.round, step, *who, down, up, seconds=told_by, masked=masked))
        return True

    def rounds(self, states: list[Tree], rows: list[Tensor]) -> tuple[list[Tree], Tensor, list[list[Any]]]:
        """The round of all runs: the states after it, who was asked and answered, and each run's exchanges."""
        ledgers: list[list[Exchange]] = [[] for _ in states]
        works = [partial(self._round, run, states[run], rows[run], ledgers[run]) for run in range(len(states))]
        after = self.training.lockstep(works)
        masks = [mask for ledger in ledgers for one in ledger for mask in (one.asked, one.answered)]
        nothing = torch.zeros(0, device=self.engine.device)  # a round may ask nobody
        told = [[(one.step, one.down_each, one.up_each, one.masked) for one in ledger] for ledger in ledgers]
        return after, torch.stack(masks) if masks else nothing, told

    def _round(self, run: int, state: Tree, rows: Tensor, ledger: list[Exchange], engine: Engine) -> Tree:
        method = self.training.methods[run]
        rules = Rules.of(self.training.plan, method.processors, method.secure)
        return method.round(state, CapturedClients(engine, run, rows, rules, ledger))

    def _rows(self) -> list[Tensor]:
        """Of every run the client rows of this round, sent to the device together with those of rounds to come."""
        number, (first, blocks) = self.training.round, self.prepared
        if not blocks or not first <= number < first + self.ahead:
            numbers, cohorts = torch.arange(number, number + self.ahead), self.training.cohorts
            runs = range(len(self.training.states))
            blocks = [self.engine.client_rows(run, cohorts.draw(run, numbers), numbers) for run in runs]
            first, self.prepared = number, (number, blocks)
        return [block[number - first] for block in blocks]
