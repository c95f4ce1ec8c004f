"""What run and resume share: progress, Ctrl-C, and the summary at the end."""

from __future__ import annotations

import math
import shlex
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.table import Table

from . import screen

if TYPE_CHECKING:
    from ..run import Run


def drive(run: Run) -> int:
    """Train to the end, or until somebody stops it; returns the exit code."""
    training, resume = run.training, f"latecomer resume {shlex.quote(str(run.folder.path))}"
    for note in training.notes:
        screen.err(f"Note: {note}")
    try:
        with screen.watching() as watch, stopping(run):
            result = run.go(watch(run.experiment.settings.method, training, lambda: run.stop))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Interrupted; go on from the last checkpoint with: {resume}") from None
    if result is None:
        screen.err(f"Stopped after round {training.round}; go on with: {resume}")
        return 130
    summarise(run, result)
    return 0


@contextmanager
def stopping(run: Run) -> Iterator[None]:
    """The first SIGINT or SIGTERM lets the round finish and a checkpoint be written; the second ends it at once."""

    def stop(number: int, frame: object) -> None:
        if run.stop:
            raise KeyboardInterrupt
        run.stop = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def summarise(run: Run, result: Mapping[str, Any]) -> None:
    first, seeds = run.training.federations[0], result["seeds"]
    counts = {"members": first.members, "validators": first.validators, "latecomers": len(first) - first.first_late}
    clients = " and ".join(", ".join(f"{count} {kind}" for kind, count in counts.items() if count).rsplit(", ", 1))
    screen.out(f"{result['method']} on {result['data']}: {clients}, {result['rounds']} rounds, {plural(seeds, 'seed')}")
    screen.out(scores(result))
    sent = result["bytes_per_client_round"]
    down, up = (screen.kilobytes(sent[way]) for way in ("down", "up"))
    selected = run.experiment.settings.validation or first.validators
    reason = "Selected by validation data" if selected else "Last, as nothing is held out"
    screen.out(f"{reason}: {plural(result['selected_rounds'], 'round')}")
    screen.out(f"Sent per client and round: {down} kB down, {up} kB up; trained for {result['seconds']:.1f} s")
    if told := result.get("privacy"):
        screen.out(
            f"Privacy: epsilon {told['epsilon']:g}, delta {told['delta']:g}, for {told['covers']}; {spent(told)}"
        )
        if told["refused"]:
            screen.err(
                f"Note: {told['refused']} answers were refused, as --epsilon-budget {told['budget']:g} was spent; "
                "a larger --evaluate-every asks clients less often."
            )
    if result["answered"] < 1 - run.experiment.settings.silence:
        share = 100 * (1 - result["answered"])
        screen.err(f"Note: {share:.1f} % of the replies were missing or not finite; a smaller --lr may help.")
    print(run.folder.path)  # alone on the last line, for scripts


def spent(told: Mapping[str, Any]) -> str:
    """What the clients with most answers have given away in all of them."""
    roles = {one["role"]: one for one in (told["worst"], told.get("latecomers")) if one}
    return ", ".join(
        f"a {role} spent at most {one['epsilon']:.3g} in {one['answers']} answer{'s' * (one['answers'] != 1)}"
        for role, one in roles.items()
    )


def scores(result: Mapping[str, Any]) -> Table:
    table = Table()
    for k, heading in enumerate(("test accuracy, %", "mean of clients", "pooled", "bottom decile")):
        table.add_column(heading, justify="right" if k else "left")
    for group in ("seen", "unseen"):
        if group in result and not math.isnan(result[group]["accuracy"]):
            found = result[group]
            spread = f" ± {found['std']:.1f}" if len(result["seeds"]) > 1 else ""
            mean = f"{found['accuracy']:.1f}{spread}"
            table.add_row(group, mean, f"{found['pooled']:.1f}", f"{found['bottom_decile']:.1f}")
    return table


def plural(numbers: list[int], noun: str) -> str:
    """Round 30; rounds 30, 60."""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
