"""What clients release in a simulation: counted on the way to the engine, whoever asks and whatever for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from . import privacy, tree
from .clients import Ask, Engine
from .data.federation import Federation
from .errors import MissingExtra
from .method import Method
from .ops.upload import upload
from .privacy import Release
from .steps import phase_of
from .tree import Tree


@dataclass
class Released:
    """What the clients of one run have given away."""

    answers: Tensor  # [clients]
    loss: Tensor  # [clients]: see `privacy`
    refused: Tensor  # how many answers did not fit into a budget
    promise: Release | None = None  # what the last answer kept; None: there was none

    @staticmethod
    def nothing(clients: int, device: torch.device) -> Released:
        counts = torch.zeros(clients, dtype=torch.int64, device=device)
        return Released(counts, counts.double(), counts.new_zeros(()))


class Tally:
    """To the servers of all runs it is the engine. A client that has spent its budget is silent when asked for more.

    Numbers stay on the device, and steps that release nothing pass through.
    """

    def __init__(self, engine: Engine, methods: Sequence[Method], federations: Sequence[Federation]) -> None:
        self.engine, self.device, self.methods, self.federations = engine, engine.device, methods, federations
        self.released = [Released.nothing(len(federation), self.device) for federation in federations]

    @property
    def one_by_one(self) -> bool:
        return self.engine.one_by_one

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        phase = phase_of(asks[0].round, asks[0].scratch)  # all are in the same
        releases = [self.methods[ask.run].gives_away(step, phase) for ask in asks]
        counted = [ask if one is None else self._count(step, ask, one) for ask, one in zip(asks, releases, strict=True)]
        self.engine.exchange(step, counted)

    def _count(self, step: str, ask: Ask, release: Release) -> Ask:
        run, ids = self.released[ask.run], upload(ask.ids, self.device)
        spent = run.loss[ids] + release.loss > release.affordable
        asked, silent = ~ask.silent, ask.silent | spent
        run.answers.index_add_(0, ids, (~silent).long())
        run.loss.index_add_(0, ids, release.loss * (~silent).double())
        run.refused += (asked & spent).sum()
        run.promise = release
        return replace(ask, silent=silent)

    def memories(self, run: int) -> Tree:
        return self.engine.memories(run)

    def remember(self, run: int, kept: Tree) -> None:
        self.engine.remember(run, kept)

    def snapshot(self, run: int) -> Tree:
        """What a checkpoint keeps of a run; nothing where nothing was released."""
        released = self.released[run]
        if released.promise is None:
            return {}
        promise = torch.tensor(astuple(released.promise), dtype=torch.float64)
        return {name: getattr(released, name) for name in ("answers", "loss", "refused")} | {"promise": promise}

    def restore(self, run: int, kept: Tree) -> None:
        counts = tree.to(tree.without(kept, ["promise"]), self.device)
        self.released[run] = Released(**counts, promise=Release(*kept["promise"].tolist()))

    def report(self, runs: slice = slice(None)) -> dict[str, Any]:
        """What a result says about privacy: one answer's promise, and what the clients of these runs have spent."""
        pairs = [pair for pair in zip(self.released[runs], self.federations[runs], strict=True) if pair[0].promise]
        if not pairs or (promise := pairs[0][0].promise) is None:
            return {}
        processors = self.methods[runs][0].processors
        told = {
            "epsilon": promise.epsilon,
            "delta": promise.delta,
            "mechanism": "analytic Gaussian (Balle and Wang 2018)",
            "noise_multiplier": promise.sigma,
            "covers": processors.covers or "one example, replaced by another, in one answer",
            "does_not_cover": processors.does_not_cover
            or "what members send during training, and how many examples a client has",
            "budget": promise.budget or None,
            "refused": sum(int(released.refused) for released, _ in pairs),
            "worst": (worst := _worst(pairs, promise.delta, latecomers=False)),
            "worst_by_dp_accounting": _second_opinion(promise, worst["answers"]),
        }
        late = not processors.promise and any(federation.first_late < len(federation) for _, federation in pairs)
        return told | ({"latecomers": _worst(pairs, promise.delta, latecomers=True)} if late else {})


def _worst(pairs: Sequence[tuple[Released, Federation]], delta: float, latecomers: bool) -> dict[str, Any]:
    """The client that has spent most, among all or among latecomers; of all seeds together."""
    found: list[tuple[float, int, Federation, int]] = []
    for released, federation in pairs:
        loss = released.loss.cpu().clone()
        loss[: federation.first_late if latecomers else 0] = -1  # not meant
        client = int(loss.argmax())
        found.append((float(loss[client]), int(released.answers[client]), federation, client))
    loss_of_it, answers, federation, client = max(found, key=lambda one: one[0])
    return {
        "answers": answers,
        "epsilon": float(f"{privacy.epsilon(max(loss_of_it, 0.0), delta):.6g}"),
        "role": federation.traits(client)["role"],
        "client": client,
        "seed": federation.seed,
    }


def _second_opinion(promise: Release, answers: int) -> float | str:
    """The epsilon of so many answers as dp-accounting has it, which is a little more: it rounds up."""
    try:
        found = privacy.composed(promise.sigma, promise.delta, max(answers, 1), step=promise.epsilon / 1000)
    except MissingExtra as missing:
        return f"not computed: {missing}"
    return float(f"{found:.6g}")
