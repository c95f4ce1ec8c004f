"""Predict with a client's own model, by numpy and onnxruntime alone: python predict.py FOLDER DATA.npz

FOLDER is what `Personal.save` wrote; DATA.npz holds examples as `x`. Prints one class a line.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

AT_ONCE = 256  # examples


def main(folder: Path, data: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "model.onnx" in config["why"]:
        sys.exit(f"{folder} has no model.onnx. {config['why']['model.onnx']}")
    graph = (folder / "model.onnx").read_bytes()
    if hashlib.sha256(graph).hexdigest() != config["files"]["model.onnx"]:
        sys.exit(f"{folder / 'model.onnx'} is damaged.")
    session = onnxruntime.InferenceSession(graph)
    task = config["recipe"]["task"]
    x = np.load(data, allow_pickle=False)["x"].reshape(-1, *task["stored"]).astype(task["dtype"], casting="same_kind")
    for first in range(0, len(x), AT_ONCE):
        (logits,) = session.run(None, {"x": x[first : first + AT_ONCE]})
        print(*logits.argmax(1), sep="\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
