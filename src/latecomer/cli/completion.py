"""latecomer completion: a script for the shell, which asks us what could follow. We answer without importing torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .. import methods
from ..errors import SettingError, UnknownName
from ..settings import flag
from . import VERBS, catalogue

SCRIPTS = {
    "bash": """_latecomer() {
    local IFS=$'\\n'
    COMPREPLY=($(latecomer completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _latecomer latecomer
""",
    "zsh": """_latecomer() {
    local -a found
    found=("${(@f)$(latecomer completion words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _latecomer latecomer
""",
    "fish": """function _latecomer
    latecomer completion words (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c latecomer -a '(_latecomer)'
""",
}

USAGE = """Usage: latecomer completion bash|zsh|fish

Prints a script that lets the shell complete commands, methods, settings and many of their values. To have it always:

  bash   echo 'eval "$(latecomer completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(latecomer completion zsh)"' >> ~/.zshrc     (after compinit)
  fish   latecomer completion fish > ~/.config/fish/completions/latecomer.fish
"""


def main(words: list[str]) -> int:
    if words[:1] == ["words"]:  # the scripts ask so
        print("\n".join(suggestions(words[1:])))
        return 0
    if len(words) != 1:
        raise SettingError(f"latecomer completion takes one shell: {', '.join(SCRIPTS)}; got {' '.join(words)!r}.")
    if words[0] not in SCRIPTS:
        raise UnknownName("script for the shell", words[0], SCRIPTS)
    print(SCRIPTS[words[0]], end="")
    return 0


def explain(words: list[str]) -> None:
    if words[:1] == ["words"]:
        main(words)
    else:
        print(USAGE, end="")


def suggestions(words: Sequence[str]) -> list[str]:
    """What the last word, which may be empty, could become; none where only the shell knows, a file say."""
    before, now = [word for word in words[:-1] if word != "="], words[-1] if words else ""
    now = "" if now == "=" else now  # bash takes --name=value apart
    found: Iterable[str] = ()
    if not before:
        found = (*VERBS, "--help", "--version")
    elif before[0] == "run":
        found = _of_run(before, now)
    elif before[0] == "demo":
        found = ("--seed", "--out") if now.startswith("-") else ()
    elif len(before) == 1:
        found = _subjects(before[0])
    return sorted(word for word in found if word.startswith(now))


def _subjects(verb: str) -> Iterable[str]:
    """What may stand behind a verb, where that is one of ours."""
    from ..study import analyses, recipe_file

    return {
        "list": catalogue.KINDS,
        "show": [*methods.names(), "run"],
        "completion": SCRIPTS,
        "reproduce": recipe_file.names(),
        "analyse": analyses.names(),
        "tune": methods.names(),
    }.get(verb, ())


def _of_run(before: Sequence[str], now: str) -> Iterable[str]:
    names = methods.names()
    if len(before) == 1 and not now.startswith("-"):
        return names
    method = before[1].lower().replace("-", "") if len(before) > 1 else ""
    own = catalogue.method_settings(method) if method in names else {}
    known = catalogue.run_settings() | own | {"settings": ()}
    given, equals, _ = now.partition("=")
    if equals:
        return [f"{given}={value}" for value in _values(known.get(_name(given), ()), _name(given))]
    last = _name(before[-1])
    if before[-1].startswith("--") and last in known and known[last] != catalogue.SWITCH:
        return _values(known[last], last)
    off = [flag(f"no_{name}") for name, values in known.items() if values == catalogue.SWITCH]
    return [*map(flag, known), *off, "--help"]


def _name(word: str) -> str:
    return word.removeprefix("--").replace("-", "_")


def _values(values: Sequence[str], name: str) -> Iterable[str]:
    """Those that its type names, or those that a list of ours does."""
    listed = {"data": "data", "partition": "partitions", "model": "models"}
    if name in listed:
        return [known.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ_") for known in catalogue.KINDS[listed[name]]()]
    return ("auto", "cpu", "cuda") if name == "device" else values
