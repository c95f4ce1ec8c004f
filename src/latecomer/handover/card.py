"""The card of a client's model: what a person wants to know before using it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def card(config: Mapping[str, Any]) -> str:
    """README.md of a model folder, in Markdown, from its config.json."""
    task, server, sent = config["recipe"]["task"], config["server"], config["sent"]
    lines = [
        f"# A client's own model, by {config['recipe']['method']}",
        "",
        "Made by [latecomer](https://pypi.org/project/latecomer/) "
        f"{config['latecomer']} for one client and its data; `config.json` has all of this for programs.",
        "",
        "| | |",
        "|---|---|",
        f"| method | {config['recipe']['method']}, round {config['round']} |",
        f"| server | run `{server['run']}`, seed {server['seed']}, checkpoint `{server['checkpoint'][:16]}` |",
        f"| model | {config['recipe']['run']['model']} |",
        f"| input | {task['dtype']} {[*task['stored']]} an example, as it is stored |",
        f"| normalisation | {_normalisation(task)} |",
        f"| output | {task['classes']} logits, one a class |",
        f"| classes that the client has | {_classes(config['classes_seen'])} |",
        f"| made of | {config['examples']} examples |",
        f"| sent by the client | {sent['up']:,} bytes ({', '.join(sent['steps']) or 'nothing'}) |",
        f"| sent to the client | {sent['down']:,} bytes |",
        f"| privacy spent | {_privacy(config['privacy'])} |",
        f"| score | {score(config['held_out'])} |",
        "",
        "Scores are of examples of the client that were held out; they say nothing about other data.",
        "",
        "    latecomer predict FOLDER --data more.npz -o labels.csv",
        "",
        *_without_torch(config["why"]),
    ]
    return "\n".join(lines) + "\n"


def _without_torch(why: Mapping[str, str]) -> list[str]:
    if "model.onnx" in why:
        return [f"There is no `model.onnx`, which would do without latecomer. {why['model.onnx']}"]
    return [
        "`model.onnx` does without latecomer and torch; it takes examples as they are stored:",
        "",
        "    import numpy, onnxruntime",
        "",
        '    session = onnxruntime.InferenceSession("model.onnx")',
        '    labels = session.run(None, {"x": numpy.load("more.npz")["x"]})[0].argmax(1)',
    ]


def _normalisation(task: Mapping[str, Any]) -> str:
    if task["dtype"] != "uint8":
        return "none"
    if not task["mean"]:
        return "pixels divided by 255; part of the model"
    return f"pixels divided by 255, mean {task['mean']}, standard deviation {task['std']}; part of the model"


def _classes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count} examples)" for name, count in counts.items()) or "not known: no labels"


def _privacy(told: Mapping[str, Any]) -> str:
    if not told:
        return "no noise was added"
    return f"epsilon {told['worst']['epsilon']:g} at delta {told['delta']:g}, for {told['covers']}"


def score(held_out: Mapping[str, Any]) -> str:
    """How well a model does, in words."""
    if not held_out["examples"]:
        return "not known: nothing was held out"
    share = 100 * held_out["right"] / held_out["examples"]
    own = 100 * held_out["right_among_own_classes"] / held_out["examples"]
    return f"{share:.1f} % of {held_out['examples']} held-out examples; {own:.1f} % among the client's own classes"
