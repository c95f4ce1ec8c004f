"""What was measured: one JSON object a line, for every commit, machine and number of threads."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from common import processor

FILE = Path(__file__).parent / "history.jsonl"
SAME = ("commit", "machine", "threads")

Line = dict[str, Any]


class BadHistory(Exception):
    """A sentence about a file that is no history."""


def about(commit: str, words: Sequence[str], device: torch.device) -> Line:
    """What stands beside the figures."""
    return {
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),  # of other work, before this one began: a busy machine is worth knowing
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python benchmarks/bench.py", *words]),
    }


def record(path: Path, line: Line) -> None:
    """At the end of the file, in place of an older line of the same commit, machine and threads."""
    old = [other for other in read(path) if any(other[key] != line[key] for key in SAME)] if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in [*old, line]), encoding="utf-8")


def read(path: Path) -> list[Line]:
    try:
        lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise BadHistory(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BadHistory(f"{path} is no history of measurements: {error}.") from error
    for number, line in enumerate(lines, 1):
        missing = sorted({*SAME, "date", "figures"} - (line.keys() if isinstance(line, dict) else set()))
        if missing:
            raise BadHistory(f"{path} is no history of measurements: line {number} lacks {', '.join(missing)}.")
    return lines


def show(path: Path, console: Console) -> None:
    """How many times as fast as the plain loop; a table a machine, newest last."""
    lines = read(path)
    for machine, threads in dict.fromkeys((line["machine"], line["threads"]) for line in lines):
        mine = [line for line in lines if (line["machine"], line["threads"]) == (machine, threads)]
        table = Table(title=f"{machine}, {threads} threads: times as fast as the plain loop")
        for head in ("date", "commit", "load"):
            table.add_column(head, no_wrap=True)
        names = list(dict.fromkeys(name for line in mine for name in line["figures"]))
        for name in names:
            words = name.replace(" clients", "").replace(", ", " ").split()
            table.add_column("\n".join(words), justify="right", overflow="fold")  # narrow, as there are many
        for line in mine:
            ratios = [line["figures"].get(name, {}).get("times_as_fast") for name in names]
            table.add_row(
                line["date"],
                line["commit"],
                str(line.get("load", "-")),
                *("-" if r is None else f"{r:.2f}" for r in ratios),
            )
        console.print(table)
