"""What a gate is learned from: signatures and scores of a run's members and validators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from .. import tree
from ..clients import Ask, Clients, Sending
from ..data import Federation
from ..data.federation import Rows
from ..engines.loop import Loop
from ..errors import DataError
from ..evaluate import evaluate
from ..method import Method
from ..methods.local import Local
from ..sweep.lockstep import Lockstep
from ..tree import Tree
from .gate import MARGIN, Array, Gate, signature
from .trained import EVERYBODY

LABELS = (10, 30, 100, 300)  # tried by validators that train alone


def learn(method: Method, state: Tree, federation: Federation) -> Gate:
    """The gate of a trained server, from the federation that it was trained on, which needs validators."""
    gate = fitted(method, state, federation)
    labels = labels_needed(method, federation, gate.facts["usual"] - MARGIN)
    return replace(gate, facts={**gate.facts, "labels": labels})


def fitted(method: Method, state: Tree, federation: Federation) -> Gate:
    """The same gate before anybody tried how many labels a stranger needs, which takes training."""
    if method.memory(torch.Generator()):
        raise DataError(f"Clients of {type(method).__name__} keep part of their models, which a gate cannot see.")
    ids = torch.arange(federation.first_late)
    signatures, described = signatures_of(method, state, federation, ids)
    accuracy = scored(method, state, federation, ids)
    return Gate.fit(signatures, accuracy, federation.members, described)


class _Listening(Loop):
    """Keeps what clients answered."""

    def __init__(self, method: Method, federation: Federation, device: torch.device) -> None:
        super().__init__(method, [federation], device)
        self.heard: list[tuple[str, Tree]] = []

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        super().exchange(step, asks)
        self.heard.append((step, tree.flatten(asks[0].collector.replies().each)))


@torch.no_grad()
def signatures_of(method: Method, state: Tree, federation: Federation, ids: torch.Tensor) -> tuple[Array, str]:
    """Signatures of some clients, and what they are described by: a `descriptor`, or mean `predictions`."""
    device = next(iter(tree.flatten(state).values())).device
    loop = _Listening(method, federation, device)
    clients = Clients(loop, ids, EVERYBODY, scratch=0)
    sendings = method.personalise(state, clients)
    if private := [step for step, _ in loop.heard if method.release(step) is not None]:
        raise DataError(f"What {private[0]!r} sends is differentially private; a gate's number would not be.")
    if any(len(leaf) != len(ids) for _, reply in loop.heard for leaf in reply.values()):
        raise DataError(f"{type(method).__name__} describes newcomers alone, so a gate has no members to compare with.")
    sizes = [sum(leaf[0].numel() for leaf in reply.values()) for _, reply in loop.heard]
    alone = len(sizes) == 1 and 0 < sizes[0] < method.task.model.size
    told = (
        torch.cat([leaf.reshape(len(leaf), -1) for leaf in loop.heard[0][1].values()], 1).cpu().numpy()
        if alone
        else None
    )
    found: dict[int, Array] = {}
    for sending in [sendings] if isinstance(sendings, Sending) else sendings:
        part = range(len(ids)) if sending.to is None else sending.to.nonzero()[:, 0].tolist()
        shared = sending.shared | {name: clients.held[name] for name in sending.recall}
        for row, k in enumerate(part):
            home = loop.home(0, int(ids[k]), EVERYBODY, 0)
            batch = home.all()
            logits = method.logits(method.model(home, **shared, **tree.row(sending.each, row)), batch.x)[batch.real]
            found[k] = signature(logits.cpu().numpy(), None if told is None else told[k]).astype(np.float64)
    return np.stack([found[k] for k in range(len(ids))]), "descriptor" if alone else "predictions"


def scored(method: Method, state: Tree, federation: Federation, ids: torch.Tensor) -> Array:
    """Accuracy of some clients in percent, on test examples, or on validation examples where there are no others."""
    device = next(iter(tree.flatten(state).values()), torch.empty(0)).device
    (scores,) = evaluate([method], [state], Lockstep(Loop(method, [federation], device)), [ids], 1)
    test, val = scores.accuracy("test"), scores.accuracy("val")
    found: Array = torch.where(test.isnan(), val, test).double().numpy()
    return found


def labels_needed(method: Method, federation: Federation, target: float) -> str:
    """How many labels a client needs that gets no help, by what validators reach that train alone."""
    ids = torch.arange(federation.members, federation.first_late)
    ids = ids[federation.labelled[ids]]
    most = int(federation.weight[ids].min()) if len(ids) else 0
    if not most:
        return ""
    alone = Local(task=method.task, clients=len(federation), members=federation.members)
    for count in [*(k for k in LABELS if k < most), most]:
        reached = scored(alone, {}, with_labels(federation, count), ids).mean()
        if reached >= target:
            return f"needs about {count} labels; alone with so many, validators reached {reached:.0f} %"
    return f"needs more than {most} labels; alone with so many, validators reached {reached:.0f} %"


def with_labels(federation: Federation, count: int) -> Federation:
    """The same clients with so many training examples at most, drawn at random."""
    random = np.random.default_rng(federation.seed)
    rows = [random.permutation(federation.train[k])[:count] for k in range(len(federation))]
    return replace(federation, train=Rows.of(rows))
