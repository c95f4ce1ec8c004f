"""What a client costs a server and a wire, by method: bytes that are kept for it, and bytes that are sent.

    python benchmarks/kept.py [--model lenet] [--methods fedavg,pefll,pfedhn]

The server's state is made for two numbers of clients, and the difference counts; where a method sizes a descriptor by
the number of clients unless it is told, it is told 32. Memories are what a client keeps between rounds: in a simulation
they lie in the machine's memory once the client has taken part, deployed they lie with the client. Bytes sent are those
of the ledger, in one round of eight clients. Images are made up, 32x32x3.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from common import noise, where
from latecomer import Federation, make_task, methods, tree
from latecomer.engines import make
from latecomer.method import Method
from latecomer.nets.models import builder
from latecomer.train import Plan, Training
from latecomer.tree import Tree

WIDTHS = ("descriptor", "embedding")  # settings that follow the number of clients where they are 0
WIDTH = 32
FEW = {"steps": 1, "epochs": 1}  # bytes do not depend on them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--methods", default=",".join(methods.names()))
    options = parser.parse_args()
    print(where())
    federation = noise(8, 20)
    print(f"{'method':12} {'server keeps':>14} {'a client more':>14} {'memory':>10} {'down':>10} {'up':>10}")
    for name in options.methods.split(","):
        few, many = (made(name, options.model, federation, clients) for clients in (8, 108))
        each = (size(state(many)) - size(state(few))) / 100
        memory = size(few.memory(torch.Generator().manual_seed(0)))
        down, up = sent(few, federation)
        print(f"{name:12} {size(state(few)):14,} {each:14,.0f} {memory:10,} {down:10,} {up:10,}", flush=True)


def made(name: str, model: str, federation: Federation, clients: int) -> Method:
    """A method for so many clients, all of them members."""
    kind = methods.get(name)
    settings: dict[str, Any] = FEW | dict.fromkeys(WIDTHS, WIDTH)
    own = {key: value for key, value in settings.items() if key in kind.__dataclass_fields__}
    task = make_task(federation, builder(model, federation.examples.shape))
    return kind(task=task, clients=clients, members=clients, **own)


def state(method: Method) -> Tree:
    return method.init(torch.Generator().manual_seed(0))


def size(values: Tree) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(values))


def sent(method: Method, federation: Federation) -> tuple[int, int]:
    """Bytes down and up for a client in a round."""
    engine = make("loop", method, [federation], "cpu")
    training = Training(method, [federation], engine, Plan(rounds=1, cohort=len(federation)))
    training.advance()
    training.drain()
    total = training.sent[0]
    return total["down"] // total["client_rounds"], total["up"] // total["client_rounds"]


if __name__ == "__main__":
    main()
