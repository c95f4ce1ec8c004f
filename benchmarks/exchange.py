"""Seconds that an exchange takes over a SuperLink: with nodes of ours, and with Flower's own SuperNodes.

    python benchmarks/exchange.py [--nodes 4] [--rounds 5]

One SuperLink with TLS and node keys on this machine, and the same training (PeFLL on digits, three exchanges a round)
twice: by `latecomer node`, then by stock SuperNodes, which start a process for each message. What is measured is what
the ledger says of the exchanges of training; the first round is left out, as whoever is asked first has to get ready.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from statistics import median

import numpy as np

from common import where
from deployment import BIN, Site, end, free_port, site
from latecomer import federate

ASKED = 0.2  # of a stock SuperNode's time, at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    print(where())
    print(f"load before: {os.getloadavg()[0]:.1f}", flush=True)
    names = [f"node{k}" for k in range(asked.nodes)]
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as here:
        federation = federate("digits", partition="classes", clients=asked.nodes)
        for k, name in enumerate(names):
            rows = federation.train[k].long()
            np.savez(
                here.folder / f"{name}.npz",
                x=federation.examples.x[rows].numpy(),
                y=federation.examples.y[rows].numpy(),
            )
        here.superlink()
        here.register(*names)
        made = here.latecomer(
            *("flower", "new", "app", "--method", "pefll", "--clients", asked.nodes, "--cohort", asked.nodes),
            *("--rounds", asked.rounds, "--steps", 5, "--threads", 1, "--evaluate-every", asked.rounds),
        )
        assert made.returncode == 0, made.stderr
        seconds = {}
        for kind, start in (("latecomer node", ours), ("stock SuperNode", stock)):
            nodes = [start(here, name) for name in names]
            done = here.latecomer(
                *("flower", "run", "app", "--superlink", here.address, "--root-certificates", "ca.crt"),
                *("--name", kind.replace(" ", "-"), "--wait", 300),
                timeout=3000,
            )
            assert done.returncode == 0, done.stderr
            ledger = here.folder / "app" / "runs" / kind.replace(" ", "-") / "ledger.jsonl"
            lines = [json.loads(line) for line in ledger.read_text().splitlines()]
            seconds[kind] = [line["seconds"] for line in lines if line["round"] > 0]
            told = f"median {median(seconds[kind]):.2f} s, {min(seconds[kind]):.2f} to {max(seconds[kind]):.2f}"
            print(f"{kind:<16} {len(seconds[kind])} exchanges: {told}; load {os.getloadavg()[0]:.1f}", flush=True)
            for node in nodes:
                end(node, signal.SIGTERM)
                node.wait(60)
    share = median(seconds["latecomer node"]) / median(seconds["stock SuperNode"])
    print(f"a node of ours takes {share:.3f} of a stock SuperNode's time (asked: at most {ASKED})")


def ours(here: Site, name: str) -> subprocess.Popen[bytes]:
    node = here.node(name)
    here.await_log(name, "is ready", 300)
    return node


def stock(here: Site, name: str) -> subprocess.Popen[bytes]:
    return here.start(
        f"stock-{name}",
        *(BIN / "flower-supernode", "--superlink", here.address, "--root-certificates", "ca.crt"),
        *("--auth-supernode-private-key", name, "--port", free_port()),
        *("--node-config", f'data="{here.folder / name}.npz"'),
    )


if __name__ == "__main__":
    main()
