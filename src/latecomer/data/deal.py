"""From a source to a federation: deal the examples, set latecomers apart, hide or permute labels, turn images."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import SettingError, UnknownName
from ..settings import parse, settings_of
from .federation import SPLITS, Federation, places
from .partitions import FLOWDUP, NOBODY, PARTITIONS, TEST, TRAIN, VAL, Dealt
from .permute import Permutations
from .sources import Data, Source, load
from .split import Split


def federate(data: Data, split: Split | None = None, /, *, seed: int = 0, **settings: Any) -> Federation:
    """Deal the examples of a data set to clients: `federate("digits", partition="classes", clients=50, unseen=0.2)`.

    `data` is whatever `load` takes: a name, a path, arrays, or what it loaded. The settings are those of a Split, of
    which one may be given, too. The last `unseen` share of the clients are latecomers, the `validators` share before
    them validators.
    """
    given = {} if split is None else {name: getattr(split, name) for name in settings_of(Split)}
    source, request = load(data), parse(Split, given | settings)
    _check(source, request, seed)
    dealt = PARTITIONS[request.partition](source, request, _random(seed, "partition"))
    late, judges = request.set_apart(dealt.clients)
    members = dealt.clients - late - judges
    capped: tuple[int, ...] = (TRAIN,)
    if own := request.split == "flowdup":  # nothing is held out of what a validator or a latecomer has
        dealt.split[(dealt.split == VAL) & (dealt.owner >= members)] = TRAIN
        dealt.split[dealt.owner >= members + judges] = TEST
        capped = (TRAIN, TEST)
    rows = _rows(_capped(dealt, request.examples, capped, _random(seed, "examples")))
    federation = Federation.from_arrays(
        source.x,
        source.y,
        **_scored_on_all(rows, members, judges) if own else rows,
        members=members,
        validators=judges,
        untested=own,
        classes=source.classes,
        rotation=_rotation(request, dealt.clients, late, seed),
        mean=source.mean,
        std=source.std,
        seed=seed,
        notes=dealt.notes,
        names=dealt.names,
        permutations=_permutations(source, request, dealt.clients, seed),
    )
    if federation.permutations is not None and federation.examples.text:
        raise SettingError(
            f"permutations gives classes other numbers, but the classes of {source.name!r} are characters, which stand "
            "in the examples, too; it is for classes of other examples."
        )
    left = {
        "latecomers": (late, len(federation) - federation.first_late),
        "validators": (judges, federation.validators),
    }
    for kind, (asked, there) in left.items():
        if asked and not there:
            raise SettingError(f"None of the {kind} has examples both to train and to test on; ask for fewer clients.")
    return _with_budgets(_with_labels(federation, request), request.budgets)


def _angles(request: Split) -> tuple[int, ...]:
    return request.rotations or ((0, 90, 180, 270) if request.partition == "rotations" else ())


def _rotation(request: Split, clients: int, late: int, seed: int) -> NDArray[Any] | None:
    """Every client's angle; what latecomers draw among changes nothing for the others."""
    angles, random = _angles(request), _random(seed, "rotations")
    if not angles:
        return None
    drawn = random.choice(angles, clients)
    if request.unseen_rotations:
        drawn[clients - late :] = random.choice(request.unseen_rotations, late)
    return drawn


def _permutations(source: Source, request: Split, clients: int, seed: int) -> Permutations | None:
    if request.permutations < 2:
        return None
    return Permutations.draw(request.permutations, source.classes, clients, _random(seed, "permutations"))


def _capped(dealt: Dealt, most: int, parts: tuple[int, ...], random: np.random.Generator) -> Dealt:
    """Takes from every client the examples of these splits beyond `most`, at random."""
    if not most:
        return dealt
    rows = random.permutation(np.flatnonzero(np.isin(dealt.split, parts) & (dealt.owner != NOBODY)))
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


def _scored_on_all(rows: dict[str, Any], members: int, judges: int) -> dict[str, Any]:
    """As FLowDUP's paper has it: what describes a client that does not train is also what it is scored on."""
    train, val, test = (list(rows[name]) for name in SPLITS)
    val[members : members + judges] = train[members : members + judges]  # validators select, so they never test
    train[members + judges :] = test[members + judges :]
    return {"train": train, "val": val, "test": test}


def _with_labels(federation: Federation, request: Split) -> Federation:
    members = federation.members
    order = _random(federation.seed, "labelled").permutation(members)
    labelled = torch.full((len(federation),), request.unseen_labelled)
    labelled[:members] = False
    labelled[torch.from_numpy(order[: round(request.labelled * members)])] = True
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


def _check(source: Source, request: Split, seed: int) -> None:
    """A sentence where a request is at odds with itself or with the source; its ranges are known to be right."""
    partition, clients = request.partition, request.clients
    if partition not in PARTITIONS:
        raise UnknownName("partition", partition, PARTITIONS)
    if seed < 0:
        raise SettingError(f"seed is {seed}; it must be 0 or more.")
    if not clients and partition != "natural":
        raise SettingError("clients is 0; there must be at least one (with the partition 'natural' 0 is all).")
    if clients > len(source.y_train):
        raise SettingError(
            f"clients is {clients}, but {source.name!r} has only {len(source.y_train)} examples to train on."
        )
    if request.classes_per_client > source.classes:
        allowed = f"0 (the usual number) to {source.classes}, the classes of {source.name!r}"
        raise SettingError(f"classes_per_client is {request.classes_per_client}; allowed is {allowed}.")
    if _angles(request) and source.x_train.dtype != np.uint8:
        raise SettingError(
            f"rotations turn images, but the examples of {source.name!r} are {source.x_train.dtype} arrays."
        )
    if request.unseen_alpha and not request.unseen:
        raise SettingError(f"unseen_alpha is {request.unseen_alpha}, but there are no latecomers; unseen is 0.")
    if request.unseen_alpha and partition != "pachinko" and (partition, request.over) != ("dirichlet", "classes"):
        raise SettingError(
            f"unseen_alpha is {request.unseen_alpha}; it needs a partition that draws the class shares of every "
            "client: pachinko, or dirichlet over classes."
        )
    if request.unseen_rotations and not (_angles(request) and request.unseen):
        missing = (
            "the others turn nothing; give --rotations" if request.unseen else "there are no latecomers; unseen is 0"
        )
        raise SettingError(f"unseen_rotations is {request.unseen_rotations}, but {missing}.")
    if request.unlike and (partition != "classes" or request.split == "pfedhn" or not request.stranger_count):
        raise SettingError(
            f"unlike is {request.unlike}; it needs the partition 'classes', another split than 'pfedhn', and so many "
            "latecomers that one of them is unlike."
        )
    if request.split == "flowdup":
        _check_flowdup(request)


def _check_flowdup(request: Split) -> None:
    if request.partition not in FLOWDUP:
        raise SettingError(
            f"The split 'flowdup' is one of the partitions {', '.join(FLOWDUP)}, not of {request.partition!r}."
        )
    if not request.unseen:
        raise SettingError("The split 'flowdup' scores latecomers only, and unseen is 0; ask for some.")
    if request.unseen_labelled:
        raise SettingError(
            "The split 'flowdup' scores latecomers on the very examples that they have, so they must not have labels; "
            "give --unseen-labelled false."
        )
