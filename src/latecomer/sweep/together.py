"""Many settings at once: runs whose methods differ in sweepable settings alone share every exchange, as seeds do.

    train.together([(FedAvg(lr=lr, ...), federation) for lr in (0.01, 0.03, 0.1)], rounds=200, cohort=10)

Each run has its own method, seeds and states; what its clients do is done in one map with the others
(sweep/packed.py). Runs that differ in more (in the batch size, the model, the data, the plan) form
another pack, and packs are trained one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from .. import tree
from ..checks import check_training
from ..clients import Engine
from ..data.federation import Federation
from ..engines.blank import blank_memory
from ..engines.fitting import budget
from ..errors import SettingError, UnknownName
from ..evaluate import AT_ONCE
from ..method import Method
from ..nets.net import Net
from ..plan import Plan
from ..settings import parse

Given = Sequence[Any]
"""A method, a federation or several (one a seed), and if need be what its plan has of its own."""
Progress = Callable[[int, dict[str, Any]], None]
"""Called where a run was evaluated, with its place in the list and the metrics."""
Stop = Callable[[Sequence[int]], Collection[int]]
"""Called when all runs that share exchanges were evaluated, with their places; those that it returns end there."""

COPIES = 4  # of what a server holds: the state, the best one, a gradient, and something to work with
SERVER_BUDGET = 4 * 2**30  # bytes that the servers of one pack may hold on a CPU
SERVER_SHARE = 0.3  # of the free memory, on a GPU; most of the rest is for the clients


@dataclass(frozen=True)
class _Run:
    place: int
    method: Method
    federations: Sequence[Federation]
    plan: Plan


def together(
    runs: Sequence[Given],
    engine: str = "auto",
    device: str | torch.device = "auto",
    *,
    chunk: int = 0,
    graphs: bool = True,
    progress: Progress | None = None,
    stop: Stop | None = None,
    judged: bool = False,
    **plan: Any,
) -> list[dict[str, Any]]:
    """Train several runs and return their results, in order; each is what `train.run` gives for this run alone.

    A run is `(method, federation)`, or with several federations, one a seed; `(method, federation, {"rounds": 50})` has
    settings of its own that stand before those of all. The `seconds` of a result are those of its pack. A run that
    `stop` ends has an empty result, and the others go on as if it had never been there. If runs are `judged`, they are
    asked for what validators say alone, where there are some, and members get no scores.
    """
    from ..engines import NAMES, pick_device

    if engine not in NAMES:
        raise UnknownName("engine", engine, NAMES)
    where = pick_device(device)
    wanted = [_run(place, given, plan) for place, given in enumerate(runs)]
    results: dict[int, dict[str, Any]] = {}
    for alike in _alike(wanted):
        first, several = alike[0], [federation for run in alike for federation in run.federations]
        name = _fastest(first.method, several, where, graphs) if engine == "auto" else engine
        most = _fitting(first, where) if name == "vector" else 1  # other engines go client by client anyway
        for begin in range(0, len(alike), most):
            pack = alike[begin : begin + most]
            results |= _train(pack, partial(_engine, name, where, chunk, graphs), progress, stop, judged)
    return [results[place] for place in range(len(wanted))]


def _run(place: int, given: Given, plan: Mapping[str, Any]) -> _Run:
    """One run of the list, checked before any is trained."""
    parts: Sequence[Any] = given if isinstance(given, Sequence) and len(given) in (2, 3) else (None, None)
    method, federations, *own = parts
    several = list(federations) if isinstance(federations, Sequence) else [federations]
    good = isinstance(method, Method) and several and all(isinstance(one, Federation) for one in several)
    if not good or not all(isinstance(one, Mapping) for one in own):
        raise SettingError(
            f"Run {place} must be a method, a federation (or several in a list) and, where it needs one, "
            f"a dict with a plan of its own; got {_kinds(given)}."
        )
    asked = parse(Plan, {**plan, **(own[0] if own else {})})
    run = _Run(place, method, several, asked.with_members(method.members))
    check_training(run.method, run.federations, run.plan)
    return run


def _kinds(given: Any) -> str:
    return ", ".join(type(part).__name__ for part in given) if isinstance(given, Sequence) else type(given).__name__


def _alike(runs: Sequence[_Run]) -> list[list[_Run]]:
    """Runs that can share every exchange, in groups."""
    groups: list[list[_Run]] = []
    for run in runs:
        for group in groups:
            if _can_share(group[0], run):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def _can_share(a: _Run, b: _Run) -> bool:
    """Methods that differ in sweepable settings alone, the same plan, and the same examples."""
    if type(a.method) is not type(b.method) or a.plan != b.plan:
        return False
    fixed = [field.name for field in fields(a.method) if field.init and not field.metadata.get("sweepable")]
    alike = all(_same(getattr(a.method, name), getattr(b.method, name)) for name in fixed)
    return alike and a.federations[0].examples.same_as(b.federations[0].examples)


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal, part by part. Networks are if they are built alike; what cannot tell is not."""
    if a is b or type(a) is not type(b):
        return a is b
    if isinstance(a, Net):
        return _same(a.build, b.build)
    if isinstance(a, partial):
        return _same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
    if is_dataclass(a):  # a task
        return all(_same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a) if field.init)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(part, b[key]) for key, part in a.items())
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    return (a == b) is True


def _fastest(method: Method, federations: Sequence[Federation], device: torch.device, graphs: bool) -> str:
    from ..engines.auto import faster

    return faster(method, federations, device, graphs)


def _fitting(run: _Run, device: torch.device) -> int:
    """How many such runs fit beside each other."""
    return max(1, budget(device, SERVER_SHARE, SERVER_BUDGET) // max(_bytes(run), 1))


def _bytes(run: _Run) -> int:
    """What the server of a run holds, and its clients keep. An evaluation has a model for each of AT_ONCE clients."""
    generator = torch.Generator().manual_seed(0)
    state, memory = tree.nbytes(run.method.init(generator)), tree.nbytes(blank_memory(run.method, 0))
    clients = max(len(federation) for federation in run.federations)
    models = 4 * run.method.task.model.size * min(AT_ONCE, clients)
    return (COPIES * (state + models) + memory * clients) * len(run.federations)


def _engine(name: str, device: torch.device, chunk: int, graphs: bool, pack: Sequence[_Run]) -> Engine:
    """What runs the steps of all clients of a pack."""
    from ..engines import make
    from .packed import Packed

    federations = [federation for run in pack for federation in run.federations]
    if len(pack) > 1:
        methods = [run.method for run in pack for _ in run.federations]
        return Packed(methods, federations, device, chunk=chunk, graphs=graphs)
    return make(name, pack[0].method, federations, str(device), chunk=chunk, graphs=graphs)


def _train(
    pack: Sequence[_Run],
    make: Callable[[Sequence[_Run]], Engine],
    progress: Progress | None,
    stop: Stop | None,
    judged: bool,
) -> dict[int, dict[str, Any]]:
    """The results of runs that can share every exchange, by their places."""
    from ..train import Training

    methods = [run.method for run in pack for _ in run.federations]
    federations = [federation for run in pack for federation in run.federations]
    training = Training(methods, federations, make(pack), pack[0].plan)
    training.judged = judged
    results: dict[int, dict[str, Any]] = {}
    while pack:
        parts, ended = _parts(pack), set[int]()
        for metrics in training.go():
            if metrics is None:
                continue
            training.drain()
            for place, part in parts.items():
                if progress is not None:
                    progress(place, metrics | {"runs": metrics["runs"][part]})
            ended = set(stop(list(parts))) if stop is not None else ended
            if ended:
                break
        if not ended:
            scores = training.final()
            return results | {place: training.result(scores, part) for place, part in parts.items()}
        results |= {place: {} for place in ended}
        pack = [run for run in pack if run.place not in ended]
        if pack:
            left = [k for run in pack for k in range(len(training.states))[parts[run.place]]]
            training = training.part(left, make(pack))
    return results


def _parts(pack: Sequence[_Run]) -> dict[int, slice]:
    """Where the seeds of every run are among those of all, by the places of the runs."""
    ends = list(accumulate(len(run.federations) for run in pack))
    return {run.place: slice(end - len(run.federations), end) for run, end in zip(pack, ends, strict=True)}
