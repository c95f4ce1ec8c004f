"""What a training refuses to begin with, each in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from . import tree
from .data.federation import Federation
from .errors import DataError, SettingError
from .faults import parse
from .method import Method
from .plan import Plan
from .secure.sizes import FEWEST
from .steps import answers_of, steps
from .tree import Tree


def check_training(method: Method, federations: Sequence[Federation], plan: Plan) -> None:
    """Refuse to begin where nothing can be learned, or where no latecomer could get a model."""
    check_plan(method, min(federation.members for federation in federations), plan)
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


def check_plan(method: Method, members: int, plan: Plan) -> None:
    """Refuse what cannot be asked of a method and so many members, whatever data they have."""
    if plan.cohort > members:
        raise SettingError(f"--cohort must be at most the number of training clients, {members}; got {plan.cohort}.")
    if plan.min_replies > plan.cohort:
        raise SettingError(f"--min-replies must be at most the cohort of {plan.cohort}; got {plan.min_replies}.")
    if plan.average != "mean" and method.processors.central:
        raise SettingError(f"--processors {method.processors} adds noise to sums; --average {plan.average} is none.")
    if plan.clip_update and not any(answers_of(type(method), step) != "message" for step in steps(type(method))):
        raise SettingError(
            f"--clip-update limits changes, but no step of {type(method).__name__} is declared to answer one."
        )
    if method.secure is not None:
        check_secure(method, plan)
    if method.lr_schedule != "constant" and method.rounds != plan.rounds:
        raise SettingError(
            f"{type(method).__name__} was made with a schedule for {method.rounds} rounds; these are {plan.rounds}."
        )


def by_labels(federation: Federation) -> tuple[Tensor, Tensor]:
    """The members without labelled examples, and those with some."""
    labelled = federation.weight[: federation.members] > 0
    return (~labelled).nonzero()[:, 0], labelled.nonzero()[:, 0]


def check_model(model: Tree, own: Tree, origin: str) -> None:
    """A sentence where a model from elsewhere does not fit into the place of our own."""
    given, wanted = tree.flatten(model), tree.flatten(own)
    for name in sorted(given.keys() ^ wanted.keys()):
        lacks = "without" if name in wanted else "with"
        raise SettingError(f"{origin} has a model {lacks} {name!r}; use the --model it was trained with.")
    for name, weight in wanted.items():
        if given[name].shape != weight.shape:
            raise SettingError(
                f"{origin} has a model whose {name!r} is {tuple(given[name].shape)}, not {tuple(weight.shape)}; "
                "use the --model and --data it was trained with."
            )


def check_secure(method: Method, plan: Plan) -> None:
    """Refuse what would have to see, or to spoil, single replies that come under masks."""
    if method.processors.central:
        raise SettingError(
            f"--processors {method.processors} needs a server that clips every reply, and --secure-mean shows it none; "
            "noise=, on the client, goes with masks."
        )
    if plan.average != "mean":
        raise SettingError(f"--secure-mean shows means alone; --average {plan.average} would have to see every reply.")
    if plan.clip_update:
        raise SettingError("--secure-mean hides the size of a reply; with --processors clip= clients clip themselves.")
    if spoiled := [name for name in parse(plan.faults) if name not in ("drop", "slow")]:
        raise SettingError(f"--faults {spoiled[0]} spoils single replies, which come under masks with --secure-mean.")
    if plan.cohort < FEWEST:
        raise SettingError(f"--secure-mean takes a --cohort of at least {FEWEST}; got {plan.cohort}.")
