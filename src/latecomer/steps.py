"""What a client step says about itself: when a server may ask for it, and the names of its message."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

from .errors import ProtocolError
from .tree import Tree

Step = Callable[..., Tree]
Phase = Literal["round", "personalise", "score", "study"]
Answers = Literal["message", "change", "averaged"]
"""What a step answers: something to read, a change of what was sent, or a change that the server only averages."""
F = TypeVar("F", bound=Callable[..., Any])

MARK, KIND = "_asked_in", "_answers"  # on a step's function: its phases, and what it answers


def asked_in(*phases: Phase, answers: Answers = "message") -> Callable[[F], F]:
    """Declare a client step: it may be asked for in a round of training, in personalisation, or in both.

    Members answer both, validators and latecomers answer `personalise` alone. `score` is answered by whoever agreed to
    report scores, and `study`, which shows what no server is meant to see, by simulated clients alone. A method without
    this is no step: no server can ask for it. A step that overrides another one need not repeat it.

    An answer that is a "change" of what was sent may be limited in size, or sent in part, the rest in later rounds; one
    that is only ever "averaged" may also be masked, so that the server sees nothing but the mean.
    """

    def declare(step: F) -> F:
        vars(step)[MARK], vars(step)[KIND] = phases, answers
        return step

    return declare


def phases_of(kind: type, name: str) -> tuple[Phase, ...]:
    """When a class lets a step be asked for: the declaration that is nearest in its line; none: it is no step."""
    declared: tuple[Phase, ...] = _declared(kind, name, MARK) or ()
    return declared


def answers_of(kind: type, name: str) -> Answers:
    """What a class says that a step answers."""
    declared: Answers = _declared(kind, name, KIND) or "message"
    return declared


def _declared(kind: type, name: str, mark: str) -> Any:
    found = (getattr(vars(base).get(name), mark, None) for base in kind.__mro__)
    return next((value for value in found if value is not None), None)


def steps(kind: type) -> list[str]:
    """The names of a method's client steps."""
    return [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if phases_of(kind, name)]


def perform(method: Any, step: str, home: Any, sent: Mapping[str, Any], phase: Phase) -> Tree:
    """On the client: do a step, and make its answer ready for its way."""
    return performed(method, step, phase)(home, **sent)


def performed(method: Any, step: str, phase: Phase) -> Step:
    """A step as every engine does it: in rounds its answer goes through the method's processors."""
    work: Step = getattr(method, step)
    processed = phase == "round" and (method.processors or method.secure is not None)
    return partial(_processed, method, step) if processed else work


def _processed(method: Any, step: str, home: Any, **sent: Any) -> Tree:
    reply: Tree = getattr(method, step)(home, **sent)
    answers = answers_of(type(method), step)
    if method.processors:
        reply, left = method.processors.outgoing(reply, answers, home, home.left.get(step, {}), step)
        if left:
            home.left = home.left | {step: left}
    if method.secure is not None and answers == "averaged":
        reply = method.secure.round(reply)  # masks, which would cancel, are put on where messages are (engines/flower)
    return reply


def phase_of(number: int, scratch: int | None) -> Phase:
    """What clients are asked for: rounds of training count from zero."""
    return "round" if scratch is None and number >= 0 else "personalise"


def check_phase(step: Step, phase: Phase) -> None:
    """Refuse what a step was not declared for. Scores are asked for after personalisation."""
    name = step.__name__
    owner = getattr(step, "__self__", None)
    declared = getattr(step, MARK, ()) if owner is None else phases_of(type(owner), name)
    if not declared:
        raise ProtocolError(
            f"Step {name!r} does not say when it may be asked for; "
            "put @asked_in('round'), @asked_in('personalise') or both in one above it."
        )
    if phase not in declared and not (phase == "personalise" and {"score", "study"} & {*declared}):
        raise ProtocolError(f"Step {name!r} is declared for {listed(declared)} and cannot be asked for in {phase!r}.")


def check_names(step: Step, given: Collection[str]) -> None:
    """Refuse a message that lacks what a step needs, or has what it does not take."""
    required, allowed = wire_names(step)
    if missing := required - set(given):
        raise ProtocolError(f"Step {step.__name__!r} needs {listed(missing)}, which was not sent.")
    if allowed is not None and (unknown := set(given) - allowed):
        raise ProtocolError(f"Step {step.__name__!r} is sent {listed(unknown)} but takes only {listed(allowed)}.")


def wire_names(step: Step) -> tuple[frozenset[str], frozenset[str] | None]:
    """The names a step needs, and those it takes (None: any): its keyword parameters are the wire names."""
    return _signature(getattr(step, "__func__", step))


@lru_cache(maxsize=256)
def _signature(function: Any) -> tuple[frozenset[str], frozenset[str] | None]:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.POSITIONAL_OR_KEYWORD]
    names = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    required = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty)
    return required, None if any(p.kind is p.VAR_KEYWORD for p in parameters) else names


def listed(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "nothing"
