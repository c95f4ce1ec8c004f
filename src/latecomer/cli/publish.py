"""latecomer publish: a bundle of a finished run, from which newcomers get their models."""

from __future__ import annotations

from ..errors import SettingError
from . import flags, screen

USAGE = """Usage: latecomer publish RUN -o BUNDLE [--seed N]

Writes a folder with all that it takes to hand models to newcomers: ONNX graphs, weights, and what the server keeps.
Of a run with several seeds it takes the first server, or that of --seed. The path is printed when it is done.
"""


def main(words: list[str]) -> int:
    words = ["--output" if word == "-o" else word for word in words]
    output, words = flags.pull(words, "output")
    seed, words = flags.pull(words, "seed")
    if strange := [word for word in words if word.startswith("-")]:
        raise SettingError(f"latecomer publish takes -o and --seed, not {strange[0]!r}.")
    if len(words) != 1:
        raise SettingError(f"latecomer publish takes one run folder; got {' '.join(words) or 'none'}.")
    if not output:
        raise SettingError("Say where the bundle shall be: latecomer publish RUN -o BUNDLE.")
    if seed and not seed.isdecimal():
        raise SettingError(f"--seed is a whole number; got {seed!r}.")
    with screen.working("Exporting graphs"):
        from ..handover.bundle import publish
        from ..handover.trained import load

        place = publish(load(words[0]), output, int(seed) if seed else None)
    print(place)
    return 0


def explain(words: list[str]) -> None:
    print(USAGE, end="")
