"""latecomer publish: a bundle of a finished run, from which newcomers get their models."""

from __future__ import annotations

import json

from . import flags, screen

USAGE = """Usage: latecomer publish RUN -o BUNDLE [--seed N] [--no-gate]

Writes a folder with all that it takes to hand models to newcomers: ONNX graphs, weights, and what the server keeps.
Of a run with several seeds it takes the first server, or that of --seed. A gate, which tells newcomers whether the
members cover them, is learned on the run's data where it had at least ten validators. The path is printed at the end.
"""


def main(words: list[str]) -> int:
    run, words = flags.subject(words, "latecomer publish RUN -o BUNDLE")
    given = flags.read(flags.long(words), ("output", "seed", "gate"), ("gate",))
    output = flags.needed(given, "output")
    with screen.working("Exporting graphs"):
        from ..handover.publish import publish
        from ..handover.trained import load
        from ..settings import convert

        seed = convert("seed", given["seed"], int) if "seed" in given else None
        place = publish(load(run), output, seed, gate=convert("gate", given.get("gate", "true"), bool))
        told = json.loads((place / "bundle.json").read_text(encoding="utf-8"))
    for name, reason in told["why"].items():
        screen.err(f"Note: no {name}: {reason}")
    screen.out(f"{told['method']}: rule {told['rule']}, bundle {told['version'][:12]}")
    print(place)  # alone on the last line, for scripts
    return 0


def explain(words: list[str]) -> None:
    print(USAGE, end="")
