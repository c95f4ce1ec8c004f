"""How deep a round is, and how many files and functions of latecomer it passes.

    python benchmarks/frames.py [--method pefll] [--engine vector] [--graphs]

One round on digits with an MLP, after one that warms up, on a CPU and without capture unless `--graphs` asks for it.
Counted are the frames of latecomer on the deepest stack from `Training.advance` to an SGD update, and all files and
functions entered.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import latecomer
from latecomer import federate, make_task, methods
from latecomer.engines import make
from latecomer.nets.models import MLP
from latecomer.train import Plan, Training

HOUSE = Path(latecomer.__file__).parent
UPDATE = "ops/sgd.py"  # where the weights move


class Frames:
    """Watches calls: the deepest stack of latecomer that ends in an update, and every function entered."""

    def __init__(self) -> None:
        self.deepest: list[str] = []
        self.functions: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or (name := ours(frame)) is None:
            return
        self.functions.add(name)
        if name.startswith(UPDATE):
            stack = [name]
            above = frame.f_back
            while above is not None and not stack[-1].endswith("Training.advance"):
                stack += [found] if (found := ours(above)) is not None else []
                above = above.f_back
            self.deepest = max(self.deepest, stack[::-1], key=len)

    @property
    def files(self) -> list[str]:
        return sorted({name.partition(":")[0] for name in self.functions})


def ours(frame: FrameType) -> str | None:
    """The file and function of a frame, if it is latecomer's."""
    path = Path(frame.f_code.co_filename)
    return f"{path.relative_to(HOUSE)}:{frame.f_code.co_qualname}" if path.is_relative_to(HOUSE) else None


def study(name: str, engine: str, graphs: bool) -> Frames:
    federation = federate("digits", partition="classes", clients=10, unseen=0.2)
    kind = methods.get(name)
    few: dict[str, Any] = {"steps": 2} if "steps" in kind.__dataclass_fields__ else {}
    method = kind(task=make_task(federation, MLP), clients=len(federation), members=federation.members, **few)
    made = make(engine, method, [federation], "cpu", graphs=graphs)
    training = Training(method, [federation], made, Plan(rounds=2, cohort=3))
    training.advance()
    frames = Frames()
    sys.setprofile(frames)
    try:
        training.advance()
    finally:
        sys.setprofile(None)
    return frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="pefll")
    parser.add_argument("--engine", default="vector", choices=["vector", "loop"])
    parser.add_argument("--graphs", action="store_true", help="with capture")
    options = parser.parse_args()
    frames = study(options.method, options.engine, options.graphs)
    for depth, name in enumerate(frames.deepest, 1):
        print(f"{depth:3} {name}")
    passed = {name.partition(":")[0] for name in frames.deepest}
    print(f"{len(frames.deepest)} frames in {len(passed)} files from Training.advance to the update")
    print(f"{len(frames.functions)} functions in {len(frames.files)} files in all: {', '.join(frames.files)}")


if __name__ == "__main__":
    main()
