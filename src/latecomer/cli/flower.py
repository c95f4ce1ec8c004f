"""latecomer flower: write an app that trains over a SuperLink, let nodes in, and run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import methods
from ..errors import RunError, SettingError, UnknownName
from ..runs.settings import Settings
from ..settings import convert, parse
from . import flags, screen
from .drive import scores
from .show import lines

if TYPE_CHECKING:
    from ..deploy.project import Connection
    from ..engines.flower.control import Control

USAGE = """Usage: latecomer flower new DIR --method METHOD --clients N [--data DATA] [--classes N] [--setting value ...]
       latecomer flower register KEY.pub [--superlink HOST:PORT] --root-certificates FILE | --insecure
       latecomer flower run DIR [--superlink HOST:PORT] --root-certificates FILE | --insecure

`new` writes an app of four files. Settings are those of `latecomer run METHOD`, less what says how data are dealt:
nodes bring their own. --clients is how many of them train. --data shows what an example looks like, by a data set that
has a name or by the file of one client, npz:ONE.npz; --classes says how many classes there are where that file does
not have them all.

`register` lets the node in that has the private half of a public key.

`run` hands the app to a SuperLink, shows how it goes, and waits. A run that was stopped goes on where its last
checkpoint is; one that is finished meets the nodes that have no model yet. Ctrl-C stops the run.
"""


def main(words: list[str]) -> int:
    actions = {"new": new, "register": register, "run": run}
    if not words:
        raise SettingError(f"Say what to do with Flower: {', '.join(actions)}; --help says more.")
    action, *rest = words
    if action not in actions:
        raise UnknownName("command of flower:", action, actions)
    subject, rest = flags.subject(rest, f"latecomer flower {action} {'KEY.pub' if action == 'register' else 'DIR'}")
    return actions[action](Path(subject), rest)


def explain(words: list[str]) -> None:
    print(USAGE)
    from ..deploy.project import Submission

    screen.section("Settings of run; register has the first three", lines(Submission, {}))


def new(folder: Path, words: list[str]) -> int:
    name = words[0] if words and not words[0].startswith("-") else ""
    method, words = (name, words[1:]) if name else flags.pull(words, "method")
    if not method:
        raise SettingError("Say which method to train: --method METHOD; `latecomer list methods` names them.")
    classes, words = flags.pull(words, "classes")
    kind = methods.get(method)
    given = flags.given(words, Settings, kind)
    with screen.working("Preparing"):
        from ..deploy import project

        if "clients" not in given:
            raise SettingError("--clients is needed: how many nodes train.")
        project.new(folder, method, given, convert("classes", classes or 0, int))
    print(folder)
    return 0


def register(key: Path, words: list[str]) -> int:
    from ..deploy.project import Connection

    with connected(parse(Connection, flags.given(words, Connection))) as control:
        print(control.register(key))
    return 0


def run(folder: Path, words: list[str]) -> int:
    from ..deploy import project

    how = parse(project.Submission, flags.given(words, project.Submission))
    method = project.read(folder).settings.method
    place = project.run_folder(folder, how)
    with connected(how) as control:
        number = control.start(folder, {"folder": str(place), "wait": how.wait})
        try:
            return follow(control, number, method)
        except KeyboardInterrupt:
            control.stop(number)
            raise KeyboardInterrupt("Stopped; the same command goes on from the last checkpoint.") from None


def connected(to: Connection) -> Control:
    """The SuperLink that is meant; whether it is there, the first question tells."""
    with screen.working("Asking the SuperLink"):
        from ..engines.flower import superlink

        return superlink(to.superlink, Path(to.root_certificates) if to.root_certificates else None)


def follow(control: Control, number: int, method: str) -> int:
    """Show what the server of a run tells, and how it ended."""
    from ..deploy.news import heard

    last: dict[str, Any] = {}
    screen.err(f"{method}: run {number}")
    for line in control.lines(number):
        news = heard(line)
        last |= news
        if "note" in news:
            screen.err(f"Note: {news['note']}")
        elif "round" in news:
            score = news.get("validation")
            validation = f", validation {score:.1f} %" if score is not None else ""
            screen.err(f"{method}: round {news['round']} of {news['rounds']}{validation}")
    failed = control.outcome(number)
    if "failed" in last:
        raise RunError(str(last["failed"]))
    if failed or "given" not in last:
        raise RunError(f"The run did not end well ({failed or 'no word of it'}); the same command lets it go on.")
    summarise(last)
    return 0


def summarise(last: dict[str, Any]) -> None:
    if result := last.get("result"):
        screen.out(f"{result['method']}: {last['members']} members, {result['rounds']} rounds")
        seen = result["seen"]
        if seen.get("accuracy") is not None:
            screen.out(scores(result))
        sent = result["bytes_per_client_round"]
        down, up = (screen.kilobytes(sent[way]) for way in ("down", "up"))
        screen.out(f"Sent per client and round: {down} kB down, {up} kB up; trained for {result['seconds']:.1f} s")
    late = [client for client in last["given"] if client >= last["members"]]
    screen.out(f"Models handed out: {len(last['given']) - len(late)} to members, {len(late)} to latecomers")
    if last["without"]:
        numbers = ", ".join(map(str, last["without"]))
        screen.err(f"Note: no model yet for clients {numbers}; the same command hands them out when they are back.")
    print(last["folder"])
