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
from .partitions import FLOWDUP, NOBODY, PARTITIONS, TEST, TRAIN, VAL, Dealt, Plan
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
    validators: float = 0.0,
    fine_alpha: float = 10.0,
    unseen_alpha: float = 0.0,
    budgets: tuple[str, ...] = (),
) -> Federation:
    """Deal the examples of a source to clients.

    The last `unseen` share of the clients are latecomers, the `validators` share before them validators. A seeded
    `labelled` share of the members has labels; the others have them if `unseen_labelled`. As the split "flowdup",
    latecomers share the test examples (natural ones have all their own) and are scored on what describes them; so are
    validators, on training examples.
    With `rotations` every client draws one of these angles for all its images. `examples` above zero is the most that
    a client may train on. `unseen_alpha` above zero is the latecomers' own Dirichlet alpha. `budgets`
    names sizes of model (S, M, L); members, and the others too, fall into groups of equal number, one a size.
    """
    source = load(source) if isinstance(source, str) else source
    plan = Plan(clients, split, classes_per_client, alpha, over, validation, fine_alpha)
    if unseen_alpha:
        plan = replace(plan, late=_set_apart(unseen, validators, clients)[0], unseen_alpha=unseen_alpha)
        _check_unseen_alpha(partition, plan)
    angles = tuple(rotations) or ((0, 90, 180, 270) if partition == "rotations" else ())
    _check(source, partition, plan)
    _check_options(source, labelled, examples, seed, angles)
    if own := split == "flowdup":
        _check_flowdup(partition, unseen, unseen_labelled)
        plan = replace(plan, late=_set_apart(unseen, validators, clients)[0] if clients else 0)
    dealt = PARTITIONS[partition](source, plan, _random(seed, "partition"))
    late, judges = _set_apart(unseen, validators, dealt.clients)
    members = dealt.clients - late - judges
    if own:  # nothing is held out of what a validator or a latecomer has
        dealt.split[(dealt.split == VAL) & (dealt.owner >= members)] = TRAIN
        dealt.split[dealt.owner >= members + judges] = TEST
    rows = _rows(_capped(dealt, examples, (TRAIN, TEST) if own else (TRAIN,), _random(seed, "examples")))
    federation = Federation.from_arrays(
        source.x,
        source.y,
        **_scored_on_all(rows, members, judges) if own else rows,
        members=members,
        validators=judges,
        untested=own,
        classes=source.classes,
        rotation=_random(seed, "rotations").choice(angles, dealt.clients) if angles else None,
        mean=source.mean,
        std=source.std,
        seed=seed,
        notes=dealt.notes,
        names=dealt.names,
    )
    for kind, asked, left in (
        ("latecomers", late, len(federation) - federation.first_late),
        ("validators", judges, federation.validators),
    ):
        if asked and not left:
            raise SettingError(f"None of the {kind} has examples both to train and to test on; ask for fewer clients.")
    return _with_budgets(_with_labels(federation, labelled, unseen_labelled), budgets)


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


def _set_apart(unseen: float, validators: float, clients: int) -> tuple[int, int]:
    """How many of the clients are latecomers, and how many are validators."""
    counts, left = [], clients
    for name, share, one in (("unseen", unseen, "latecomer"), ("validators", validators, "validator")):
        if not 0 <= share < 1:
            raise SettingError(f"{name} is {share}; it is the share of clients that are {one}s, from 0 to below 1.")
        counts.append(round(share * clients))
        left -= counts[-1]
        if share and not (counts[-1] and left > 0):
            none = "no member to train with" if counts[-1] else f"no {one}"
            raise SettingError(
                f"{name} is {share}, which of {clients} clients leaves {none}; one of each kind is needed."
            )
    return counts[0], counts[1]


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
    alphas = {"alpha": plan.alpha, "fine_alpha": plan.fine_alpha, "unseen_alpha": plan.unseen_alpha or plan.alpha}
    for name, value in alphas.items():
        if not (value > 0 and math.isfinite(value)):
            raise SettingError(f"{name} is {value}; it must be a number above 0.")
    if not 0 <= plan.classes_per_client <= source.classes:
        allowed = f"0 (the usual number) to {source.classes}, the classes of {source.name!r}"
        raise SettingError(f"classes_per_client is {plan.classes_per_client}; allowed is {allowed}.")
    if plan.split not in ("pefll", "pfedhn", "flowdup"):
        raise UnknownName("split", plan.split, ("pefll", "pfedhn", "flowdup"))
    if plan.over not in ("clients", "classes"):
        raise UnknownName("over", plan.over, ("clients", "classes"))


def _check_flowdup(partition: str, unseen: float, unseen_labelled: bool) -> None:
    if partition not in FLOWDUP:
        raise SettingError(f"The split 'flowdup' is one of the partitions {', '.join(FLOWDUP)}, not of {partition!r}.")
    if not unseen:
        raise SettingError("The split 'flowdup' scores latecomers only, and unseen is 0; ask for some.")
    if unseen_labelled:
        raise SettingError(
            "The split 'flowdup' scores latecomers on the very examples that they have, so they must not have labels; "
            "give --unseen-labelled false."
        )


def _check_unseen_alpha(partition: str, plan: Plan) -> None:
    if not plan.late:
        raise SettingError(f"unseen_alpha is {plan.unseen_alpha}, but there are no latecomers; unseen is 0.")
    if partition != "pachinko" and (partition, plan.over) != ("dirichlet", "classes"):
        raise SettingError(
            f"unseen_alpha is {plan.unseen_alpha}; it needs a partition that draws the class shares of every client: "
            "pachinko, or dirichlet over classes."
        )


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
