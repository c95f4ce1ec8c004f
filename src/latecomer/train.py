"""The loop: sample a cohort, do a round, evaluate, and remember the round that validation data likes best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any, Literal

import torch
from torch import Tensor

from . import tree
from .clients import Clients, Engine, Exchange
from .data.federation import Federation
from .data.shuffle import purpose, sample
from .errors import DataError, SettingError
from .evaluate import Scores, evaluate
from .faults import silence
from .lockstep import Lockstep
from .method import Method
from .tree import Tree


@dataclass(frozen=True)
class Plan:
    """How long and with whom to train. Defaults are latecomer's own; a method's `paper` may say otherwise."""

    rounds: int = 5000
    cohort: int = 5
    evaluate_every: int = 30
    select: Literal["accuracy", "pooled"] = "accuracy"
    silence: float = 0.0
    watch_unseen: bool = False


@dataclass
class Best:
    """The round whose members had the best validation score so far, and what it takes to personalise from it."""

    round: int
    validation: float
    state: Tree
    scores: Scores


class Training:
    """One method on one federation per seed, in lockstep. Everything random is a function of (seed, round)."""

    def __init__(self, method: Method, federations: Sequence[Federation], engine: Engine, plan: Plan) -> None:
        smallest = min(federation.members for federation in federations)
        if plan.cohort > smallest:
            raise SettingError(
                f"--cohort must be at most the number of training clients, {smallest}; got {plan.cohort}."
            )
        _check_labels(method, federations)
        self.method, self.federations, self.engine, self.plan = method, federations, engine, plan
        self.lockstep = Lockstep(engine)
        self.round = 0
        self.evaluations = 0
        self.seconds = 0.0
        self.ledgers: list[list[Exchange]] = [[] for _ in federations]
        self.sent = {"down": 0, "up": 0, "client_rounds": 0, "asked": 0, "answered": 0}
        self.best: list[Best | None] = [None for _ in federations]
        self.states = [
            tree.to(method.init(torch.Generator().manual_seed(federation.seed)), engine.device)
            for federation in federations
        ]

    def go(self) -> Iterator[dict[str, Any] | None]:
        """Train to the end; yields after every round, with the metrics where it evaluated."""
        while self.round < self.plan.rounds:
            began = time.perf_counter()
            self.advance()
            due = self.round % self.plan.evaluate_every == 0 or self.round == self.plan.rounds
            metrics = self.evaluate() if due else None
            self.seconds += time.perf_counter() - began
            if metrics is not None:
                metrics["seconds"] = round(self.seconds, 3)
            yield metrics

    def advance(self) -> None:
        """One round of every run."""
        self.states = self.lockstep([partial(self._round, run) for run in range(len(self.states))])
        self.round += 1

    def _round(self, run: int, engine: Engine) -> Tree:
        seed = self.federations[run].seed
        clients = Clients(
            engine,
            self.cohort(run, self.round),
            self.round,
            run_index=run,
            faults=silence(self.plan.silence, seed),
            ledger=self.ledgers[run],
        )
        return self.method.round(self.states[run], clients)

    def cohort(self, run: int, number: int) -> Tensor:
        """Who takes part in a round; sorted, so that neighbours in the data stay neighbours."""
        federation = self.federations[run]
        return sample(self.plan.cohort, federation.members, federation.seed, number, purpose("cohort")).sort().values

    def evaluate(self) -> dict[str, Any]:
        """Score the members, and the latecomers if they are watched; keep the best state of every run."""
        seen = self._score(self.states, [torch.arange(federation.members) for federation in self.federations])
        unseen = self._late(self.states) if self.plan.watch_unseen else [None] * len(seen)
        lines = []
        for run, scores in enumerate(seen):
            validation = scores.summary("val")[self.plan.select]
            best = self.best[run]
            if best is None or not validation <= best.validation:  # without validation data, NaN: the last round counts
                self.best[run] = Best(self.round, validation, keepsake(self.states[run]), scores)
            line = {"seed": self.federations[run].seed, "validation": validation, "seen": scores.summary()}
            if (late := unseen[run]) is not None:
                line["unseen"] = late.summary()
            lines.append(line)
        return {"round": self.round, "seconds": 0.0, "runs": lines}

    def finish(self) -> tuple[dict[str, Any], list[tuple[Scores, Scores | None]]]:
        """The result, and every client's score, at each run's best round; latecomers arrive now."""
        best = [found for found in self.best if found is not None]
        late = self._late([found.state for found in best])
        seen = [found.scores for found in best]
        self.lockstep.close()
        result: dict[str, Any] = {
            "rounds": self.round,
            "seeds": [federation.seed for federation in self.federations],
            "selected_rounds": [found.round for found in best],
            "seconds": round(self.seconds, 3),
            "bytes": {key: self.sent[key] for key in ("down", "up")},
            "bytes_per_client_round": {
                key: round(self.sent[key] / max(1, self.sent["client_rounds"])) for key in ("down", "up")
            },
            "answered": round(self.sent["answered"] / max(1, self.sent["asked"]), 6),
            "seen": over_seeds(seen),
        }
        if late[0] is not None:
            result["unseen"] = over_seeds([scores for scores in late if scores is not None])
        return result, list(zip(seen, late, strict=True))

    def _score(self, states: Sequence[Tree], ids: Sequence[Tensor]) -> list[Scores]:
        self.evaluations += 1
        return evaluate(self.method, states, self.lockstep, ids, self.evaluations)

    def _late(self, states: Sequence[Tree]) -> list[Scores | None]:
        """Scores of the latecomers, where there are any."""
        ids = [torch.arange(federation.members, len(federation)) for federation in self.federations]
        if not all(len(some) for some in ids):
            return [None] * len(states)
        return list(self._score(states, ids))

    def drain(self) -> list[dict[str, Any]]:
        """The ledger's lines since the last call (this is where the host waits for the device)."""
        lines = []
        for federation, ledger in zip(self.federations, self.ledgers, strict=True):
            for exchange in ledger:
                line = {"seed": federation.seed, **exchange.line()}
                for key in ("down", "up", "asked", "answered"):
                    self.sent[key] += line[key]
                lines.append(line)
            rounds = {exchange.round for exchange in ledger}
            self.sent["client_rounds"] += len(rounds) * self.plan.cohort
            ledger.clear()
        return sorted(lines, key=lambda line: line["round"])


def _check_labels(method: Method, federations: Sequence[Federation]) -> None:
    """Refuse to begin where nothing can be learned, or where no latecomer could get a model."""
    for federation in federations:
        members, late = federation.weight[: federation.members], federation.weight[federation.members :]
        if not members.any():
            raise DataError(
                f"None of the {len(members)} training clients has a labelled example, so there is nothing to learn; "
                "raise --labelled, or use data with labels."
            )
        if method.needs_labels and len(late) and not late.any():
            raise DataError(
                f"{type(method).__name__} needs a latecomer's labels, but none of the {len(late)} latecomers has any; "
                "leave --unseen-labelled true, and use data with labels."
            )


def keepsake(state: Tree) -> Tree:
    """What of a state is worth keeping after training: all but the optimiser's own."""
    return {key: value for key, value in state.items() if key != "optimiser"}


def over_seeds(scores: Sequence[Scores]) -> dict[str, float]:
    """Means over seeds, and the standard deviation of the accuracy."""
    each = [score.summary() for score in scores]
    mean = {key: round(fmean(summary[key] for summary in each), 3) for key in each[0]}
    spread = stdev(summary["accuracy"] for summary in each) if len(each) > 1 else 0.0
    return {"accuracy": mean["accuracy"], "std": round(spread, 3), **mean}


def run(
    method: Method,
    federations: Federation | Sequence[Federation],
    engine: Engine | None = None,
    *,
    progress: Callable[[dict[str, Any]], None] | None = None,
    **plan: Any,
) -> dict[str, Any]:
    """Train from Python and return the result: `train.run(method, federation, rounds=100, cohort=10)`."""
    from .engines import make

    several = [federations] if isinstance(federations, Federation) else list(federations)
    training = Training(method, several, engine or make("auto", method, several), Plan(**plan))
    for metrics in training.go():
        if metrics is not None:
            training.drain()
            if progress is not None:
                progress(metrics)
    return training.finish()[0]
