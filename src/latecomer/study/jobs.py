"""Commands of latecomer in several processes at once, each with a log."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from ..errors import RunError

INTERRUPTED = "Interrupted; the same command goes on where it was."
GRACE = 20.0  # seconds in which a process that is told to end may finish its round and write a checkpoint


@dataclass(frozen=True)
class Job:
    """A command, what it is called where it fails, and where its output goes."""

    label: str
    words: Sequence[str]  # of the command line, behind `latecomer`
    log: Path


def until(minutes: float) -> float:
    """When so many minutes from now are over, by the clock that counts them; 0: never."""
    return time.monotonic() + 60 * minutes if minutes else math.inf


def side_by_side(works: Sequence[Job], at_once: int, end: float = math.inf) -> list[str]:
    """Do all of them, in order; a sentence for every one that did not come to its end, and the others go on.

    At `end` none begins any more, and those at work are told to stop where they can go on. So are they where this
    process is interrupted, and from here alone: told twice, by a terminal and by us, they would end at once.
    """
    for folder in {job.log.parent for job in works}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"The folder {folder} cannot be made: {error.strerror}.") from error
    share = max(1, (os.cpu_count() or 1) // at_once)
    surroundings = {"OMP_NUM_THREADS": str(share), **os.environ}  # else all of them would want all processors
    begun: list[subprocess.Popen[bytes]] = []
    over = Event()

    def do(job: Job) -> str:
        return _done(job, surroundings, end, begun, over)

    with ThreadPoolExecutor(at_once) as pool:
        try:
            said = list(pool.map(do, works))
        except KeyboardInterrupt:  # no other begins
            over.set()
            _stop(begun)
            raise KeyboardInterrupt(INTERRUPTED) from None
    alike: dict[str, list[str]] = {}
    for job, sentence in zip(works, said, strict=True):
        if sentence:
            alike.setdefault(sentence, []).append(job.label)
    return [f"{', '.join(labels)}: {sentence}" for sentence, labels in alike.items()]


def _done(job: Job, surroundings: dict[str, str], end: float, begun: list[subprocess.Popen[bytes]], over: Event) -> str:
    """Why a job did not come to its end; empty: it did."""
    if over.is_set() or time.monotonic() >= end:
        return "the time was over before it began; the same command goes on."
    command = [sys.executable, "-m", "latecomer", *job.words]
    try:
        with job.log.open("w", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=surroundings, start_new_session=True)
    except OSError as error:
        return f"{job.log} cannot be written: {error.strerror}."
    begun.append(process)
    if over.is_set():  # since a moment ago
        process.terminate()
    try:
        code = process.wait(None if end == math.inf else max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        if _stopped(process):
            return "the time was over before it was finished; the same command goes on."
        code = 0
    if not code:
        return ""
    lines = job.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if not lines:
        return f"ended with {code}."
    return re.sub(f"^(latecomer: |Note: )?({re.escape(job.label)}: )?", "", lines[-1])


def _stop(begun: Sequence[subprocess.Popen[bytes]]) -> None:
    """Tell all that are at work to end, and see to it that they do; interrupted once more, at once."""
    left = [process for process in begun if process.poll() is None]
    try:
        for process in left:
            process.terminate()
        for process in left:
            process.wait(GRACE)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        for process in left:
            process.kill()


def _stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process ends before it is done, now that it is told to; it may just have come to its end."""
    process.terminate()
    try:
        return process.wait(GRACE) != 0
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait() != 0
