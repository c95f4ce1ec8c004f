"""latecomer personalise: a newcomer's own model, from a finished run."""

from __future__ import annotations

from . import flags, screen

USAGE = """Usage: latecomer personalise RUN --data MINE.npz -o FOLDER [--setting value ...]

MINE.npz holds a client's examples x and, where it has them, their labels y (-1: unknown); x_val and y_val, if they are
there, are held out; else a share of the labelled examples is, as in training, and scores the model. Nothing is trained
but what the method's own rule has a newcomer train.

  --seed N     which of the run's servers; the first
  --client N   the newcomer's number, by which its batches are drawn; the run's last
  --budget B   S, M or L: the size of model that it can afford, where the run has several
  --no-onnx    leave out model.onnx, which takes seconds

FOLDER gets config.json, model.safetensors, model.onnx and README.md.
"""


def main(words: list[str]) -> int:
    run, words = flags.subject(words, "latecomer personalise RUN --data MINE.npz -o FOLDER")
    given = flags.read(flags.long(words), ("data", "output", "seed", "client", "budget", "onnx"), ("onnx",))
    data, output = flags.needed(given, "data"), flags.needed(given, "output")
    with screen.working("Personalising"):
        from ..handover.files import read_client
        from ..handover.trained import load
        from ..settings import convert

        mine = read_client(data)
        held_out = None if mine["held_x"] is None else (mine["held_x"], mine["held_y"])
        numbers = {name: convert(name, given[name], int) for name in ("seed", "client") if name in given}
        model = load(run).personalise(
            mine["x"], mine["y"], held_out=held_out, budget=given.get("budget", "M"), **numbers
        )
        folder = model.save(output, onnx=convert("onnx", given.get("onnx", "true"), bool))
    screen.out(f"{model.recipe['method']}: {model.summary()}")
    print(folder)  # alone on the last line, for scripts
    return 0


def explain(words: list[str]) -> None:
    print(USAGE, end="")
