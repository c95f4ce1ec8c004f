"""latecomer predict: what a personalised model says of new examples."""

from __future__ import annotations

from pathlib import Path

from . import flags, screen

USAGE = """Usage: latecomer predict FOLDER --data MORE.npz -o LABELS.csv

FOLDER is what `latecomer personalise` wrote; MORE.npz holds examples x and, if they are to be scored, labels y.
LABELS.csv has a row for every example: its place, the class, and how sure the model is of it.
"""


def main(words: list[str]) -> int:
    folder, words = flags.subject(words, "latecomer predict FOLDER --data MORE.npz -o LABELS.csv")
    given = flags.read(flags.long(words), ("data", "output"))
    data, output = flags.needed(given, "data"), flags.needed(given, "output")
    with screen.working("Predicting"):
        from ..handover.files import read_client, write_labels
        from ..handover.personal import Personal

        model, more = Personal.open(folder), read_client(data)
        logits = model.logits(more["x"])
        score = None if more["y"] is None else model.score(more["x"], more["y"])
        write_labels(Path(output), logits)
    screen.out(f"{len(logits)} examples" + (f", {score:.1f} % as labelled" if score is not None else ""))
    print(output)
    return 0


def explain(words: list[str]) -> None:
    print(USAGE, end="")
