"""The loop: sample a cohort, do a round, evaluate, and remember the round that validation data likes best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import tree
from .checks import check_model, check_training
from .clients import Clients, Engine, Exchange
from .cohorts import Cohorts
from .data.federation import Federation
from .errors import SettingError, TooFewReplies, within_memory
from .evaluate import Scores, described, evaluate, over_seeds
from .faults import failing_since, injected
from .method import Method
from .ops.shuffle import mix, normal, purpose
from .plan import Plan as Plan
from .replies import Rules
from .settings import parse
from .sweep.lockstep import Lockstep
from .sweep.together import together as together
from .tally import Tally
from .tree import Tree


@dataclass
class Best:
    """The round with the best validation score so far, the members' scores, and what it takes to personalise."""

    round: int
    validation: float
    state: Tree
    scores: Scores


class Training:
    """One method on one federation per seed, in lockstep. Everything random is a function of (seed, round).

    There may be a method for each federation instead, if the engine knows all of them (sweep/packed.py).
    """

    def __init__(
        self, method: Method | Sequence[Method], federations: Sequence[Federation], engine: Engine, plan: Plan
    ) -> None:
        self.methods = [method] * len(federations) if isinstance(method, Method) else list(method)
        self.federations, self.engine, self.plan = federations, engine, plan
        for one, own in self._by_method():
            check_training(one, own, plan)
        self.cohorts = Cohorts(federations, plan.cohort, plan.cohort_labelled)
        self.tally = Tally(engine, self.methods, federations)
        self.lockstep = Lockstep(self.tally)
        self.round = 0
        self.judged = False  # whether members need no scores, as all that is asked for is what validators say
        self.evaluations = 0
        self.seconds = 0.0
        self.ledgers: list[list[Exchange]] = [[] for _ in federations]
        self.sent = [dict.fromkeys(("down", "up", "client_rounds", "asked", "answered"), 0) for _ in federations]
        self.diverged: list[int | None] = [None for _ in federations]  # the round since which most replies failed
        self.entropy: Callable[[int], Tensor] | None = None  # where the server's noise comes from; None: simulated
        self.skipped = [0 for _ in federations]  # rounds that had too few replies
        self.best: list[Best | None] = [None for _ in federations]
        self.states = [
            tree.to(one.init(torch.Generator().manual_seed(federation.seed)), engine.device)
            for one, federation in zip(self.methods, federations, strict=True)
        ]
        notes = [note for federation in federations for note in federation.notes]
        notes += [note for one, own in self._by_method() for note in one.review(own, engine, plan.rounds)]
        notes += getattr(engine, "notes", ())
        self.notes = list(dict.fromkeys(notes))  # what a user should know
        # some engines know a faster way through whole rounds: it does the next one, or says that it cannot
        self.shortcut: Callable[[], bool] | None = getattr(engine, "shortcut", lambda training: None)(self)

    def _by_method(self) -> list[tuple[Method, list[Federation]]]:
        """Every method, with its federations."""
        several = {id(method): method for method in self.methods}
        own: dict[int, list[Federation]] = {key: [] for key in several}
        for method, federation in zip(self.methods, self.federations, strict=True):
            own[id(method)].append(federation)
        return [(several[key], own[key]) for key in several]

    def adopt(self, models: Sequence[Tree], origin: str) -> None:
        """Go on with models that were trained elsewhere: one a run, for methods whose server keeps one for all."""
        if len(models) != len(self.states):
            raise SettingError(f"{origin} has {len(models)} models, one a seed; this run needs {len(self.states)}.")
        for run, (state, model) in enumerate(zip(self.states, models, strict=True)):
            if "params" not in state:
                raise SettingError(f"{type(self.methods[run]).__name__} does not keep one model for all to start with.")
            check_model(model, state["params"], origin)
            self.states[run] = state | {"params": tree.to(model, self.engine.device)}

    def part(self, runs: Sequence[int], engine: Engine) -> Training:
        """Some of the runs, which go on from here without the others, on an engine of their own."""
        methods, federations = [self.methods[run] for run in runs], [self.federations[run] for run in runs]
        part = Training(methods, federations, engine, self.plan)
        part.round, part.evaluations, part.seconds = self.round, self.evaluations, self.seconds
        part.judged = self.judged
        for name in ("ledgers", "sent", "diverged", "skipped", "best"):
            setattr(part, name, [getattr(self, name)[run] for run in runs])
        part.states = [tree.map(torch.clone, self.states[run]) for run in runs]  # of memory that rounds do not reuse
        part.tally.released = [self.tally.released[run] for run in runs]
        for k, run in enumerate(runs):
            engine.remember(k, self.engine.memories(run))
        return part

    def go(self) -> Iterator[dict[str, Any] | None]:
        """Train to the end; yields after every round, with the metrics where it evaluated."""
        while self.round < self.plan.rounds or None in self.best:
            began = time.perf_counter()
            if self.plan.rounds:  # else there is only a model from elsewhere to score
                self.advance()
            due = self.round % self.plan.evaluate_every == 0 or self.round == self.plan.rounds
            metrics = self.evaluate() if due else None
            self.seconds += time.perf_counter() - began
            if metrics is not None:
                metrics["seconds"] = round(self.seconds, 3)
            yield metrics

    @within_memory()
    def advance(self) -> None:
        """One round of every run."""
        if self.shortcut is None or not self.shortcut():
            self.states = self.lockstep([partial(self._round, run) for run in range(len(self.states))])
        self.round += 1

    def _round(self, run: int, engine: Engine) -> Tree:
        """One round of one run."""
        plan, ids = self.plan, self.cohorts(run, self.round)
        clients = Clients(
            engine,
            ids,
            self.round,
            run,
            faults=injected(plan.faults, self.federations[run].seed),
            rules=Rules.of(plan, self.methods[run].processors, self.methods[run].secure),
            min_replies=plan.min_replies,
            noise=partial(self._noise, run),
            ledger=self.ledgers[run],
        )
        try:
            return self.methods[run].round(self.states[run], clients)
        except TooFewReplies:  # the ledger says so; the next round begins where this one did
            self.skipped[run] += 1
            return self.states[run]

    def _noise(self, run: int, step: str, size: int, kind: torch.dtype) -> Tensor:
        """The server's noise: simulated it repeats, as all that is random does; for real clients it must be secret."""
        if self.entropy is None:
            seed, counter = torch.tensor(self.federations[run].seed), torch.arange(2 * size)
            words = mix(seed, self.round, purpose(f"noise on the mean of {step}"), counter)
        else:
            words = self.entropy(2 * size)
        return normal(words).to(self.engine.device, kind)

    def evaluate(self) -> dict[str, Any]:
        """Score the members, validators, and the latecomers if they are watched; keep the best state of every run."""
        learned = [tree.to(tree.without(state, ["optimiser"]), torch.device("cpu")) for state in self.states]
        with ThreadPoolExecutor() as aside:  # hashing takes about as long as scoring, and needs no device
            digests = aside.map(tree.digest, learned)
            seen = self._seen(self.states)
            unseen = self._late(self.states) if self.plan.watch_unseen else [None] * len(seen)
            judges = self._judges(self.states)
        lines = []
        for run, (scores, digest) in enumerate(zip(seen, digests, strict=True)):
            # Where a server learns nothing, validators have the same models at every round, and cannot tell them apart.
            judge = judges[run] if learned[run] or self.judged else None
            validation = (judge or scores).summary("val")[self.plan.select]
            best = self.best[run]
            if best is None or not validation <= best.validation:  # without validation data, NaN: the last round counts
                self.best[run] = Best(self.round, validation, keepsake(self.states[run]), scores)
            line = {"seed": self.federations[run].seed, "validation": validation, "seen": scores.summary()}
            line["state"] = digest
            if (late := unseen[run]) is not None:
                line["unseen"] = late.summary()
            lines.append(line)
        return {"round": self.round, "seconds": 0.0, "runs": lines}

    def complete(self, progress: Callable[[dict[str, Any]], None] | None = None) -> list[tuple[Scores, Scores | None]]:
        """Train to the end, without a folder, and return the final scores."""
        for metrics in self.go():
            if metrics is not None:
                self.drain()
                if progress is not None:
                    progress(metrics)
        return self.final()

    def finish(self) -> tuple[dict[str, Any], list[tuple[Scores, Scores | None]]]:
        """The result, and every client's score, at each run's best round; latecomers arrive now."""
        scores = self.final()
        return self.result(scores), scores

    def final(self) -> list[tuple[Scores, Scores | None]]:
        """The scores of members and latecomers at each run's best round."""
        best = [found for found in self.best if found is not None]
        late = self._late([found.state for found in best])
        return [(found.scores, scores) for found, scores in zip(best, late, strict=True)]

    def described(self, states: Sequence[Tree] | None = None) -> dict[str, Tensor]:
        """What tells all clients apart, by seed, in the selected rounds or with other states; empty: nothing does.

        For simulations: clients are asked without being counted as having given anything away.
        """
        chosen = [found.state for found in self.best if found is not None] if states is None else states
        ids = [torch.arange(len(federation)) for federation in self.federations]
        found = described(self.methods, chosen, Lockstep(self.engine), ids)
        pairs = zip(self.federations, found, strict=True)
        return {str(federation.seed): rows for federation, rows in pairs if rows is not None}

    def result(self, scores: Sequence[tuple[Scores, Scores | None]], runs: slice = slice(None)) -> dict[str, Any]:
        """What some of the runs came to, or all of them."""
        sent = {key: sum(one[key] for one in self.sent[runs]) for key in self.sent[0]}
        seen = [members for members, _ in scores[runs]]
        late = [latecomers for _, latecomers in scores[runs] if latecomers is not None]
        result: dict[str, Any] = {
            "rounds": self.round,
            "seeds": [federation.seed for federation in self.federations[runs]],
            "selected_rounds": [found.round for found in self.best[runs] if found is not None],
            "seconds": round(self.seconds, 3),
            "bytes": {key: sent[key] for key in ("down", "up")},
            "bytes_per_client_round": {key: round(sent[key] / max(1, sent["client_rounds"])) for key in ("down", "up")},
            "answered": round(sent["answered"] / sent["asked"], 6) if sent["asked"] else 1.0,
            "diverged_at": self.diverged[runs],
            "skipped_rounds": self.skipped[runs],
            "seen": over_seeds(seen),
        }
        if late:
            result["unseen"] = over_seeds(late)
        if told := self.tally.report(runs):
            result["privacy"] = told
        return result

    @within_memory()
    def _score(self, states: Sequence[Tree], ids: Sequence[Tensor]) -> list[Scores]:
        self.evaluations += 1
        return evaluate(self.methods, states, self.lockstep, ids, self.evaluations)

    def _seen(self, states: Sequence[Tree]) -> list[Scores]:
        """Scores of the members; where none of them has anything to score, or needs any, nobody is asked."""
        ids = [torch.arange(federation.members) for federation in self.federations]
        if any(federation.held_out(federation.members) for federation in self.federations):
            if not (self.judged and all(federation.validators for federation in self.federations)):
                return self._score(states, ids)
            self.evaluations += 1  # validators draw what they would have drawn behind them
        return [Scores(some, {split: torch.zeros(len(some), 3) for split in ("val", "test")}) for some in ids]

    def _late(self, states: Sequence[Tree]) -> list[Scores | None]:
        """Scores of the latecomers, where there are any."""
        return self._some(states, [torch.arange(each.first_late, len(each)) for each in self.federations])

    def _judges(self, states: Sequence[Tree]) -> list[Scores | None]:
        """Scores of the validators, where there are any."""
        return self._some(states, [torch.arange(each.members, each.first_late) for each in self.federations])

    def _some(self, states: Sequence[Tree], ids: Sequence[Tensor]) -> list[Scores | None]:
        scores = self._score(states, ids) if any(map(len, ids)) else [None] * len(states)
        return [score if len(some) else None for score, some in zip(scores, ids, strict=True)]

    def drain(self) -> list[dict[str, Any]]:
        """The ledger's lines since the last call (this is where the host waits for the device)."""
        lines = []
        for run, (federation, ledger, sent) in enumerate(zip(self.federations, self.ledgers, self.sent, strict=True)):
            own = [{"seed": federation.seed, **exchange.line()} for exchange in ledger]
            for key in ("down", "up", "asked", "answered"):
                sent[key] += sum(line[key] for line in own)
            self.diverged[run] = failing_since(own, self.diverged[run])
            lines += own
            rounds = {exchange.round for exchange in ledger}
            sent["client_rounds"] += len(rounds) * self.plan.cohort
            ledger.clear()
        return sorted(lines, key=lambda line: line["round"])


def keepsake(state: Tree) -> Tree:
    """What of a state is worth keeping after training: all but the optimiser's own. A copy: rounds may reuse memory."""
    return tree.map(torch.clone, tree.without(state, ["optimiser"]))


def run(
    method: Method,
    federations: Federation | Sequence[Federation],
    engine: Engine | str | None = None,
    *,
    device: str | torch.device = "auto",
    progress: Callable[[dict[str, Any]], None] | None = None,
    start: Tree | None = None,
    **plan: Any,
) -> dict[str, Any]:
    """Train from Python and return the result: `train.run(method, federation, rounds=100, cohort=10)`.

    `plan` are settings of a Plan. `engine` is one that `make_engine` made, or the name of one, to be made on `device`.
    `start` is a trained model to begin with, for methods whose server keeps one for all; with `rounds=0` it is only
    personalised and scored.
    """
    from .engines import make

    several = [federations] if isinstance(federations, Federation) else list(federations)
    if not isinstance(method, Method) or not several or not all(isinstance(one, Federation) for one in several):
        kinds = [type(one).__name__ for one in (method, federations)]
        raise SettingError(
            f"A training needs a method and a federation, or several in a list; got {' and '.join(kinds)}."
        )
    asked = parse(Plan, plan).with_members(method.members)
    if engine is None or isinstance(engine, str):
        engine = make(engine or "auto", method, several, device)
    training = Training(method, several, engine, asked)
    if start is not None:
        training.adopt([start] * len(several), "start")
    return training.result(training.complete(progress))
