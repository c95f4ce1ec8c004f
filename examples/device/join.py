"""A newcomer with numpy and onnxruntime alone: python join.py BUNDLE DATA.npz NEW.npz [model.safetensors]

BUNDLE is a bundle, or a copy of it without its private part. DATA.npz holds the client's examples as `x` and, where it
knows them, labels as `y` (and, if it holds some out itself, `x_val` and `y_val`); NEW.npz holds examples as `x` to
predict. By the rules `common` and `generate` the client
has its model at once, and one class a line is printed. By the rule `describe` its descriptor is printed, as JSON to
send to the server; with the model.safetensors that comes back it predicts, too.
"""

import json
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

AT_ONCE = 256  # examples


def main(bundle: Path, data: Path, new: Path, received: Path | None = None) -> None:
    facts, public = json.loads((bundle / "bundle.json").read_text(encoding="utf-8")), bundle / "public"
    made, weights = {}, received or public / "common.safetensors"
    if facts["rule"] in ("describe", "generate") and not received:
        session = onnxruntime.InferenceSession(public / "encoder.onnx")
        given = inputs(facts, data)
        names = [one.name for one in session.get_outputs()]
        found = session.run(None, {one.name: given[one.name] for one in session.get_inputs()})
        made = dict(zip(names, found, strict=True))
    if facts["rule"] in ("train", "fit"):
        sys.exit(f"By the rule {facts['rule']!r} a newcomer trains, which takes torch and latecomer.")
    if "descriptor" in made:
        print(json.dumps({"descriptor": made["descriptor"].tolist()}))
        return
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        shutil.copy(public / "model.onnx", here)
        if made:
            header = facts["header"].encode()
            order = sorted(json.loads(header).items(), key=lambda leaf: leaf[1]["data_offsets"])
            numbers = b"".join(made[name].tobytes() for name, _ in order)
            (here / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + numbers)
        else:
            shutil.copy(weights, here / "model.safetensors")
        session = onnxruntime.InferenceSession(here / "model.onnx")
        rest = {one.name: made[one.name] for one in session.get_inputs() if one.name != "x"}  # what grows with the data
        x = np.load(new, allow_pickle=False)["x"].reshape(-1, *facts["recipe"]["task"]["stored"])
        for first in range(0, len(x), AT_ONCE):
            print(*session.run(None, {"x": x[first : first + AT_ONCE], **rest})[0].argmax(1), sep="\n")


def inputs(facts: dict, data: Path) -> dict[str, np.ndarray]:
    """What an encoder may ask for. Where labels are known, a fifth is held out, for methods that choose by it."""
    own = np.load(data, allow_pickle=False)
    x = own["x"].reshape(-1, *facts["recipe"]["task"]["stored"])
    y = own["y"].astype(np.int32) if "y" in own else np.full(len(x), -1, np.int32)
    normal = secrets.SystemRandom().gauss  # noise that protects a client must not come from a seed
    noise = np.array([normal(0, 1) for _ in range(facts["noise"])])
    held = np.zeros(len(x), bool)
    if "held_x" in facts["inputs"] and "x_val" not in own:
        held[np.random.default_rng(0).permutation(len(x))[: len(x) // 5]] = True
    given = {"x": x[~held], "y": y[~held], "held_x": x[held], "held_y": y[held], "noise": noise}
    if "x_val" in own:
        given |= {"held_x": own["x_val"].reshape(-1, *x.shape[1:]), "held_y": own["y_val"].astype(np.int32)}
    return given


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
