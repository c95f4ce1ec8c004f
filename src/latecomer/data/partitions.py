"""Partitions: who owns which examples.

A partition is a function that gives every example to one client, or to nobody, and to one split. It is pure: the same
source, request and random numbers always deal the same. To add one, write the function and enter it in PARTITIONS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, SettingError
from .arrays import hold_out
from .pachinko import allocate
from .sources import Source
from .split import SPLITS, Split

TRAIN, VAL, TEST = range(len(SPLITS))
NOBODY = -1
TRIES = 1000  # to draw a block without sets of classes that others keep to themselves


@dataclass(frozen=True, eq=False)
class Dealt:
    """The outcome, for the training examples of the source followed by its test examples."""

    owner: NDArray[Any]  # [examples]: a client, or NOBODY
    split: NDArray[Any]  # [examples]: TRAIN, VAL or TEST
    clients: int
    notes: tuple[str, ...] = ()
    names: NDArray[Any] | None = None  # [clients]: what the source calls them


Partition = Callable[[Source, Split, np.random.Generator], Dealt]


def names() -> list[str]:
    return sorted(PARTITIONS)


# the partitions


def classes(source: Source, request: Split, random: np.random.Generator) -> Dealt:
    """Every client has k classes, drawn among those that the fewest clients have so far.

    `pefll`: validation examples are stratified, the owners of a class share it equally, all of it is used.
    `pfedhn`: they are not stratified, and the shares are uneven: U(.4, .6), one more than there can be owners.
    `flowdup`: as `pefll`, but latecomers share the test examples and the others share the rest.
    """
    y = _labels(source, "classes")
    count = request.classes_per_client or _usual_classes(source.classes)
    notes: tuple[str, ...] = ()
    if not request.classes_per_client and source.classes not in (10, 100):  # those are as in the papers
        notes = (f"Every client has {count} of the {source.classes} classes; --classes-per-client chooses otherwise.",)
    owned = _draw_classes(request.clients, count, source.classes, random, request.stranger_count)
    if request.split == "pfedhn":
        split = _split(source, np.zeros_like(y), request.validation, random)
        shares = _uneven(owned, request.clients * count // source.classes + 1, random)
    else:
        split = _split(source, y, request.validation, random)
        shares = _each(owned, request)
    return Dealt(_deal(y, split, shares, random), split, request.clients, notes)


def dirichlet(source: Source, request: Split, random: np.random.Generator) -> Dealt:
    """Shares are drawn from a symmetric Dirichlet distribution, the same for training, validation and testing."""
    y = _labels(source, "dirichlet")
    split = _split(source, y, request.validation, random)
    if request.over == "clients":
        shares = random.dirichlet(np.full(request.clients, request.alpha), source.classes)  # [classes, clients]
    else:
        drawn = [random.dirichlet(np.full(source.classes, alpha), count) for alpha, count in _alphas(request)]
        wanted = np.concatenate(drawn).T
        total = wanted.sum(1, keepdims=True)
        shares = np.where(total > 0, wanted / np.where(total > 0, total, 1), 1 / request.clients)
    return Dealt(_deal(y, split, shares, random), split, request.clients)


def pachinko(source: Source, request: Split, random: np.random.Generator) -> Dealt:
    """Every client draws coarse classes, and fine ones within them, by Dirichlet shares; all clients are equally large.

    The draw is over all examples; a client's share of a class is the same for training, validation and testing.
    """
    cell, parent = _cells(source, "pachinko")
    split = _split(source, cell, request.validation, random)
    alphas = np.concatenate([np.full(count, alpha) for alpha, count in _alphas(request)])
    given = allocate(np.bincount(cell), parent, alphas, request.fine_alpha, random)
    return Dealt(_deal(cell, split, given / given.sum(1, keepdims=True), random), split, request.clients)


def hierarchical(source: Source, request: Split, random: np.random.Generator) -> Dealt:
    """Every client has k coarse classes, 1 unless told otherwise; owners share all fine classes in them equally."""
    cell, parent = _cells(source, "hierarchical")
    count, groups = request.classes_per_client or 1, int(parent.max()) + 1
    if count > groups:
        raise SettingError(f"classes_per_client is {count}, but {source.name!r} has {groups} coarse classes.")
    owned = _draw_classes(request.clients, count, groups, random)
    shares = owned / np.maximum(owned.sum(1, keepdims=True), 1)
    split = _split(source, cell, request.validation, random)
    return Dealt(_deal(cell, split, shares[parent], random), split, request.clients)


def iid(source: Source, request: Split, random: np.random.Generator) -> Dealt:
    """Every client has an equal part of everything, at random."""
    y = source.y
    split = _split(source, y, request.validation, random)
    equal = _each(np.ones((1, request.clients), bool), request)
    return Dealt(_deal(np.zeros_like(y), split, equal, random), split, request.clients)


def rotations(source: Source, request: Split, random: np.random.Generator) -> Dealt:
    """As iid, and every client turns all its images by an angle of its own: 0, 90, 180 or 270 unless told otherwise."""
    return iid(source, request, random)


def natural(source: Source, request: Split, random: np.random.Generator) -> Dealt:
    """Every client is one of the writers, speakers or devices that the source names; `clients=0` takes them all.

    `flowdup`: nobody holds out test examples, as latecomers are scored on all that they have and members are not. So
    the same ones come late for every seed: nothing is chosen by what another seed tests on.
    """
    writer, test_is_theirs, names = _writers(source)
    y = source.y
    split = np.full(len(y), TRAIN, np.int8)
    notes: tuple[str, ...] = ()
    if request.split == "flowdup":
        pass  # what was published as test examples is the clients' own like the rest
    elif test_is_theirs:
        split[len(source.y_train) :] = TEST
    else:
        # the same ones for every seed, so that nothing is chosen by what another seed tests on
        _hold_out_of(split, writer, y, TEST, 0.2, np.random.default_rng(0))
        notes = ("The test examples are not by the same clients: a fifth of each client's own are its test examples.",)
    _hold_out_of(split, writer, y, VAL, request.validation, random)
    candidates = np.unique(writer[(split == TRAIN) & (writer != NOBODY)])
    if request.clients > len(candidates):
        raise SettingError(f"clients is {request.clients}, but {source.name!r} has {len(candidates)} natural clients.")
    count = request.clients or len(candidates)
    late = np.zeros(0, candidates.dtype)
    if request.split == "flowdup" and (come := request.set_apart(count)[0]):
        order = np.random.default_rng(0).permutation(np.unique(writer[writer != NOBODY]))
        late = order[np.isin(order, candidates)][-come:]
    chosen = np.append(random.permutation(np.setdiff1d(candidates, late))[: count - len(late)], late)
    number = np.full(writer.max() + 2, NOBODY)  # its last place answers for NOBODY, which is -1
    number[chosen] = np.arange(len(chosen))
    return Dealt(number[writer], split, len(chosen), notes, names[chosen])


FLOWDUP = ("classes", "iid", "natural", "rotations")
"""The partitions that know the split "flowdup"."""

PARTITIONS: dict[str, Partition] = {
    "classes": classes,
    "dirichlet": dirichlet,
    "hierarchical": hierarchical,
    "iid": iid,
    "natural": natural,
    "pachinko": pachinko,
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
    """Owners, where client i gets shares[c, i] of class c in every split. What the shares leave over is nobody's.

    Shares that differ from split to split are stacked, [splits, classes, clients].
    """
    owner = np.full(len(y), NOBODY)
    limits = np.broadcast_to(shares.cumsum(-1), (len(SPLITS), *shares.shape[-2:]))
    for part in (TRAIN, VAL, TEST):
        for label, limit in enumerate(limits[part]):
            pool = random.permutation(np.flatnonzero((split == part) & (y == label)))
            owner[pool] = np.searchsorted(np.rint(limit * len(pool)), np.arange(len(pool)), side="right")
    return np.where(owner < shares.shape[-1], owner, NOBODY)


def _each(owned: NDArray[Any], request: Split) -> NDArray[Any]:
    """Equal shares for the owners of a class; as "flowdup", of test examples among latecomers, of the rest without."""
    if request.split == "flowdup":
        late = np.arange(request.clients) >= request.clients - request.late
        owned = np.stack([owned & ~late, owned & ~late, owned & late])
    shares: NDArray[Any] = owned / np.maximum(owned.sum(-1, keepdims=True), 1)
    return shares


def _alphas(request: Split) -> tuple[tuple[float, int], tuple[float, int]]:
    """An alpha and how many clients have it, for the others and for latecomers."""
    return (request.alpha, request.clients - request.late), (request.unseen_alpha or request.alpha, request.late)


def _usual_classes(count: int) -> int:
    """A fifth, or a tenth of 20 and more; but two where there are two, for a client of one class learns nothing."""
    return min(count, max(2, round(count / 5 if count < 20 else count / 10)))


def _draw_classes(clients: int, each: int, count: int, random: np.random.Generator, alone: int = 0) -> NDArray[Any]:
    """Whether client i has class c, [classes, clients]; so every block of classes / each clients covers all classes.

    The last `alone` clients share the sets of one block, which is drawn first, and which no other client has.
    """
    used, block = np.zeros(count, np.int64), max(1, count // each)
    kept = _draw_block(min(alone, block), each, np.zeros_like(used), random)
    parts = []
    for left in range(clients - alone, 0, -block):
        for _ in range(TRIES):
            after = used.copy()
            part = _draw_block(min(left, block), each, after, random)
            if not (kept[:, :, None] == part[:, None]).all(0).any():
                break
        else:
            raise SettingError(
                f"Of {count} classes, {each} a client, none can be left to the latecomers alone; leave unlike at 0."
            )
        parts.append(part)
        used = after
    return np.concatenate([*parts, kept[:, np.arange(alone) % max(1, kept.shape[1])]], 1)


def _draw_block(clients: int, each: int, used: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
    """The same of some clients, who take the classes that were `used` least so far; it is counted there."""
    owned = np.zeros((len(used), clients), bool)
    for client in range(clients):
        least = np.lexsort((random.random(len(used)), used))[:each]
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
    y = source.y
    unknown = int((y < 0).sum())
    if unknown:
        raise DataError(
            f"{unknown} examples of {source.name!r} have no label, which the partition {partition!r} needs."
        )
    return y


def _cells(source: Source, partition: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of every example its fine class within its coarse one, numbered; and of every such number its coarse class."""
    y = _labels(source, partition)
    if source.coarse_train is None or source.coarse_test is None:
        wanted = f"which the partition {partition!r} needs: coarse_train and coarse_test of an .npz"
        raise DataError(f"The source {source.name!r} has no coarse labels, {wanted}.")
    coarse = np.unique(np.concatenate((source.coarse_train, source.coarse_test)), return_inverse=True)[1]
    pairs, cell = np.unique(coarse * source.classes + y, return_inverse=True)
    return cell, pairs // source.classes


def _writers(source: Source) -> tuple[NDArray[Any], bool, NDArray[Any]]:
    """The client of every example, numbered (NOBODY where unnamed); whether all have test examples; their names."""
    if source.client_train is None:
        raise DataError(f"The source {source.name!r} has no client ids, which the partition 'natural' needs.")
    writer = np.full(len(source.y_train) + len(source.y_test), NOBODY)
    named = [source.client_train] if source.client_test is None else [source.client_train, source.client_test]
    ids, numbered = np.unique(np.concatenate(named), return_inverse=True)
    writer[: len(numbered)] = numbered
    train, test = writer[: len(source.y_train)], writer[len(source.y_train) :]
    return writer, bool(np.isin(train, test).all()), ids if source.client_names is None else source.client_names[ids]


def _hold_out_of(
    split: NDArray[Any], writer: NDArray[Any], y: NDArray[Any], into: int, share: float, random: np.random.Generator
) -> None:
    """Moves a share of every writer's training examples into another split."""
    rows = np.flatnonzero((split == TRAIN) & (writer != NOBODY))
    split[rows[hold_out(writer[rows], y[rows], share, random)]] = into
