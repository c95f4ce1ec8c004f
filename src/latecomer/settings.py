"""Settings: a dataclass is the command line, the TOML file and the documentation at once.

    lr: float = setting(0.1, "local learning rate", low=0)

A value comes from the command line (text), from TOML (typed) or from Python; `parse` checks all three alike.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import SettingError, UnknownName

T = TypeVar("T")

Size = Literal["S", "M", "L"]
SIZES: tuple[str, ...] = get_args(Size)
"""What a client can afford: the model narrower than usual, as it is, or wider."""


def setting(
    default: Any, meaning: str, *, low: float | None = None, high: float | None = None, above: float | None = None
) -> Any:
    """A field with its meaning, and the range of a number: `low` <= value <= `high`, value > `above`."""
    return field(default=default, metadata={"meaning": meaning, "low": low, "high": high, "above": above})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run, less the method's own settings. `None` means: as the method's paper does, else latecomer's default."""

    method: str = setting("", "the method; `latecomer list methods` names them")
    data: str = setting("digits", "data set: a name, npz:PATH, leaf:FOLDER or hf:ID; `latecomer list data` names them")
    partition: str = setting("classes", "how the data fall to the clients; `latecomer list partitions` names them")
    split: Literal["pefll", "pfedhn", "flowdup"] | None = setting(
        None,
        "whose variant of the classes partition; flowdup (also iid, rotations, natural): latecomers share the test "
        "images (natural: keep their own), have no labels, and are scored on all that they have",
    )
    classes_per_client: int = setting(
        0,
        "classes partition: classes a client has; 0: 2 of up to 10, 10 of 100 (hierarchical: coarse classes; 0: 1)",
        low=0,
    )
    alpha: float = setting(0.1, "dirichlet and pachinko partitions: concentration; smaller is more uneven", above=0)
    fine_alpha: float = setting(10.0, "pachinko partition: the same for fine classes within a coarse one", above=0)
    unseen_alpha: float = setting(
        0.0, "latecomers' own alpha (pachinko, or dirichlet over classes); 0: the members'", low=0
    )
    over: Literal["clients", "classes"] = setting(
        "clients", "dirichlet partition: draw each class's shares over clients, or each client's shares over classes"
    )
    rotations: tuple[int, ...] = setting(
        (), "degrees; every client turns all its images by one of them, drawn at random"
    )
    budgets: tuple[Size, ...] = setting(
        (), "sizes of model that clients can afford; they fall at random into equal groups, one a size; none: all M"
    )
    examples: int = setting(0, "at most so many training examples a client; 0: all", low=0)
    validation: float = setting(0.2, "share of the training examples held out for validation", low=0, high=0.9)
    clients: int = setting(100, "all clients, latecomers included (natural partition: 0 takes all there are)", low=0)
    unseen: float = setting(
        0.0, "share of the clients that are latecomers: they take no part in training", low=0, high=0.99
    )
    validators: float = setting(
        0.0, "share of the clients that neither train nor come late: their scores select the round", low=0, high=0.99
    )
    labelled: float = setting(1.0, "share of the training clients that have labels", low=0, high=1)
    unseen_labelled: bool = setting(True, "whether latecomers, and validators like them, have labels")
    model: str = setting(
        "auto", "client model; `latecomer list models` names them; auto: lenet, mlp below 16 pixels, lstm for text"
    )
    start: str = setting("", "run folder whose model, one for all clients, the training begins with")
    rounds: int | None = setting(None, "rounds of training; 0 with --start: its model is only personalised", low=0)
    cohort: int | None = setting(None, "clients a round; 0: all members", low=0)
    cohort_labelled: float | None = setting(
        None, "share of a round's clients that are drawn among those with labels; -: all are drawn alike", low=0, high=1
    )
    lr_schedule: Literal["constant", "step", "cosine"] | None = setting(
        None,
        "learning rates over the rounds of training, on clients and on the server: as they are, divided by ten after "
        "half and again after three quarters of the rounds, or along a cosine to zero",
    )
    seed: int = setting(
        0, "first seed: of the split, the initial weights, the cohorts and the batches", low=0, high=10**9
    )
    seeds: int = setting(1, "how many seeds, trained in lockstep", low=1)
    evaluate_every: int = setting(30, "rounds between evaluations of the members", low=1)
    watch_unseen: bool = setting(False, "evaluate latecomers at every evaluation, not only at the end")
    select: Literal["accuracy", "own_classes", "pooled", "own_pooled"] = setting(
        "accuracy",
        "validation score, of the validators or else of the members, that selects the reported round: mean of clients, "
        "among all classes or a client's own, or pooled over examples, likewise",
    )
    checkpoint_seconds: float = setting(
        60.0, "seconds between checkpoints, written at evaluations; and at the end", low=0
    )
    silence: float = setting(0.0, "probability that a client falls silent at a step", low=0, high=0.999)
    engine: Literal["auto", "vector", "loop", "flower"] = setting("auto", "what runs the clients' steps")
    device: str = setting("auto", "cpu, cuda, or auto: cuda where there is one")
    threads: int = setting(
        0, "processor threads; 0: as PyTorch chooses (sums round differently with another number)", low=0, high=1024
    )
    chunk: int = setting(0, "clients at once; 0: as many as fit into memory", low=0)
    graphs: bool = setting(True, "replay exchanges: as CUDA graphs on a GPU, operation by operation on a CPU")
    tf32: bool = setting(True, "on a GPU, let matrix products round their inputs to TF32")
    name: str = setting("", "name of the run folder (default: method, data, time)")
    out: str = setting("runs", "folder that holds the run folders")


HOUSE: Mapping[str, Any] = {
    "split": "pefll",
    "rounds": 5000,
    "cohort": 5,
    "cohort_labelled": None,
    "lr_schedule": "constant",
}
"""latecomer's default for a setting that is None, where the method's paper has none either."""


def parse(kind: type[T], values: Mapping[str, Any], *, known: Iterable[str] = (), **given: Any) -> T:
    """An instance of a settings dataclass from raw values. `known` are further names that would have been allowed."""
    fields = settings_of(kind)
    hints = get_type_hints(kind)
    for name in values:
        if name not in fields:
            raise UnknownName("setting", name, {*fields, *known})
    typed = {name: convert(name, value, hints[name]) for name, value in values.items()}
    made = kind(**typed, **given)
    check_ranges(made)
    return made


def settings_of(kind: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a dataclass that are settings."""
    return {f.name: f for f in dataclasses.fields(kind) if "meaning" in f.metadata}


def check_ranges(instance: Any) -> None:
    """A sentence for the first setting that is not within what it allows."""
    hints = get_type_hints(type(instance))
    for name, f in settings_of(instance).items():
        value = convert(name, getattr(instance, name), hints[name])
        for number in value if isinstance(value, tuple) else (value,):
            if not isinstance(number, int | float) or isinstance(number, bool):
                continue
            limits = _limits(f)
            endless = isinstance(number, float) and not math.isfinite(number)
            if endless or any(not inside(number) for inside, _ in limits):
                raise SettingError(f"{flag(name)} must be {' and '.join(text for _, text in limits)}; got {number}.")
            if isinstance(number, int) and abs(number) >= 2**63:  # more than a tensor can count
                raise SettingError(f"{flag(name)} must be a whole number below 2^63; got {number}.")


def _limits(f: dataclasses.Field[Any]) -> list[tuple[Any, str]]:
    low, high, above = (f.metadata[key] for key in ("low", "high", "above"))
    limits: list[tuple[Any, str]] = []
    if low is not None:
        limits.append((lambda number: number >= low, f"at least {low:g}"))
    if above is not None:
        limits.append((lambda number: number > above, f"greater than {above:g}"))
    if high is not None:
        limits.append((lambda number: number <= high, f"at most {high:g}"))
    return limits or [(lambda number: True, "a finite number")]


def allowed(kind: Any, name: str) -> str:
    """What values a setting takes, in a few words; empty where its meaning says it all."""
    hint, f = get_type_hints(kind)[name], settings_of(kind)[name]
    options = [hint, *get_args(hint)]  # the type itself, or what may stand in a union
    for option in options:
        if get_origin(option) is Literal:
            return ", ".join(map(str, get_args(option)))
    low, high, above = (f.metadata[key] for key in ("low", "high", "above"))
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    return "" if low == above == high else " and ".join(text for _, text in _limits(f)).replace("greater than", "above")


def flag(name: str) -> str:
    """A setting's name as the command line spells it."""
    return "--" + name.replace("_", "-")


def convert(name: str, value: Any, kind: Any) -> Any:
    """`value` as the type asks, or a sentence that says what was expected."""
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        kind = next(option for option in get_args(kind) if option is not type(None))
    if get_origin(kind) is Literal:
        return _choice(name, value, get_args(kind))
    if get_origin(kind) is tuple:
        parts = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise SettingError(f"{flag(name)} takes several values; got {value!r}.")
        return tuple(convert(name, part, get_args(kind)[0]) for part in parts)
    return _plain(name, value, kind)


def _choice(name: str, value: Any, options: tuple[Any, ...]) -> Any:
    if value not in options:
        raise UnknownName(f"value for {flag(name)}", str(value), [str(option) for option in options])
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _plain(name: str, value: Any, kind: Any) -> Any:
    if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if kind in (int, float) and (isinstance(value, str) or type(value) is int):
        try:
            return kind(value.replace("_", "") if isinstance(value, str) else value)
        except (ValueError, OverflowError):
            pass
    elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) and _writable(value):
        return value
    raise SettingError(f"{flag(name)} must be {_WORDS.get(kind, kind)}; got {value!r}.")


def _writable(value: Any) -> bool:
    """Whether a text can be written to settings.toml; bytes of the command line that are not UTF-8 cannot."""
    return not isinstance(value, str) or value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def dump(values: Mapping[str, Any]) -> str:
    """Flat settings, or tables of them, as TOML. `None` is left out: the default stands for it."""
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict | None)]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += ["", f"[{key}]", dump(value).rstrip()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's escapes are JSON's, and DEL
