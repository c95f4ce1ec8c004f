"""latecomer publish: a bundle of a finished run, from which newcomers get their models."""

from __future__ import annotations

from . import flags, screen

USAGE = """Usage: latecomer publish RUN -o BUNDLE [--seed N]

Writes a folder with all that it takes to hand models to newcomers: ONNX graphs, weights, and what the server keeps.
Of a run with several seeds it takes the first server, or that of --seed. The path is printed when it is done.
"""


def main(words: list[str]) -> int:
    run, words = flags.subject(words, "latecomer publish RUN -o BUNDLE")
    given = flags.read(flags.long(words), ("output", "seed"))
    output = flags.needed(given, "output")
    with screen.working("Exporting graphs"):
        from ..handover.bundle import publish
        from ..handover.trained import load
        from ..settings import convert

        seed = convert("seed", given["seed"], int) if "seed" in given else None
        place = publish(load(run), output, seed)
    print(place)  # alone on the last line, for scripts
    return 0


def explain(words: list[str]) -> None:
    print(USAGE, end="")
