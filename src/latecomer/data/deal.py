"""From a source to a federation: deal the examples, set latecomers apart, hide labels, turn images."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..errors import SettingError, UnknownName
from .federation import SPLITS, Federation, places
from .partitions import NOBODY, PARTITIONS, TRAIN, Dealt, Plan
from .sources import Source, load


def federate(
    source: Source | str,
    *,
    partition: str,
    clients: int,
    unseen: float = 0.0,
    labelled: float = 1.0,
    seed: int = 0,
    split: str = "pefll",
    classes_per_client: int = 0,
    alpha: float = 0.1,
    over: str = "clients",
    rotations: tuple[int, ...] = (),
    validation: float = 0.2,
    examples: int = 0,
    unseen_labelled: bool = True,
    budgets: tuple[str, ...] = (),
) -> Federation:
    """Deal the examples of a source to clients.

    The last `unseen` share of the clients are latecomers. A seeded `labelled` share of the members has labels;
    latecomers have them if `unseen_labelled`. With `rotations` every client draws one of these angles for all its
    images. `examples` above zero is the most that a client may train on. `budgets` names sizes of model (S, M, L);
    members, and latecomers too, fall into groups of equal number, one a size.
    """
    source = load(source) if isinstance(source, str) else source
    plan = Plan(clients, split, classes_per_client, alpha, over, validation)
    angles = tuple(rotations) or ((0, 90, 180, 270) if partition == "rotations" else ())
    _check(source, partition, plan)
    _check_options(source, labelled, examples, seed, angles)
    dealt = PARTITIONS[partition](source, plan, _random(seed, "partition"))
    federation = Federation.from_arrays(
        np.concatenate((source.x_train, source.x_test)),
        np.concatenate((source.y_train, source.y_test)),
        **_rows(_capped(dealt, examples, _random(seed, "examples"))),
        members=dealt.clients - _latecomers(unseen, dealt.clients),
        classes=source.classes,
        rotation=_random(seed, "rotations").choice(angles, dealt.clients) if angles else None,
        mean=source.mean,
        std=source.std,
        seed=seed,
        notes=dealt.notes,
    )
    if unseen and federation.members == len(federation):
        raise SettingError("None of the latecomers has examples both to train and to test on; ask for fewer clients.")
    return _with_budgets(_with_labels(federation, labelled, unseen_labelled), budgets)


def _capped(dealt: Dealt, most: int, random: np.random.Generator) -> Dealt:
    """Takes from every client the training examples beyond `most`, at random."""
    if not most:
        return dealt
    rows = random.permutation(np.flatnonzero((dealt.split == TRAIN) & (dealt.owner != NOBODY)))
    rows = rows[np.argsort(dealt.owner[rows], kind="stable")]
    size = np.bincount(dealt.owner[rows], minlength=dealt.clients)
    rank = np.arange(len(rows)) - np.repeat(size.cumsum() - size, size)
    owner = dealt.owner.copy()
    owner[rows[rank >= most]] = NOBODY
    return replace(dealt, owner=owner)


def _rows(dealt: Dealt) -> dict[str, Any]:
    """For every split the indices of every client."""
    rows = {}
    for part, name in enumerate(SPLITS):
        mine = np.flatnonzero((dealt.split == part) & (dealt.owner != NOBODY))
        mine = mine[np.argsort(dealt.owner[mine], kind="stable")]
        size = np.bincount(dealt.owner[mine], minlength=dealt.clients)
        rows[name] = np.split(mine, size.cumsum()[:-1])
    return rows


def _latecomers(unseen: float, clients: int) -> int:
    if not 0 <= unseen < 1:
        raise SettingError(f"unseen is {unseen}; it is the share of clients that come late, from 0 to below 1.")
    count = round(unseen * clients)
    if unseen and not 0 < count < clients:
        none = "no latecomer" if count == 0 else "no member to train with"
        raise SettingError(f"unseen is {unseen}, which of {clients} clients leaves {none}; one of each kind is needed.")
    return count


def _with_labels(federation: Federation, share: float, unseen_labelled: bool) -> Federation:
    members = federation.members
    order = _random(federation.seed, "labelled").permutation(members)
    labelled = torch.full((len(federation),), unseen_labelled)
    labelled[:members] = False
    labelled[torch.from_numpy(order[: round(share * members)])] = True
    return replace(federation, labelled=labelled)


def _with_budgets(federation: Federation, budgets: tuple[str, ...]) -> Federation:
    if not budgets:
        return federation
    members = federation.members
    if len(budgets) > members:
        raise SettingError(f"budgets names {len(budgets)} sizes for {members} training clients; each size needs one.")
    random = _random(federation.seed, "budgets")
    turn = [random.permutation(count) % len(budgets) for count in (members, len(federation) - members)]
    return replace(federation, budget=places(budgets)[torch.from_numpy(np.concatenate(turn))].to(torch.int8))


def _random(seed: int, purpose: str) -> np.random.Generator:
    """Each use has its own numbers: asking for fewer labels, say, does not deal the examples anew."""
    return np.random.default_rng((seed, zlib.crc32(purpose.encode())))


def _check(source: Source, partition: str, plan: Plan) -> None:
    if partition not in PARTITIONS:
        raise UnknownName("partition", partition, PARTITIONS)
    if plan.clients < (0 if partition == "natural" else 1):
        raise SettingError(
            f"clients is {plan.clients}; there must be at least one (with the partition 'natural' 0 is all)."
        )
    if plan.clients > len(source.y_train):
        raise SettingError(
            f"clients is {plan.clients}, but {source.name!r} has only {len(source.y_train)} examples to train on."
        )
    if not 0 <= plan.validation < 1:
        raise SettingError(
            f"validation is {plan.validation}; it is a share of the training examples, from 0 to below 1."
        )
    if not (plan.alpha > 0 and math.isfinite(plan.alpha)):
        raise SettingError(f"alpha is {plan.alpha}; it must be a number above 0.")
    if not 0 <= plan.classes_per_client <= source.classes:
        allowed = f"0 (the usual number) to {source.classes}, the classes of {source.name!r}"
        raise SettingError(f"classes_per_client is {plan.classes_per_client}; allowed is {allowed}.")
    if plan.split not in ("pefll", "pfedhn"):
        raise UnknownName("split", plan.split, ("pefll", "pfedhn"))
    if plan.over not in ("clients", "classes"):
        raise UnknownName("over", plan.over, ("clients", "classes"))


def _check_options(source: Source, labelled: float, examples: int, seed: int, angles: tuple[int, ...]) -> None:
    if not 0 <= labelled <= 1:
        raise SettingError(f"labelled is {labelled}; it is the share of members with labels, from 0 to 1.")
    if examples < 0:
        raise SettingError(f"examples is {examples}; it is the most a client trains on, and 0 means all.")
    if seed < 0:
        raise SettingError(f"seed is {seed}; it must be 0 or more.")
    if any(int(angle) != angle or abs(angle) > 360 for angle in angles):
        raise SettingError(f"rotations is {angles}; angles are whole degrees from -360 to 360.")
    if angles and source.x_train.dtype != np.uint8:
        raise SettingError(
            f"rotations turn images, but the examples of {source.name!r} are {source.x_train.dtype} arrays."
        )
