"""The command line: one verb per file, imported only when it is used, so that help and lists need no torch.

What latecomer raises on purpose is one sentence and exit code 2; anything else is one line and exit code 1.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from .. import __version__
from ..errors import LatecomerError, SettingError, UnknownName
from . import streams

VERBS = {
    "demo": "members, latecomers and six methods on embedded data, in about a minute",
    "run": "train a method and write a run folder",
    "resume": "go on where a stopped run's last checkpoint is",
    "meet": "a finished run meets clients that it has never seen",
    "tune": "choose a method's settings by validation data, with the same budget for every method",
    "personalise": "make a newcomer's own model, from a finished run and its data",
    "predict": "what a personalised model says of new examples",
    "publish": "make a bundle of a finished run, from which newcomers get their models",
    "reproduce": "a table or a figure of a paper, ours beside the paper's",
    "results": "a page of all that was measured of recipes, and records of it that add up",
    "analyse": "what finished runs show, as the papers' figures do: descriptors, distances, votes, mixed models",
    "certify": "what a paper's theorem promises of a finished run, term by term, beside the true gap",
    "report": "finished runs beside each other, on one page for a browser",
    "list": "the methods, data sets, partitions, models and engines there are",
    "show": "a method's settings: their meaning, their defaults and what they allow",
    "serve": "hand out models of a published bundle over HTTP",
    "flower": "write an app that trains over a SuperLink, let nodes in, and run it",
    "node": "take part in a federation with data of one's own, over a Flower SuperLink",
    "keys": "make, replace, list and revoke the API keys of a server",
    "completion": "a script that lets a shell complete commands, methods and settings",
}

FILES = {"list": "listing"}  # a module called list would hide the builtin

EXAMPLES = (
    "latecomer run pefll --clients 50 --unseen 0.2 --rounds 200",
    "latecomer show pefll",
)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of a command line."""
    streams.prepare()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        return dispatch([word for word in words if word != "--debug"])
    except LatecomerError as error:
        return complain(one_line(error), 2, debug)
    except KeyboardInterrupt as stopped:
        return complain(one_line(stopped) or "Interrupted.", 130, debug=False)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:  # a fault of ours, or of the machine
        advice = "add --debug to see where." if not debug else "see above."
        return complain(f"{type(error).__name__}: {one_line(error)}; {advice}", 1, debug)


def dispatch(words: list[str]) -> int:
    if not words or words[0] in ("--help", "-h", "help"):
        print(usage(), end="")
        return 0
    verb, *rest = words
    if verb == "--version":
        print(f"latecomer {__version__}")
        return 0
    if verb.startswith("-"):
        raise SettingError(f"A command comes first, not {verb!r}; there are: {', '.join(VERBS)}.")
    if verb not in VERBS:
        raise UnknownName("command", verb, VERBS)
    work = importlib.import_module(f".{FILES.get(verb, verb)}", __name__)
    if "--help" in rest or "-h" in rest:
        work.explain([word for word in rest if word not in ("--help", "-h")])
        return 0
    code: int = work.main(rest)
    return code


def usage() -> str:
    lines = ["latecomer: every client of a federation gets its own model, also the one that arrives tomorrow.", ""]
    lines += ["Usage: latecomer COMMAND [--debug]", ""]
    lines += [f"  {verb:<12} {meaning}" for verb, meaning in VERBS.items()]
    lines += ["", "Examples:", *(f"  {example}" for example in EXAMPLES)]
    lines += ["", "latecomer COMMAND --help says more; latecomer --version tells the version."]
    return "\n".join(lines) + "\n"


def complain(sentence: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(streams.plain(f"latecomer: {sentence}"), file=sys.stderr)
    return code


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
