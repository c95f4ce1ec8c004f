"""What faults cost, and what a killed server loses.

    python benchmarks/faults.py [--seeds 12] [--rounds 200] [--cohort 10] [--faults drop=0.3,nan=0.05,slow=0.1]
    python benchmarks/faults.py --kills 20

PeFLL on digits, with faults and without: the scores of both, and the paired difference on the same clients, whose
interval is over seeds (95 %). With --kills a run under the same faults is killed with SIGKILL at random moments, while
it starts, trains, writes or resumes, and is resumed every time; then its folder is compared with that of a run that
nobody killed. --out keeps the folders.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import load_file

import latecomer
from common import where
from compare import Scores, difference, spread
from latecomer.runs.experiment import Experiment

FAULTS = "drop=0.3,nan=0.05,slow=0.1"
PEFLL = {"data": "digits", "clients": 50, "unseen": 0.2, "cohort": 10, "steps": 10, "lr": 0.05, "server_lr": 0.002}
OFTEN = {"evaluate_every": 5, "checkpoint_seconds": 0}  # a checkpoint at every evaluation
LATER, START = 0.3, 5.0  # seconds at most: from a checkpoint to a kill, and from a start, where that is there already


# what faults cost


def trained(settings: dict[str, Any]) -> dict[str, Scores]:
    """Every client's accuracy at the round that validation data select: members', and latecomers'."""
    found: dict[str, Scores] = {"seen": {}, "unseen": {}}
    training = Experiment.parse("pefll", settings).training()
    for federation, pair in zip(training.federations, training.complete(), strict=True):
        for name, scores in zip(found, pair, strict=True):
            assert scores is not None
            each = zip(scores.ids.tolist(), scores.accuracy().tolist(), strict=True)
            found[name] |= {(federation.seed, client): score for client, score in each}
    print(f"  {settings['faults'] or 'no faults':<32} answered {training.result(training.final())['answered']:.3f}")
    return found


def compared(seeds: int, rounds: int, cohort: int, faults: str) -> None:
    settings = {**PEFLL, "seeds": seeds, "rounds": rounds, "cohort": cohort}
    whole, faulty = (trained(settings | {"faults": text}) for text in ("", faults))
    for name in whole:
        both = f"{spread(whole[name])} without, {spread(faulty[name])} with"
        print(f"  {name:<8}{both}; difference {difference(faulty[name], whole[name])}", flush=True)


# what a killed server loses


def begin(*words: object) -> subprocess.Popen[bytes]:
    """`latecomer ...` in a process of its own."""
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    path = {"PYTHONPATH": str(Path(latecomer.__file__).parent.parent)}
    return subprocess.Popen([sys.executable, "-m", "latecomer", *map(str, words)], env={**os.environ, **path}, **quiet)


def saved_round(folder: Path) -> int:
    """The round of the latest checkpoint; zero before the first."""
    try:
        return int(json.loads((folder / "checkpoint/latest.json").read_text())["round"])
    except FileNotFoundError:
        return 0


def killed(command: list[str], folder: Path, rounds: int, kills: int, seed: int = 0) -> int:
    """Run a command to its end, killing it at random moments on the way; how often it was alive to be killed."""
    chance, count = random.Random(seed), 0
    moments = sorted(chance.choices(range(rounds), k=kills))
    process = begin(*command)
    for number in moments:
        reached = saved_round(folder) >= number
        while process.poll() is None and saved_round(folder) < number:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, START if reached else LATER))
        if process.poll() is not None:  # it was quicker than whoever wanted to kill it
            break
        count += 1
        process.kill()
        process.wait()
        if (folder / "result.json").exists():  # just before
            return count
        resumes = (folder / "settings.toml").exists()  # it may have been too early even for that
        process = begin("resume", folder) if resumes else begin(*command)
    if process.wait():
        raise SystemExit(f"A process ended with code {process.returncode}, which nobody had killed.")
    return count


def differences(one: Path, two: Path) -> list[str]:
    """In what two run folders differ, but for the time that was taken; empty: in no bit."""
    found = [] if (one / "clients.csv").read_bytes() == (two / "clients.csv").read_bytes() else ["clients.csv"]
    for name in ("result.json", "metrics.jsonl", "ledger.jsonl"):
        texts = [(folder / name).read_text() for folder in (one, two)]
        first, second = ([*map(timeless, text.splitlines() if name.endswith("l") else [text])] for text in texts)
        found += [] if first == second else [name]
    first, second = (load_file(next((folder / "checkpoint").glob("*.safetensors"))) for folder in (one, two))
    if first.keys() != second.keys() or not all(leaf.equal(second[name]) for name, leaf in first.items()):
        found.append("checkpoint")
    return found


def timeless(text: str) -> Any:
    return {key: value for key, value in json.loads(text).items() if key != "seconds"}


def compare_killed(out: Path, rounds: int, kills: int, settings: dict[str, Any]) -> tuple[int, list[str]]:
    """How many kills hit a run that was still going, and where it differs from one that nobody killed."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in {**settings, **OFTEN, "rounds": rounds}.items()]
    commands = {name: ["run", "pefll", *words, f"--out={out}", f"--name={name}"] for name in ("whole", "killed")}
    begin(*commands["whole"]).wait()
    count = killed(commands["killed"], out / "killed", rounds, kills)
    found = differences(out / "whole", out / "killed")
    print(
        f"  {count} of {kills} kills hit; {'different: ' + ', '.join(found) if found else 'the same to the last bit'}"
    )
    return count, found


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--faults", default=FAULTS)
    parser.add_argument("--kills", type=int, default=0, help="kill a run so often, in the place of the comparison")
    parser.add_argument("--out", type=Path, help="keep the folders of the killed and the whole run here")
    options = parser.parse_args(words)
    print(where(), vars(options), sep="\n")
    began = time.perf_counter()
    if options.kills:
        with TemporaryDirectory() as folder:
            settings = {**PEFLL, "faults": options.faults, "threads": 1}
            count, found = compare_killed(options.out or Path(folder), options.rounds, options.kills, settings)
            if count < options.kills or found:
                raise SystemExit(1)
    else:
        compared(options.seeds, options.rounds, options.cohort, options.faults)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
