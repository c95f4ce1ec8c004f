"""The CUDA paths: skipped without a GPU. Run them where there is one."""

from __future__ import annotations

import dataclasses
import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from deciders import Counts, Decays, Lists, Stops
from latecomer import Federation, make_task, methods, train, tree
from latecomer.cli import main
from latecomer.clients import Clients
from latecomer.data.permute import Permutations
from latecomer.engines.capture.capture import EAGER_CALLS
from latecomer.engines.vector import Vector
from latecomer.errors import MemoryShortage
from latecomer.handover.meet import Meeting, meet
from latecomer.handover.trained import Trained
from latecomer.methods.fedavg import FedAvg
from latecomer.nets.models import MODELS, LeNet
from latecomer.ops import first_calls
from latecomer.ops.convolution import WIDEST
from latecomer.ops.examples import take
from latecomer.ops.intercept import intercepted
from latecomer.ops.norm import norm
from latecomer.ops.shuffle import draw, purpose
from latecomer.ops.sums import weighted_sum
from latecomer.study.analyses import analyse
from latecomer.study.certify import certify
from latecomer.study.finished import Finished
from latecomer.sweep.packed import Packed
from latecomer.train import Plan, Training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def exact() -> None:
    """Compare in full float32, not in TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def images(clients: int = 6, each: int = 40) -> Federation:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (clients * each, 32, 32, 3), dtype=np.uint8)
    rows = np.arange(clients * each).reshape(clients, each)
    sizes = [each - 3 * k for k in range(clients)]
    return Federation.from_arrays(
        x,
        random.integers(0, 10, clients * each),
        train=[row[: size - 8] for row, size in zip(rows, sizes, strict=True)],
        test=[row[size - 4 : size] for row, size in zip(rows, sizes, strict=True)],
        val=[row[size - 8 : size - 4] for row, size in zip(rows, sizes, strict=True)],
        members=clients - 1,
        classes=10,
    )


def replies(engine: Vector, method: object, rounds: int) -> list[dict[str, torch.Tensor]]:
    """What local training returns in several rounds, from the same weights."""
    params = tree.to(method.task.model.fresh(torch.Generator().manual_seed(0)), engine.device)  # type: ignore[attr-defined]
    got = []
    for number in range(rounds):
        clients = Clients(engine, torch.arange(5), number)
        each = {"params": tree.map(lambda leaf: leaf.expand(5, *leaf.shape).contiguous(), params)}
        got.append(tree.flatten(tree.to(clients.run(method.fit, each=each).each, torch.device("cpu"))))  # type: ignore[attr-defined]
    return got


def test_gpu_with_graphs_agrees_with_the_cpu() -> None:
    federation = images()
    method = methods.get("pfedhn")(task=make_task(federation, LeNet), clients=6, members=5, steps=3, batch=16, lr=0.01)
    rounds = EAGER_CALLS + 3
    expected = replies(Vector(method, [federation]), method, rounds)
    engine = Vector(method, [federation], CUDA)
    found = replies(engine, method, rounds)
    assert engine.capture is not None
    assert len(engine.capture._kept) == 1, "the last rounds were replays"
    for a, b in zip(expected, found, strict=True):
        for name in a:
            torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=1e-3)
    assert any(not torch.equal(found[-1][name], found[-2][name]) for name in found[0]), "every replay draws new batches"


@pytest.mark.parametrize("name", sorted(methods.names()))
def test_every_method_trains_with_graphs_as_without(name: str) -> None:
    federation = images()
    kind = methods.get(name)
    small = {
        key: value
        for key, value in {"steps": 2, "batch": 8, "novel_rounds": 2, "alone": 1}.items()
        if key in kind.__dataclass_fields__
    }
    method = kind(task=make_task(federation, LeNet), clients=6, members=5, **small)
    results = []
    for with_graphs in (False, True):
        engine = Vector(method, [federation], CUDA, graphs=with_graphs, chunk=4)
        training = Training(method, [federation], engine, Plan(rounds=6, cohort=5, evaluate_every=3, faults="drop=0.1"))
        for _ in training.go():
            training.drain()
        results.append((training.finish()[0], training.states[0]))
    (first, _), (second, _) = results
    assert first["bytes"] == second["bytes"]
    assert abs(first["seen"]["accuracy"] - second["seen"]["accuracy"]) < 15  # four test images a client
    assert all(bool(leaf.isfinite().all()) for leaf in tree.leaves(results[1][1]))


STEADY = ["fedavg", "fedprox", "fedu", "flowdup", "knnper", "ldfedavg", "odpflhn", "pefll", "pfedgp", "pfedhn"]
"""Methods whose clients keep nothing, and whose servers decide nothing on the host."""


@pytest.mark.parametrize("name", STEADY)
def test_whole_rounds_are_replayed_and_change_nothing(name: str) -> None:
    federations = [images(), dataclasses.replace(images(), seed=1)]
    kind = methods.get(name)
    small = {key: value for key, value in {"steps": 2, "batch": 8}.items() if key in kind.__dataclass_fields__}
    method = kind(task=make_task(federations[0], LeNet), clients=6, members=5, **small)
    found = []
    for whole in (True, False):
        engine = Vector(method, federations, CUDA)
        training = Training(method, federations, engine, Plan(rounds=7, cohort=3, evaluate_every=3))
        training.shortcut = training.shortcut if whole else None
        lines = []
        for _ in training.go():
            lines += training.drain()
        assert engine.capture is not None
        graphs = [graph for key, graph in engine.capture._kept.items() if key[0] == "a whole round"]
        assert [(graph.checked, graph.graph is not None) for graph in graphs] == [(True, True)] * whole  # type: ignore[attr-defined]
        found.append((training.states, [line | {"seconds": 0} for line in lines]))
    (replayed, told), (plain, expected) = found
    assert told == expected, "the ledger too"
    for ours, theirs in zip(replayed, plain, strict=True):
        for path, leaf in tree.flatten(ours).items():
            torch.testing.assert_close(leaf, tree.flatten(theirs)[path], atol=1e-5, rtol=1e-4, msg=path)


class Makes(Stops):
    """Makes a number of its own on the device, which cannot be captured."""

    def round(self, state: tree.Tree, clients: Clients) -> tree.Tree:
        rate = torch.tensor([0.5], device=CUDA)
        change = clients.mean(self.fit, shared=state)
        return tree.map(lambda leaf, new: leaf + rate * new, state, {"params": change})


@pytest.mark.parametrize(
    ("kind", "replayed"), [(Stops, False), (Lists, False), (Counts, False), (Makes, False), (Decays, True)]
)
def test_what_the_host_decides_is_never_replayed(kind: type[FedAvg], replayed: bool) -> None:
    federations = [images(), dataclasses.replace(images(), seed=1)]
    method = kind(task=make_task(federations[0], LeNet), clients=6, members=5, batch=8, lr=0.05)
    found = []
    for with_graphs in (True, False):
        engine = Vector(method, federations, CUDA, graphs=with_graphs)
        training = Training(method, federations, engine, Plan(rounds=10, cohort=3))
        states = []
        for _ in range(10):
            training.advance()
            states += [tree.map(torch.clone, state) for state in training.states]
        if engine.capture is not None:
            assert any(key[0] == "a whole round" for key in engine.capture._kept) == replayed
        found.append(states)
    for ours, theirs in zip(*found, strict=True):
        for path, leaf in tree.flatten(ours).items():
            torch.testing.assert_close(leaf, tree.flatten(theirs)[path], atol=1e-5, rtol=1e-4, msg=path)
    after = tree.flatten(found[0][-2]).items()
    stopped = all(torch.equal(leaf, tree.flatten(found[0][2 * 5])[path]) for path, leaf in after)
    assert stopped == (kind in (Stops, Lists, Counts))


@pytest.mark.parametrize("schedule", ["step", "cosine"])
@pytest.mark.parametrize("name", ["fedavg", "pefll"])
def test_schedules_are_replayed(name: str, schedule: Any) -> None:
    federation = images()
    kind = methods.get(name)
    small = {key: value for key, value in {"steps": 2, "batch": 8}.items() if key in kind.__dataclass_fields__}
    sizes = {"task": make_task(federation, LeNet), "clients": 6, "members": 5}
    method = kind(**sizes, **small, lr_schedule=schedule, rounds=8)
    found = []
    for with_graphs in (True, False):
        engine = Vector(method, [federation], CUDA, graphs=with_graphs)
        training = Training(method, [federation], engine, Plan(rounds=8, cohort=3))
        for _ in range(8):
            training.advance()
        if engine.capture is not None:
            assert any(key[0] == "a whole round" for key in engine.capture._kept)
        found.append(tree.flatten(training.states[0]))
    for path, leaf in found[0].items():
        torch.testing.assert_close(leaf, found[1][path], atol=1e-5, rtol=1e-3, msg=path)


@pytest.mark.parametrize("name", ["fedavg", "pefll", "flowdup"])
def test_a_pack_replays_whole_rounds_and_that_changes_nothing(name: str) -> None:
    federations = [images(), dataclasses.replace(images(), seed=1)]
    kind = methods.get(name)
    small = {key: value for key, value in {"steps": 2, "batch": 8}.items() if key in kind.__dataclass_fields__}
    sizes = {"task": make_task(federations[0], LeNet), "clients": 6, "members": 5}
    several = [kind(**sizes, **small, lr=rate) for rate in (0.01, 0.003)]
    found = []
    for whole in (True, False):
        engine = Packed(several, federations, CUDA)
        pack = Training(several, federations, engine, Plan(rounds=7, cohort=3, evaluate_every=3))
        pack.shortcut = pack.shortcut if whole else None
        pack.complete()
        assert engine.capture is not None
        assert ("a whole round" in [key[0] for key in engine.capture._kept]) == whole
        found.append([tree.flatten(state) for state in pack.states])
    for replayed, plain in zip(*found, strict=True):
        for path, leaf in plain.items():
            torch.testing.assert_close(replayed[path], leaf, atol=1e-5, rtol=1e-4, msg=path)


def test_runs_of_a_pack_end_where_they_would_alone() -> None:
    """By SGD alone: Adam makes large steps of small roundings."""
    federation = images()
    sizes = {"task": make_task(federation, LeNet), "clients": 6, "members": 5}
    several = [methods.get("fedavg")(**sizes, batch=8, lr=rate) for rate in (0.01, 0.003)]
    plan = Plan(rounds=7, cohort=3, evaluate_every=3)
    pack = Training(several, [federation] * 2, Packed(several, [federation] * 2, CUDA), plan)
    pack.complete()
    for method, state in zip(several, pack.states, strict=True):
        alone = Training(method, [federation], Vector(method, [federation], CUDA), plan)
        alone.complete()
        for path, leaf in tree.flatten(alone.states[0]).items():
            torch.testing.assert_close(tree.flatten(state)[path], leaf, atol=1e-5, rtol=1e-3, msg=path)


def forget_kernels() -> None:
    jit = pytest.importorskip("triton").JITFunction
    modules = [module for name, module in sys.modules.items() if name.startswith("latecomer.ops.")]
    for kernel in {value for module in modules for value in vars(module).values() if isinstance(value, jit)}:
        kernel.device_caches.clear()


def test_kernels_compiled_side_by_side_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    compiled = first_calls._compile
    monkeypatch.setattr(first_calls, "_compile", lambda missing: (noted.extend(missing), compiled(missing)))
    federation = images()
    method = methods.get("pefll")(task=make_task(federation, LeNet), clients=6, members=5, steps=2, batch=8)

    def states() -> dict[str, torch.Tensor]:
        training = Training(method, [federation], Vector(method, [federation], CUDA), Plan(rounds=3, cohort=3))
        for _ in training.go():
            training.drain()
        return tree.flatten(training.states[0])

    expected = states()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for there in (False, True):
        forget_kernels()
        noted.clear()
        found = states()
        assert bool(noted) != there, "kernels on the disk are not compiled again"
        assert all(torch.equal(leaf, found[path]) for path, leaf in expected.items())


FILTERS = {
    "5": (5, 18, 5, 3),
    "16": (16, 18, 5, 3),
    "40": (40, 18, 5, 3),
    "many channels": (WIDEST + 86, 18, 5, 3),
    "a pixel of many channels": (WIDEST, 70, 1, 1),
    "too few channels for that many filters": (WIDEST + 6, 3, 5, 3),
}


@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize(
    ("stride", "padding"), [((1, 1), (0, 0)), ((1, 1), (1, 1)), ((2, 2), (1, 1)), ((2, 1), (2, 1))]
)
def test_mapped_convolutions_equal_torchs(
    stride: tuple[int, int], padding: tuple[int, int], filters: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    padding = min(padding[0], filters[2] - 1), min(padding[1], filters[3] - 1)
    shapes = [(3, 4, filters[1], 13, 12), (3, *filters), (3, filters[0])]
    x, weight, bias = (torch.randn(*shape, generator=generator).to(CUDA) for shape in shapes)

    def energy(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.conv2d(x, weight, bias, stride, padding), 2).square().mean()

    def steepness(*inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([slope.sin().sum() for slope in grad(energy, argnums=(0, 1, 2))(*inputs)]).sum()

    for function in (energy, steepness):  # the slope of the second is a gradient of gradients
        slopes = vmap(grad(function, argnums=(0, 1, 2)))
        exact = slopes(x.double(), weight.double(), bias.double())
        found = intercepted(slopes)(x, weight, bias)
        again = intercepted(slopes)(x, weight, bias)
        for true, ours, more in zip(exact, found, again, strict=True):
            torch.testing.assert_close(ours.double(), true, atol=1e-5, rtol=1e-3)
            assert torch.equal(ours, more), "sums have a fixed order"


@pytest.mark.parametrize(("channels", "groups", "side"), [(64, 8, 32), (512, 32, 4), (320, 32, 3), (24, 3, 1)])
@pytest.mark.parametrize(("with_residual", "relu"), [(False, False), (False, True), (True, True)])
def test_mapped_group_norms_equal_torchs(
    channels: int, groups: int, side: int, with_residual: bool, relu: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 2, channels, side, side), (3, channels), (3, channels), (3, 2, channels, side, side)]
    inputs = [torch.randn(*shape, generator=generator).to(CUDA) for shape in shapes]

    def energy(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        out = norm(x, weight, bias, residual if with_residual else None, groups, 1e-5, relu)
        return out.square().mean() + residual.square().mean()

    def steepness(*inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([slope.sin().sum() for slope in grad(energy, argnums=(0, 1, 2, 3))(*inputs)]).sum()

    for function in (energy, steepness):
        slopes = vmap(grad(function, argnums=(0, 1, 2, 3)))
        exact = slopes(*(value.double() for value in inputs))
        found, again = (slopes(*inputs) for _ in range(2))
        for true, ours, more in zip(exact, found, again, strict=True):
            torch.testing.assert_close(ours.double(), true, atol=1e-5, rtol=1e-3)
            assert torch.equal(ours, more), "sums have a fixed order"


class Shifted(torch.nn.Module):
    """A model with a constant, which reaches the GPU before a gradient is taken."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.linspace(0, 1, shape[-1]))
        self.head = torch.nn.Linear(shape[-1], outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.mean((1, 2)) + self.shift)


def test_constants_of_a_model_outlive_a_gradient() -> None:
    federation = images()
    method = methods.get("pfedhn")(task=make_task(federation, Shifted), clients=6, members=5, steps=2, batch=8)
    expected = replies(Vector(method, [federation]), method, 2)
    for a, b in zip(expected, replies(Vector(method, [federation], CUDA), method, 2), strict=True):
        torch.testing.assert_close(a["head.weight"], b["head.weight"], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(("steps", "size", "passes"), [(5, 32, None), (4, 5, 2)])
def test_batches_are_those_of_the_cpu(steps: int, size: int, passes: int | None) -> None:
    who = torch.tensor([[0, 1, 7, 83, 500], [0, 1, 2, 3, 2], [0, 5, -2, 4999, 17], [3, 1, 4, 1, 59]])
    drawn = vmap(lambda *numbers: draw(*numbers, purpose("batches"), steps, size, passes))
    for expected, found in zip(drawn(*who), drawn(*who.to(CUDA)), strict=True):
        assert torch.equal(found.cpu(), expected)


def test_sums_do_not_see_rows_that_weigh_nothing() -> None:
    rows, weight = torch.randn(13, 700, device=CUDA), torch.rand(13, device=CUDA)
    expected = weight[1:] @ rows[1:]
    rows[0, 5], weight[0] = torch.nan, 0
    torch.testing.assert_close(weighted_sum(weight, rows), expected)


def test_rows_that_are_not_finite_are_found() -> None:
    rows = torch.ones(6, 1000, device=CUDA)
    rows[1, 7], rows[2, 0], rows[4, 999] = torch.nan, torch.inf, -torch.inf
    found = tree.finite({"a": rows, "b": torch.full((6,), 3e38, device=CUDA)}, rows=True)
    assert found.tolist() == [True, False, False, True, False, True]


def test_out_of_memory_says_which_chunk_fits_and_auto_finds_it() -> None:
    federation = images(clients=40, each=200)
    method = methods.get("pfedhn")(task=make_task(federation, LeNet), clients=40, members=39, steps=1, batch=128)
    gc.collect()
    torch.cuda.empty_cache()
    share = (torch.cuda.memory_reserved() + 0.5e9) / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        params = tree.to(method.task.model.fresh(torch.Generator().manual_seed(0)), CUDA)
        each = {"params": tree.map(lambda leaf: leaf.expand(39, *leaf.shape).contiguous(), params)}
        fixed = Vector(method, [federation], CUDA, chunk=39)
        with pytest.raises(MemoryShortage, match=r"--chunk \d+ would fit"):
            Clients(fixed, torch.arange(39), 0).run(method.fit, each=each)
        free = Vector(method, [federation], CUDA)
        free.chunk = 39
        for number in range(5):
            assert bool(Clients(free, torch.arange(39), number).run(method.fit, each=each).heard.all())
        assert free.chunk < 39
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("name", ["conv4", "resnet18", "mobilenet", "lstm"])
def test_models_train_alike_on_both_devices(name: str) -> None:
    federation = texts() if name == "lstm" else images()
    task = make_task(federation, MODELS[name])
    method = methods.get("fedavg")(task=task, clients=6, members=5, lr=0.01, batch=64)  # one step: more wander apart
    rounds = EAGER_CALLS + 2
    expected = replies(Vector(method, [federation]), method, rounds)
    found = replies(Vector(method, [federation], CUDA), method, rounds)
    for here, there in zip(expected, found, strict=True):
        for path, leaf in here.items():
            assert float((leaf - there[path]).norm()) < 0.02 * float(leaf.norm()) + 1e-5, path


def texts(clients: int = 6, each: int = 40) -> Federation:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 100, (clients * each, 80)).astype(np.int8), random.integers(0, 100, clients * each)
    rows = np.arange(clients * each).reshape(clients, each)
    return Federation.from_arrays(x, y, train=rows[:, :30], test=rows[:, 30:], members=clients - 1, classes=100)


def test_of_no_examples_none_are_taken() -> None:
    """A split of which no client has any, as where nothing is held out."""
    x, ones = torch.zeros(4, 3, 8, 8, dtype=torch.uint8, device=CUDA), torch.ones(3, 1, 1, device=CUDA)
    rows = torch.zeros(5, 0, dtype=torch.long, device=CUDA)
    assert vmap(lambda some: take(x, some, ones, ones))(rows).shape == (5, 0, 3, 8, 8)


# what is done with finished runs


def test_permuted_labels_are_those_of_the_cpu() -> None:
    plain = images()
    own = Permutations.draw(3, 10, 6, np.random.default_rng(0))
    found = []
    for federation in (plain, dataclasses.replace(plain, permutations=own)):
        method = methods.get("fedavg")(task=make_task(federation, LeNet), clients=6, members=5, lr=0.01, batch=64)
        here, there = (replies(Vector(method, [federation], where), method, EAGER_CALLS + 2) for where in ("cpu", CUDA))
        for a, b in zip(here, there, strict=True):
            for name in a:
                torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=1e-3)
        found.append(there[0])
    assert any(not torch.allclose(found[0][name], found[1][name]) for name in found[0]), "other labels, other slopes"


def test_a_run_of_a_pack_that_ends_early_leaves_the_others_alone() -> None:
    federation = images()
    sizes = {"task": make_task(federation, LeNet), "clients": 6, "members": 5}
    plan = {"rounds": 6, "cohort": 3, "evaluate_every": 2}
    runs = [(methods.get("fedavg")(**sizes, batch=8, lr=rate), federation) for rate in (0.01, 0.02, 0.003)]
    rounds = list[int]()

    def stop(places: Any) -> list[int]:
        rounds.append(len(places))
        return [1] if len(rounds) == 1 else []

    first, second, third = train.together(runs, "vector", CUDA, stop=stop, **plan)
    assert (second, rounds) == ({}, [3, 2, 2])
    for result, run in zip((first, third), (runs[0], runs[2]), strict=True):
        alone = train.run(*run, "vector", device=CUDA, **plan)
        assert result["bytes"] == alone["bytes"]
        assert abs(result["seen"]["accuracy"] - alone["seen"]["accuracy"]) < 15  # four test images a client


SMALL = ["--clients", "12", "--unseen", "0.34", "--rounds", "6", "--cohort", "4", "--evaluate-every", "3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a few seconds on digits, whose checkpoints hold CPU tensors, as all do."""
    out = tmp_path_factory.mktemp("runs")
    for words in (
        ["fedavg", "--lr", "0.1"],
        ["pefll", "--steps", "4", "--seeds", "2", "--trace-descriptors"],
        ["odpflhn", "--pool", "mean", "--bound", "3"],
        ["flowdup", "--dimension", "50", "--hidden", "16", "--embedding", "16", "--batch", "8"],
        ["knnper", "--batch", "8"],
        ["pfedhn", "--steps", "4", "--personal-head"],
    ):
        name, *own = words
        where = ["--device", str(CUDA), "--name", name, "--out", str(out)]
        assert main(["run", name, *SMALL, "--partition", "dirichlet", "--alpha", "0.5", *own, *where]) == 0
    return out


def test_digests_and_descriptors_of_a_run(runs: Path) -> None:
    told, trained = Finished.read(runs / "pefll"), Trained.load(runs / "pefll")
    last = {one["seed"]: one["state"] for one in told.metrics[-1]["runs"]}
    for seed, state, selected in zip(trained.seeds, trained.states, trained.rounds, strict=True):
        if selected == told.metrics[-1]["round"]:
            assert last[seed] == tree.digest(state), "of the same bits on the host"
        kept = told.descriptors(seed)
        assert kept is not None
        assert len(kept) == 12
    assert len({one["state"] for line in told.metrics for one in line["runs"]}) == 2 * len(told.metrics)
    assert told.traced() == [0, 3, 6]
    assert analyse("spearman", [runs / "pefll"]).rows


@pytest.mark.parametrize("name", ["fedavg", "pefll", "odpflhn", "flowdup", "knnper", "pfedhn"])
def test_a_meeting_on_a_gpu_is_one_on_the_cpu(runs: Path, name: str) -> None:
    trained = Trained.load(runs / name)
    before = trained.states[0]
    (there,), (here,) = (meet(trained, Meeting(device=where)).scores[:1] for where in (str(CUDA), "cpu"))
    assert there.ids.tolist() == here.ids.tolist()
    assert abs(there.summary()["accuracy"] - here.summary()["accuracy"]) < 10, "some ten test images a client"
    assert all(leaf.device.type == "cpu" for leaf in tree.leaves(before)), "what was loaded stays where it is"


@pytest.mark.parametrize(
    ("analysis", "run", "settings"),
    [
        ("neighbours", "fedavg", {"counts": (1, 5)}),
        ("capacity", "pefll", {"by": "data", "capacities": (0.5,)}),
        ("prototypes", "knnper", {"prototypes": (1,), "projections": (4,)}),
        ("alphas", "pefll", {"alphas": (0.5,), "clients": 6, "local": True}),
        ("privacy", "odpflhn", {"epsilons": (10.0,), "shares": (1.0,)}),
        ("shift", "knnper", {"clients": 4, "shift": 2, "steps": 4, "every": 1}),
    ],
)
def test_scoring_again_on_a_gpu_is_as_on_the_cpu(runs: Path, analysis: str, run: str, settings: dict[str, Any]) -> None:
    there, here = (analyse(analysis, [runs / run], settings | {"device": where}) for where in (str(CUDA), "cpu"))
    for a, b in zip(there.rows, here.rows, strict=True):
        numbers = [(x, y) for x, y in zip(a, b, strict=True) if isinstance(x, float)]
        assert numbers
        assert all(abs(x - y) < 10 for x, y in numbers), "an image or two of a client's ten"


@pytest.mark.parametrize("name", ["pefll", "flowdup", "odpflhn", "knnper"])
def test_a_certificate_of_a_gpu_is_that_of_the_cpu(runs: Path, name: str) -> None:
    settings = {} if name == "knnper" else {"draws": 3}
    there, here = (certify(runs / name, settings | {"device": where}) for where in (str(CUDA), "cpu"))
    assert [term.name for term in there.terms] == [term.name for term in here.terms]
    assert there.bound == pytest.approx(here.bound, rel=0.05)
