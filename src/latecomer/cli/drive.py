"""What run and resume share: progress, Ctrl-C, and the summary at the end."""

from __future__ import annotations

import math
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ..settings import flag, settings_of
from . import screen

if TYPE_CHECKING:
    from ..runs.run import Run


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


@contextmanager
def ending() -> Iterator[None]:
    """SIGTERM, and a terminal that is closed, are as Ctrl-C: whoever has begun other processes sees to their end."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    heard = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]  # nohup ignores one
    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


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
    if failed := sum(result[group]["failed"] for group in ("seen", "unseen") if group in result):
        screen.err(f"Note: {failed} clients gave no score, or not one of numbers; each counts as 0 %.")
    if told := result.get("privacy"):
        screen.out(
            f"Privacy: epsilon {told['epsilon']:g}, delta {told['delta']:g}, for {told['covers']}; {spent(told)}"
        )
        if told["refused"]:
            noted = run.training.methods[0].processors
            budget, instead = (
                ("--privacy-budget", "fewer --rounds ask")
                if noted.promise
                else ("--epsilon-budget", "a larger --evaluate-every asks")
            )
            screen.err(
                f"Note: {told['refused']} answers were refused, as {budget} {told['budget']:g} was spent; "
                f"{instead} clients less often."
            )
    rates = [flag(name) for name in settings_of(run.training.methods[0]) if name == "lr" or name.endswith("_lr")]
    settings = run.experiment.settings
    from ..faults import parse

    on_purpose = parse(settings.faults).keys() - {"drop", "flip"}  # whoever is dropped was not asked
    for note in ("" if on_purpose else failures(result, rates), skipped(result, settings.min_replies)):
        if note:
            screen.err(f"Note: {note}")
    print(run.folder.path, flush=True)  # alone on the last line, for scripts; what is for a person goes elsewhere
    screen.err(f"See it beside others: latecomer report {shlex.quote(str(run.folder.path))} -o report.html")


def spent(told: Mapping[str, Any]) -> str:
    """What the clients with most answers have given away in all of them."""
    roles = {one["role"]: one for one in (told["worst"], told.get("latecomers")) if one}
    return ", ".join(
        f"a {role} spent at most {one['epsilon']:.3g} in {one['answers']} answer{'s' * (one['answers'] != 1)}"
        for role, one in roles.items()
    )


def scores(result: Mapping[str, Any]) -> Table:
    """Test accuracy, twice: among all classes, and among those of which a client has training examples."""
    table = Table()
    for k, heading in enumerate(("test accuracy, %", "among", "mean of clients", "pooled", "bottom decile")):
        table.add_column(heading, justify="right" if k > 1 else "left")
    several = len(result["seeds"]) > 1
    for group in ("seen", "unseen"):
        found = result.get(group, {"accuracy": math.nan})
        for among, mean, prefix in (("all classes", "accuracy", ""), ("own classes", "own_classes", "own_")):
            if not math.isnan(found["accuracy"]):
                spread = f" ± {found[f'{prefix}std']:.1f}" if several else ""
                rest = (f"{found[f'{prefix}{name}']:.1f}" for name in ("pooled", "bottom_decile"))
                table.add_row(group if not prefix else "", among, f"{found[mean]:.1f}{spread}", *rest)
    return table


def failures(result: Mapping[str, Any], rates: Sequence[str]) -> str:
    """What to say where replies that were asked for did not come, or were not finite; empty where all is well."""
    share, many, rate = 100 * (1 - result["answered"]), len(result["seeds"]) > 1, " or ".join(rates)
    since = [
        f"from round {number} on" + (f" (seed {seed})" if many else "")
        for seed, number in zip(result["seeds"], result["diverged_at"], strict=True)
        if number is not None
    ]
    if since:
        return f"Most replies were missing or not finite {', '.join(since)}; lower {rate}."
    return f"{share:.2g} % of the replies were missing or not finite; a smaller {rate} may help." if share else ""


def skipped(result: Mapping[str, Any], fewest: int) -> str:
    """What to say where rounds had too few replies; empty where none had."""
    many = sum(result["skipped_rounds"])
    return f"{many} rounds had fewer than {fewest} replies (--min-replies) and were skipped." if many else ""


def plural(numbers: list[int], noun: str) -> str:
    """Round 30; rounds 30, 60."""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
