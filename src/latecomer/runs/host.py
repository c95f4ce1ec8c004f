"""What a run wants of the process it runs in. All of latecomer's changes to a process are made here, when asked for."""

from __future__ import annotations

import os

import torch

from ..engines import at_hand, heap, pick_device
from .settings import Settings

MLFLOW = {  # unless the user has said otherwise: one sentence soon, and nothing sent to anybody else
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}


def prepare(settings: Settings) -> None:
    """Give this process the threads, and its matrix products the precision, that a run's settings ask for; on a CPU,
    let it keep the memory that it frees (engines/heap.py). MLflow, where it is told, is to be quiet and impatient.

    All of that belongs to the whole process. So the command line calls this before a run begins or goes on, and nothing
    else in latecomer does: a program that makes an `Experiment`, an engine or a training keeps what it has set. It
    calls this first, `prepare(experiment.settings)`, where its numbers should be the command line's to the last bit.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = settings.tf32
    heap.keep(pick_device(at_hand(settings.device)))
    for name, value in MLFLOW.items() if settings.track == "mlflow" else ():
        os.environ.setdefault(name, value)


def unmet(settings: Settings) -> list[str]:
    """A note where a run will not have the threads that its settings ask for."""
    threads = torch.get_num_threads()
    if settings.threads in (0, threads):
        return []
    return [
        f"This process has {threads} threads, not the {settings.threads} of --threads; "
        "latecomer.runs.host.prepare sets them, and sums would round differently."
    ]
