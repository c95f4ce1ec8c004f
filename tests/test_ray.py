"""Clients on the workers of a Ray cluster: the same numbers as anywhere, to the last bit with any number of workers."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import toys
from console import Command, Outcome, start
from latecomer import methods, tree
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.engines.ray.cluster import _reach, connect
from latecomer.errors import ClusterError, MissingExtra, SettingError
from latecomer.evaluate import evaluate
from latecomer.method import asked_in
from latecomer.plan import Plan
from latecomer.replies import Collector, Rules
from latecomer.runs.experiment import Experiment
from latecomer.runs.run import Run
from latecomer.sweep.lockstep import Lockstep
from latecomer.task import Home
from latecomer.train import Training
from latecomer.tree import Tree

ROUNDS = 3
EVALUATIONS = count(1)
WORKERS = (1, 2, 3)

# Without a cluster


@pytest.mark.parametrize("name", sorted(methods.names()))
def test_a_method_that_has_travelled_computes_the_same(name: str) -> None:
    here = toys.method(name)
    there = pickle.loads(pickle.dumps(here))
    assert type(there) is type(here)
    states = [toys.rounds(one, make("loop", one, [toys.federation()], "cpu"), 1)[0] for one in (here, there)]
    assert toys.same(*states)


def rows() -> tuple[Tree, Tensor, Tensor]:
    """Seven replies, one of them not a number, with their weights and who was heard."""
    generator = torch.Generator().manual_seed(0)
    each = {"a": torch.randn(7, 3, generator=generator), "b": {"c": torch.randn(7, generator=generator)}}
    each["a"][2, 1] = torch.nan
    return each, torch.arange(7.0), torch.arange(7) != 4


@pytest.mark.parametrize("rules", [Rules(), Rules(clip_update=0.5), Rules(average="median")])
@pytest.mark.parametrize("fold", [None, "clients", "examples"])
def test_what_is_gathered_in_parts_is_what_is_gathered_at_once(fold: Any, rules: Rules) -> None:
    each, weight, heard = rows()
    whole, added = Collector(fold, rules=rules), Collector(fold, rules=rules)
    whole.take(each, weight, heard)
    for first, middle, end in ((0, 2, 3), (3, 4, 6), (6, 7, 7)):
        part = added.alike()
        for some in (slice(first, middle), slice(middle, end)):
            if some.stop > some.start:
                part.take(tree.row(each, some), weight[some], heard[some])
        added.add(part.joined(), torch.device("cpu"))
    assert added.up_each == whole.up_each == 16
    assert toys.same({"heard": torch.cat(added.heards)}, {"heard": torch.cat(whole.heards)})
    assert toys.gap(added.mean(), whole.mean()) < 1e-6
    if fold is None:
        assert toys.same(added.replies().each, whole.replies().each)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_nobody_at_an_address_is_a_sentence_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(ClusterError, match=r"Nobody answers at --ray-address 127\.0\.0\.1:\d+: Connection refused\."):
        _reach(f"127.0.0.1:{unused_port()}")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("address", ["somewhere", "host:", ":80", "ray://host:10001", "host:port"])
def test_an_address_has_a_form(address: str) -> None:
    with pytest.raises(SettingError, match="must be HOST:PORT"):
        _reach(address)


def test_without_the_package_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'latecomer\[ray\]'"):
        make("ray", toys.method("fedavg"), [toys.federation()], "cpu")


# With one


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Three workers, which stay for all tests."""
    connect(num_cpus=3)
    import ray

    holds = spread("fedavg", workers=3)
    yield
    holds.close()
    ray.shutdown()


def spread(name: str, dtype: torch.dtype = torch.float32, workers: int = 2, chunk: int = 2, runs: int = 1) -> Any:
    method = toys.method(name, dtype)
    return make("ray", method, toys.federations(runs), "cpu", workers=workers, chunk=chunk)


def lines(ledger: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in exchange.line().items() if key != "seconds"} for exchange in ledger]


def scored(engine: Any, state: Tree) -> Tree:
    ids = [torch.arange(len(toys.TRAIN))]
    (scores,) = evaluate([engine.method], [state], Lockstep(engine), ids, number=next(EVALUATIONS))
    return scores.counts


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(methods.names()), "odpflhn-private", "pfedhn-budgets"])
def test_the_contract_holds(name: str, cluster: None) -> None:
    """States, memories, ledgers and scores are those of other engines."""
    found = spread(name, torch.float64)
    expected = make("vector", found.method, [toys.federation()], "cpu", graphs=False)
    states, ledgers = zip(*(toys.rounds(found.method, engine, ROUNDS) for engine in (found, expected)), strict=True)
    after = [toys.everything(state, engine) for state, engine in zip(states, (found, expected), strict=True)]
    assert toys.gap(*after) < 1e-9
    assert lines(ledgers[0]) == lines(ledgers[1])
    assert toys.same(scored(found, states[0]), scored(expected, states[1]))
    assert toys.same(after[0]["memory"], toys.remembered(found)), "an evaluation is not remembered"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "pefll", "ditto"])
def test_workers_do_wide_models_one_by_one(name: str, cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latecomer.engines.ray.engine.WIDE", 0)
    found = spread(name, torch.float64)
    assert found.one_by_one
    expected = make("loop", found.method, [toys.federation()], "cpu")
    states = [toys.rounds(found.method, engine, 2)[0] for engine in (found, expected)]
    assert toys.gap(*states) < 1e-9


@cache
def trained(name: str, workers: int) -> Tree:
    """All that two seeds in lockstep come to, when replies are lost, late and not numbers."""
    engine = spread(name, workers=workers, runs=2)
    plan = Plan(rounds=3, cohort=5, faults="drop=0.2,nan=0.1,slow=0.1,huge=0.1", evaluate_every=3)
    training = Training(engine.method, toys.federations(2), engine, plan)
    scores = training.complete()
    counts = {str(run): {"seen": seen.counts, "late": late.counts} for run, (seen, late) in enumerate(scores) if late}
    memories = {str(run): toys.remembered(engine, run, run) for run in range(2)}
    return {"states": {str(run): state for run, state in enumerate(training.states)}, "m": memories, "scores": counts}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedrep", "knnper", "pefll", "pfedhn"])
def test_no_bit_depends_on_the_number_of_workers(name: str, cluster: None) -> None:
    first, *others = (trained(name, workers) for workers in WORKERS)
    assert len(first["scores"]) == 2
    assert all(toys.same(first, other) for other in others)


def busy() -> list[int]:
    """Workers that do a unit just now: Ray says so in the name of their process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                name = (entry / "cmdline").read_bytes()
            except OSError:  # it has ended
                continue
            found += [int(entry.name)] if name.startswith(b"ray::Worker.answer") else []
    return found


def kill_one(killed: list[int]) -> None:
    end = time.monotonic() + 60
    while not killed and time.monotonic() < end:
        for number in busy()[:1]:
            os.kill(number, signal.SIGKILL)
            killed.append(number)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_no_bit(cluster: None) -> None:
    method = toys.method("ditto", epochs=60)

    def after(disturb: Callable[[], None]) -> Tree:
        engine = make("ray", method, [toys.federation()], "cpu", workers=2, chunk=1, graphs=False)
        disturb()
        state, _ = toys.rounds(method, engine, 2)
        return toys.everything(state, engine)

    killed: list[int] = []
    killer = threading.Thread(target=kill_one, args=[killed])
    expected = after(lambda: None)
    found = after(killer.start)
    killer.join()
    assert len(killed) == 1
    assert toys.same(expected, found)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failing(toys.Idle):
    @asked_in("round")
    def fail(self, home: Home) -> Tree:
        raise RuntimeError("a step that fails")

    @asked_in("round")
    def die(self, home: Home) -> Tree:
        os._exit(1)


@pytest.mark.slow
def test_an_error_in_a_step_is_raised_as_it_was_and_the_workers_go_on(cluster: None) -> None:
    method = Failing(task=toys.task(), clients=len(toys.TRAIN), members=toys.MEMBERS)
    engine = make("ray", method, [toys.federation()], "cpu", workers=2, chunk=1, graphs=False)
    with pytest.raises(RuntimeError, match=r"^a step that fails$"):
        Clients(engine, torch.arange(4), 0).run(method.fail)
    assert scored(engine, {})["test"].shape == (len(toys.TRAIN), 3)


@pytest.mark.slow
def test_work_that_kills_every_worker_has_an_end(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latecomer.engines.ray.crew.DEATHS", 1)
    method = Failing(task=toys.task(), clients=len(toys.TRAIN), members=toys.MEMBERS)
    engine = make("ray", method, [toys.federation()], "cpu", workers=1, chunk=4, graphs=False)
    with pytest.raises(ClusterError, match="Ray workers died 2 times and nothing got done"):
        Clients(engine, torch.arange(4), 0).run(method.die)


@pytest.mark.slow
def test_what_is_lent_is_not_copied(cluster: None) -> None:
    import ray

    from latecomer.engines.ray.cargo import lending

    @ray.remote(num_cpus=0)
    def lies_in(sent: Tree) -> str:
        address = sent["x"].data_ptr()
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, end = (int(word, 16) for word in line.split()[0].split("-"))
            if first <= address < end:
                return line
        return ""

    with lending():
        promise = ray.put({"x": torch.zeros(2**20)})
    assert "/dev/shm/plasma" in ray.get(lies_in.remote(promise))
    kinds = {str(kind): torch.ones(3, 2).to(kind) for kind in (torch.bfloat16, torch.bool, torch.int64)}
    with lending():
        assert toys.same(
            ray.get(ray.put(kinds | {"none": torch.zeros(0, 4), "one": torch.tensor(5)})),
            kinds | {"none": torch.zeros(0, 4), "one": torch.tensor(5)},
        )


SMALL = {"clients": 8, "unseen": 0.25, "cohort": 4, "epochs": 1, "batch": 16, "model": "mlp", "device": "cpu"}


@pytest.mark.slow
def test_a_run_goes_on_with_other_workers_bit_for_bit(tmp_path: Path, cluster: None) -> None:
    def begin(name: str) -> Run:
        given = SMALL | {"engine": "ray", "workers": 1, "rounds": 4, "evaluate_every": 2, "out": str(tmp_path)}
        return Run.begin(Experiment.parse("ditto", given | {"name": name}))

    whole = begin("whole").go()
    stopped = begin("stopped")
    stopped.stop = True
    assert stopped.go() is None
    found = Run.resume(tmp_path / "stopped", workers=3)
    assert len(found.training.engine.crew.workers) == 3  # type: ignore[attr-defined]
    assert Experiment.read(found.folder.settings, tmp_path).settings.workers == 1
    result = found.go()
    assert whole is not None
    assert result is not None
    assert whole | {"seconds": 0} == result | {"seconds": 0}
    first, second = (tmp_path / name / "clients.csv" for name in ("whole", "stopped"))
    assert first.read_text() == second.read_text()


@pytest.mark.slow
def test_a_meeting_by_ray_scores_what_the_run_scored(tmp_path: Path, cluster: None, command: Command) -> None:
    words = [word for key, value in SMALL.items() for word in (f"--{key}", value)]
    run = command("run", "fedavg", *words, "--rounds", 2, "--out", tmp_path, "--name", "run")
    assert run.code == 0, run.err
    for engine in ("loop", "ray"):
        met = command("meet", tmp_path / "run", "--engine", engine, "--out", tmp_path, "--name", engine)
        assert met.code == 0, met.err
    first, second = (tmp_path / name / "clients.csv" for name in ("loop", "ray"))
    assert first.read_text() == second.read_text()


@pytest.mark.slow
def test_another_version_is_refused_in_a_sentence(cluster: None) -> None:
    from ray._private.utils import check_version_info

    from latecomer.engines.ray.cluster import _refusal

    with pytest.raises(RuntimeError) as caught:
        check_version_info({"ray_version": "2.9.0", "python_version": "3.11.7"}, "here")
    sentence = _refusal("head:6379", caught.value)
    assert sentence.startswith("The Ray cluster at head:6379 is of another version than this process: The cluster was")
    assert "Ray: 2.9.0 Python: 3.11.7" in sentence
    assert "\n" not in sentence


@pytest.mark.slow
def test_more_workers_than_there_are_is_a_sentence(cluster: None, command: Command, tmp_path: Path) -> None:
    found = command("run", "fedavg", "--engine", "ray", "--workers", 4, "--device", "cpu", "--out", tmp_path)
    assert found.code == 2
    assert found.err.endswith("--workers 4 asks for more than the Ray cluster has, which is 3 cores.\n")
    assert not list(tmp_path.iterdir())


def descendants(parent: int) -> set[int]:
    """The processes that a process has begun, and those that they have."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue
    found = {parent}
    while more := {child for child, above in parents.items() if above in found} - found:
        found |= more
    return found - {parent}


def alive(numbers: set[int]) -> set[int]:
    return {number for number in numbers if Path(f"/proc/{number}").exists()}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["too many workers", "interrupted"])
def test_no_process_is_left_behind(how: str, tmp_path: Path) -> None:
    """By a run that starts a cluster of its own: if it is refused, and if it is stopped."""
    words = [word for key, value in SMALL.items() for word in (f"--{key}", value)]
    workers = 1000 if how == "too many workers" else 1
    words += ["--engine", "ray", "--workers", workers, "--rounds", 100000, "--out", tmp_path, "--name", "run"]
    seen: set[int] = set()
    with start(tmp_path, "run", "fedavg", *words) as running:
        end = time.monotonic() + 200  # on a busy machine a cluster takes its time
        while running.poll() is None and time.monotonic() < end:
            seen |= descendants(running.pid)
            if how == "interrupted" and (tmp_path / "run" / "metrics.jsonl").exists():
                running.send_signal(signal.SIGINT)
                break
            time.sleep(0.1)
        out, err = running.communicate(timeout=90)
    outcome = Outcome(running.returncode, out, err)
    if how == "interrupted":
        assert outcome.code == 130, err
        assert "Stopped after round" in err
    else:
        assert outcome.code == 2
        assert "--workers 1000 asks for more than the Ray cluster has" in err
        assert err.count("\n") == 1
    assert len(seen) >= 3, "a cluster was started"
    end = time.monotonic() + 30
    while alive(seen) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(seen)
