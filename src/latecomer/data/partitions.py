"""Partitions: who owns which examples.

A partition is a function that gives every example to one client, or to nobody, and to one split. It is pure: the same
source, plan and random numbers always deal the same. To add one, write the function and enter it in PARTITIONS.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import DataError, SettingError, UnknownName
from .federation import SPLITS, Federation
from .sources import Source, hold_out, load

TRAIN, VAL, TEST = range(len(SPLITS))
NOBODY = -1


@dataclass(frozen=True)
class Plan:
    """What a partition is asked for."""

    clients: int
    split: str  # of `classes`: as "pefll" or as "pfedhn"
    classes_per_client: int  # 0: a fifth of the classes, or a tenth where there are 20 or more
    alpha: float  # of `dirichlet`: small makes clients unlike each other
    over: str  # of `dirichlet`: each class has shares over the "clients", or each client has shares over the "classes"
    validation: float  # share of the training examples


@dataclass(frozen=True, eq=False)
class Dealt:
    """The outcome, for the training examples of the source followed by its test examples."""

    owner: NDArray[Any]  # [examples]: a client, or NOBODY
    split: NDArray[Any]  # [examples]: TRAIN, VAL or TEST
    clients: int
    notes: tuple[str, ...] = ()


Partition = Callable[[Source, Plan, np.random.Generator], Dealt]


def names() -> list[str]:
    return sorted(PARTITIONS)


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
) -> Federation:
    """Deal the examples of a source to clients.

    The last `unseen` share of the clients are latecomers. A seeded `labelled` share of the members has labels;
    latecomers have them if `unseen_labelled`. With `rotations` every client draws one of these angles for all its
    images. `examples` above zero is the most that a client may train on.
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
    return _with_labels(federation, labelled, unseen_labelled)


# the partitions


def classes(source: Source, plan: Plan, random: np.random.Generator) -> Dealt:
    """Every client has k classes, drawn among those that the fewest clients have so far.

    `pefll`: validation examples are stratified, the owners of a class share it equally, all of it is used.
    `pfedhn`: they are not stratified, and the shares are uneven: U(.4, .6), one more than there can be owners.
    """
    y = _labels(source, "classes")
    count = plan.classes_per_client or _usual_classes(source.classes)
    owned = _draw_classes(plan.clients, count, source.classes, random)
    if plan.split == "pefll":
        split = _split(source, y, plan.validation, random)
        shares = owned / np.maximum(owned.sum(1, keepdims=True), 1)
    else:
        split = _split(source, np.zeros_like(y), plan.validation, random)
        shares = _uneven(owned, plan.clients * count // source.classes + 1, random)
    return Dealt(_deal(y, split, shares, random), split, plan.clients)


def dirichlet(source: Source, plan: Plan, random: np.random.Generator) -> Dealt:
    """Shares are drawn from a symmetric Dirichlet distribution, the same for training, validation and testing."""
    y = _labels(source, "dirichlet")
    split = _split(source, y, plan.validation, random)
    if plan.over == "clients":
        shares = random.dirichlet(np.full(plan.clients, plan.alpha), source.classes)  # [classes, clients]
    else:
        wanted = random.dirichlet(np.full(source.classes, plan.alpha), plan.clients).T
        total = wanted.sum(1, keepdims=True)
        shares = np.where(total > 0, wanted / np.where(total > 0, total, 1), 1 / plan.clients)
    return Dealt(_deal(y, split, shares, random), split, plan.clients)


def iid(source: Source, plan: Plan, random: np.random.Generator) -> Dealt:
    """Every client has an equal part of everything, at random."""
    y = np.concatenate((source.y_train, source.y_test))
    split = _split(source, y, plan.validation, random)
    equal = np.full((1, plan.clients), 1 / plan.clients)
    return Dealt(_deal(np.zeros_like(y), split, equal, random), split, plan.clients)


def rotations(source: Source, plan: Plan, random: np.random.Generator) -> Dealt:
    """As iid, and every client turns all its images by an angle of its own: 0, 90, 180 or 270 unless told otherwise."""
    return iid(source, plan, random)


def natural(source: Source, plan: Plan, random: np.random.Generator) -> Dealt:
    """Every client is one of the writers, speakers or devices that the source names; `clients=0` takes them all."""
    writer, test_is_theirs = _writers(source)
    y = np.concatenate((source.y_train, source.y_test))
    split = np.full(len(y), TRAIN, np.int8)
    notes: tuple[str, ...] = ()
    if test_is_theirs:
        split[len(source.y_train) :] = TEST
    else:
        _hold_out_of(split, writer, y, TEST, 0.2, random)
        notes = ("The test examples are not by the same clients: a fifth of each client's own are its test examples.",)
    _hold_out_of(split, writer, y, VAL, plan.validation, random)
    candidates = np.unique(writer[(split == TRAIN) & (writer != NOBODY)])
    if plan.clients > len(candidates):
        raise SettingError(f"clients is {plan.clients}, but {source.name!r} has {len(candidates)} natural clients.")
    chosen = random.permutation(candidates)[: plan.clients or None]
    number = np.full(writer.max() + 2, NOBODY)  # its last place answers for NOBODY, which is -1
    number[chosen] = np.arange(len(chosen))
    return Dealt(number[writer], split, len(chosen), notes)


PARTITIONS: dict[str, Partition] = {
    "classes": classes,
    "dirichlet": dirichlet,
    "iid": iid,
    "natural": natural,
    "rotations": rotations,
}


# how they deal


def _split(source: Source, strata: NDArray[Any], validation: float, random: np.random.Generator) -> NDArray[Any]:
    """The official test examples, and a part of the training examples of every stratum for validation."""
    count = len(source.y_train)
    split = np.full(len(strata), TEST, np.int8)
    split[:count] = np.where(hold_out(strata[:count], strata[:count], validation, random), VAL, TRAIN)
    return split


def _deal(y: NDArray[Any], split: NDArray[Any], shares: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    """Owners, where client i gets shares[c, i] of class c in every split. What the shares leave over is nobody's."""
    owner = np.full(len(y), NOBODY)
    limits = shares.cumsum(1)
    for part in (TRAIN, VAL, TEST):
        for label, limit in enumerate(limits):
            pool = random.permutation(np.flatnonzero((split == part) & (y == label)))
            owner[pool] = np.searchsorted(np.rint(limit * len(pool)), np.arange(len(pool)), side="right")
    return np.where(owner < shares.shape[1], owner, NOBODY)


def _usual_classes(count: int) -> int:
    return max(1, round(count / 5 if count < 20 else count / 10))


def _draw_classes(clients: int, each: int, count: int, random: np.random.Generator) -> NDArray[Any]:
    """Whether client i has class c, [classes, clients]; so every block of classes / each clients covers all classes."""
    owned, used = np.zeros((count, clients), bool), np.zeros(count, np.int64)
    for client in range(clients):
        least = np.lexsort((random.random(count), used))[:each]
        owned[least, client] = True
        used[least] += 1
    return owned


def _uneven(owned: NDArray[Any], count: int, random: np.random.Generator) -> NDArray[Any]:
    """`count` random shares of every class, of which its owners take one each."""
    drawn = random.uniform(0.4, 0.6, (len(owned), count))
    drawn /= drawn.sum(1, keepdims=True)
    turn = owned.cumsum(1) - 1
    return np.where(owned, np.take_along_axis(drawn, turn.clip(0), 1), 0.0)


def _labels(source: Source, partition: str) -> NDArray[Any]:
    y = np.concatenate((source.y_train, source.y_test))
    unknown = int((y < 0).sum())
    if unknown:
        raise DataError(
            f"{unknown} examples of {source.name!r} have no label, which the partition {partition!r} needs."
        )
    return y


def _writers(source: Source) -> tuple[NDArray[Any], bool]:
    """The client of every example, numbered (NOBODY where unnamed), and whether all of them have test examples."""
    if source.client_train is None:
        raise DataError(f"The source {source.name!r} has no client ids, which the partition 'natural' needs.")
    writer = np.full(len(source.y_train) + len(source.y_test), NOBODY)
    named = [source.client_train] if source.client_test is None else [source.client_train, source.client_test]
    numbered = np.unique(np.concatenate(named), return_inverse=True)[1]
    writer[: len(numbered)] = numbered
    train, test = writer[: len(source.y_train)], writer[len(source.y_train) :]
    return writer, bool(np.isin(train, test).all())


def _hold_out_of(
    split: NDArray[Any], writer: NDArray[Any], y: NDArray[Any], into: int, share: float, random: np.random.Generator
) -> None:
    """Moves a share of every writer's training examples into another split."""
    rows = np.flatnonzero((split == TRAIN) & (writer != NOBODY))
    split[rows[hold_out(writer[rows], y[rows], share, random)]] = into


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


def _random(seed: int, purpose: str) -> np.random.Generator:
    """Each use has its own numbers: asking for fewer labels, say, does not deal the examples anew."""
    return np.random.default_rng((seed, zlib.crc32(purpose.encode())))


# what a user may ask for


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
