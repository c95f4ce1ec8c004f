"""Engines: what runs behind `Clients.run`. One verb, `exchange`."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.func import grad, vmap

from ..clients import Engine
from ..data.federation import Federation
from ..errors import SettingError, UnknownName
from ..method import Method

NAMES = {
    "auto": "the faster of vector and loop for this model and device, by timing both",
    "vector": "all clients of a round at once (vmap), in chunks; CUDA graphs on a GPU",
    "loop": "one client at a time; errors name client, round, step and argument",
    "ray": "any number of workers, each with a core or a GPU, on one machine or many (extra 'ray')",
    "flower": "real Flower messages through an in-process grid (extra 'flower')",
}


def make(
    name: str,
    method: Method,
    federations: Federation | Sequence[Federation],
    device: str | torch.device = "auto",
    *,
    chunk: int = 0,
    graphs: bool = True,
    workers: int = 0,
    ray_address: str = "",
) -> Engine:
    """An engine by name: what runs client steps for `train.run`, or for `Clients` in a program of one's own.

    It serves one federation, or several, one a seed. `NAMES` says what there is. `device` is cpu, cuda, cuda:N, auto,
    or a `torch.device`; `chunk` is how many clients are mapped at once (0: as many as fit) and `graphs=False` has every
    exchange done as it is written, both for `vector`, and for `ray`, where clients go to workers by the chunk. Of those
    there are `workers` (0: one for every GPU or core) on the cluster at `ray_address` (empty: on this machine).
    """
    where = pick_device(device)
    federations = [federations] if isinstance(federations, Federation) else federations
    if name == "auto":
        from .auto import faster

        name = faster(method, federations, where, graphs)
    if name == "vector":
        from .vector import Vector

        return Vector(method, federations, where, chunk=chunk, graphs=graphs)
    if name == "loop":
        from .loop import Loop

        return Loop(method, federations, where)
    if name == "ray":
        from .ray import spread

        gpus = str(device) != "cpu"
        return spread(
            method, federations, where, chunk=chunk, graphs=graphs, workers=workers, address=ray_address, gpus=gpus
        )
    if name == "flower":
        from .flower import local_engine

        return local_engine(method, federations)
    raise UnknownName("engine", name, NAMES)


def pick_device(device: str | torch.device) -> torch.device:
    """The device that is meant, where this machine has it; auto: a GPU if there is one."""
    name = str(device)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda") and not name.startswith("cuda:"):
        raise SettingError(f"--device must be cpu, cuda or auto; got {name!r}.")
    if name != "cpu" and not torch.cuda.is_available():
        raise SettingError(f"--device {name} asks for a GPU, but PyTorch finds none; use --device cpu.")
    return torch.device(name)


def at_hand(name: str) -> str:
    """The same device where this machine has it, else the one it has."""
    there = name in ("auto", "cpu") or not name.startswith("cuda") or torch.cuda.is_available()
    return name if there else "auto"  # what is no device at all is refused where it is picked


def computes_on(engine: Engine) -> str:
    """The device that clients' steps run on, which may be another than the server's."""
    return str(getattr(engine, "computes_on", engine.device))


def describe(device: str) -> str:
    """What computes, in words."""
    if pick_device(device).type == "cuda":
        return torch.cuda.get_device_name(pick_device(device))
    kind = torch.backends.cpu.get_cpu_capability().lower().replace("default", "no vectors")
    threads = torch.get_num_threads()
    return f"{_processor()} with {kind}, {threads} thread{'s' * (threads != 1)}"


def _processor() -> str:
    """The processor's name, where the system tells it in a file, else its kind."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(errors="replace").splitlines() if told.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


@contextmanager
def waking(device: str) -> Iterator[None]:
    """While the body runs, open the GPU and import what PyTorch puts off until a gradient is first mapped."""
    where = pick_device(device)
    if where.type == "cpu":  # little to wake, and an error in the data would have to wait for it
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        awake = pool.submit(_wake, where)
        yield
        awake.result()


def _wake(device: torch.device) -> None:
    some = torch.ones(2, 2, device=device)
    vmap(grad(lambda row: (row @ some).square().sum()))(some)
