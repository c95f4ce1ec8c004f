"""Engines: homes and their batches, memories, errors, and how one is chosen."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

import toys
from latecomer import engines, methods, tree
from latecomer.clients import Ask, Clients
from latecomer.data import Federation
from latecomer.engines import auto, make, pick_device, waking
from latecomer.engines import home as home_
from latecomer.engines.fitting import activation_bytes, padding
from latecomer.engines.home import Homes, PackedHome, entropy
from latecomer.engines.vector import Vector
from latecomer.errors import (
    LatecomerError,
    MemoryShortage,
    MissingExtra,
    ProtocolError,
    SettingError,
    StepError,
    UnknownName,
)
from latecomer.method import asked_in
from latecomer.nets.net import Net
from latecomer.replies import Collector
from latecomer.sweep.lockstep import Lockstep
from latecomer.task import Batch, Home, Task
from latecomer.train import Plan, Training
from latecomer.tree import Tree

ALL = torch.arange(len(toys.TRAIN))


@dataclass(frozen=True, kw_only=True)
class Diary(toys.Idle):
    """Shows what a home gives, and writes down that it was visited."""

    @asked_in("round", "personalise")
    def draw(self, home: Home) -> Tree:
        one, several = home.batch(4), list(home.batches(3, 8))
        passes = list(home.epochs(2, 8, "another"))
        return {
            "one": _show(one),
            "several": tree.stack([_show(batch) for batch in several]),
            "passes": _roomy(tree.stack([_show(batch) for batch in passes])),
            "train": _roomy(_show(home.all())),
            "test": _roomy(_show(home.all("test"))),
        }

    @asked_in("round", "personalise")
    def visit(self, home: Home, *, note: Tensor) -> Tree:
        before = home.memory
        home.memory = {"visits": before["visits"] + 1, "note": note}
        return {"visits": before["visits"], "note": before["note"]}

    @asked_in("round", "personalise")
    def look(self, home: Home) -> Tree:
        return dict(home.memory)

    @asked_in("round", "personalise")
    def shapes(self, home: Home, *, params: Tree) -> Tree:
        return {"product": params["w"].flatten() @ params["v"]}

    @asked_in("round", "personalise")
    def quarrel(self, home: Home) -> Tree:
        raise ProtocolError("this is a sentence already")

    def memory(self, generator: torch.Generator) -> Tree:
        return {"visits": torch.zeros(()), "note": torch.rand(2, generator=generator)}


def _show(batch: Batch) -> Tree:
    return {"x": batch.x, "y": batch.y, "real": batch.real}


def _roomy(shown: Tree) -> Tree:
    """Only what is real, in 40 rows: engines differ in how much padding follows."""
    real = shown["real"]
    kept = tree.map(lambda leaf: torch.where(tree.align(real, leaf), leaf, torch.zeros_like(leaf)), shown)
    return tree.map(lambda leaf: torch.cat([leaf, leaf.new_zeros(40 - len(leaf), *leaf.shape[1:])]), kept)


METHOD = Diary(task=toys.task(), clients=len(toys.TRAIN), members=len(toys.TRAIN))  # who are asked for all


def home(client: int, round: int | Tensor = 0, federation: Federation | None = None) -> PackedHome:  # noqa: A002
    homes = Homes([federation or toys.federation()], torch.device("cpu"), torch.float32)
    return PackedHome(homes, homes.client_rows(0, torch.tensor([client]))[0], torch.as_tensor(round), {})


def keys(batches: list[Batch]) -> list[tuple[float, ...]]:
    """The real examples, in order, as something that can be compared."""
    return [
        tuple(x.flatten().tolist()) for batch in batches for x, real in zip(batch.x, batch.real, strict=True) if real
    ]


# homes


@pytest.mark.parametrize("client", [0, 3, 6])
@pytest.mark.parametrize("size", [1, 4, 8, 64])
def test_a_pass_covers_the_data_once(client: int, size: int) -> None:
    owned = sorted(keys([home(client).all()]))
    assert len(owned) == toys.TRAIN[client]
    assert sorted(keys(list(home(client).epochs(1, size)))) == owned
    twice = keys(list(home(client).epochs(2, size)))
    assert sorted(twice[: len(owned)]) == sorted(twice[len(owned) :]) == owned
    assert len(owned) < 6 or twice[: len(owned)] != twice[len(owned) :], "every pass is shuffled anew"


@pytest.mark.parametrize("client", [0, 6])
def test_every_batch_is_full_and_drawn_afresh(client: int) -> None:
    """Where a client has fewer examples than a batch, each is all of them."""
    drawn, owned = list(home(client).batches(40, 8)), keys([home(client).all()])
    assert len(drawn) == len(home(client).batches(40, 8)) == 40
    found = [keys([batch]) for batch in drawn]
    assert all(len(batch) == len(set(batch)) == min(8, len(owned)) for batch in found), "without repetition"
    assert len({tuple(sorted(batch)) for batch in found}) == (1 if len(owned) <= 8 else 40)
    shares = torch.tensor([sum(example in batch for batch in found) / 40 for example in owned])
    expected = min(1.0, 8 / len(owned))
    assert (shares - expected).abs().max() <= 4 * (expected * (1 - expected) / 40) ** 0.5, "and all are as likely"


def test_small_clients_see_padding_at_the_end_of_counted_passes() -> None:
    real = [int(batch.real.sum()) for batch in home(0).epochs(2, 4)]
    assert len(real) == 2 * -(-max(toys.TRAIN) // 4)
    assert [count for count in real if count] == [4, 1, 4, 1]
    assert real[4:] == [0] * (len(real) - 4)


def test_one_batch_has_no_repetition() -> None:
    drawn = keys([home(6).batch(20)])
    assert len(set(drawn)) == 20
    assert set(drawn) < set(keys([home(6).all()]))
    assert len(keys([home(0).batch(20)])) == 5


def test_simulated_noise_is_normal_and_repeats() -> None:
    rounds = torch.arange(500)
    drawn = torch.cat([vmap(lambda turn, c=client: home(c, round=turn).noise(7))(rounds) for client in range(7)])
    assert torch.equal(drawn[-1], home(6, round=499).noise(7))
    assert drawn.dtype == torch.float32
    assert drawn.mean(0).abs().max() < 4 / 3500**0.5
    assert (drawn.std(0) - 1).abs().max() < 4 / 7000**0.5
    assert torch.corrcoef(drawn.T).fill_diagonal_(0).abs().max() < 4 / 3500**0.5
    first = home(6).noise(5, "request")
    assert torch.equal(first, home(6).noise(5, "request"))
    others = [home(6).noise(5, "other"), home(5).noise(5, "request"), home(6, round=1).noise(5, "request")]
    others += [home(6, federation=replace(toys.federation(), seed=9)).noise(5, "request")]
    assert all((first - other).abs().min() > 1e-6 for other in others)


def test_real_noise_comes_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    homes = Homes([toys.federation()], torch.device("cpu"), torch.float64)
    card = homes.client_rows(0, torch.tensor([1]))[0]
    drawn = torch.stack([PackedHome(homes, card, torch.tensor(0), {}, entropy).noise(5) for _ in range(2000)])
    assert len(drawn.flatten().unique()) == 10_000, "the same home, round and purpose, and never the same noise"
    assert abs(drawn.mean()) < 5 / 10_000**0.5
    assert abs(drawn.std() - 1) < 5 / 20_000**0.5
    monkeypatch.setattr("secrets.token_bytes", lambda count: bytes(count))
    assert PackedHome(homes, card, torch.tensor(0), {}, entropy).noise(3).tolist() == [0.0] * 3


def test_a_purpose_draws_the_same_batch_all_round_long() -> None:
    here = home(6)
    assert torch.equal(here.batch(8, "describe").x, here.batch(8, "describe").x)
    assert torch.equal(here.batch(8, "describe").x, home(6).batch(8, "describe").x)
    first = here.batch(8, "describe").x
    assert not torch.equal(first, here.batch(8, "score").x), "another purpose"
    assert not torch.equal(first, home(6, round=1).batch(8, "describe").x), "another round"
    other = replace(toys.federation(), seed=9)
    assert not torch.equal(first, home(6, federation=other).batch(8, "describe").x), "another seed"


def test_a_purpose_draws_the_same_noise_all_round_long() -> None:
    first = home(6).noise(9, "blur")
    assert torch.equal(first, home(6).noise(9, "blur"))
    others = [home(6).noise(9, "shake"), home(6, round=1).noise(9, "blur"), home(5).noise(9, "blur")]
    others.append(home(6, federation=replace(toys.federation(), seed=9)).noise(9, "blur"))
    assert len(torch.stack([first, *others]).unique()) == 45, "another purpose, round, client or seed"


@pytest.mark.parametrize("engine", toys.ENGINES[1:])
def test_every_engine_draws_the_same(engine: str) -> None:
    drawn = [
        Clients(toys.engine(which, METHOD, [toys.federation()]), ALL, 5).run(METHOD.draw).each
        for which in ("vector", engine)
    ]
    assert toys.gap(*drawn) < 1e-6
    labels = [{key: value["y"] for key, value in each.items()} for each in drawn]
    assert toys.same(*labels)
    assert not torch.equal(drawn[0]["one"]["x"][1], drawn[0]["one"]["x"][2])


def test_labels_are_hidden_where_a_client_has_none() -> None:
    some = toys.federation(labelled=(True,) * 9 + (False,))
    assert (home(9, federation=some).all().y == -1).all()
    assert (home(9, federation=some).all("val").y == -1).all()
    assert (home(9, federation=some).all("test").y >= 0).all(), "the experimenter's test labels score"
    assert home(9, federation=some).all().weight.sum() == 0
    assert (home(8, federation=some).all().y[: toys.TRAIN[8]] >= 0).all()


def test_turned_images() -> None:
    federation = toys.federation()
    plain = replace(federation, rotation=torch.zeros_like(federation.rotation))
    straight, turned = (home(1, federation=which).all().x for which in (plain, federation))
    assert torch.allclose(turned, torch.rot90(straight, 1, (-2, -1)), atol=1e-6)


@pytest.mark.parametrize("rotation", [None, [0, 30, 45]], ids=["straight", "turned"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mapped", [False, True])
def test_images_that_are_kept_ready_are_the_same(
    rotation: list[int] | None, channels: int, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit the same as those that are turned, scaled and shifted batch by batch."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 6, 7, channels), dtype=np.uint8)
    rows = {"train": [range(6), range(6, 15), range(15, 20)], "val": [[20]] * 3, "test": [[21], [22, 23], [24]]}
    classes, colours = np.arange(30) % 3, tuple(0.1 + 0.2 * k for k in range(channels))
    federation = Federation.from_arrays(
        pixels, classes, **rows, members=2, rotation=rotation, mean=colours, std=colours[::-1]
    )

    def drawn(homes: Homes, card: Tensor) -> tuple[Tensor, ...]:
        here = PackedHome(homes, card, torch.tensor(4), {})
        return here.all().x, here.all("test").x, *(batch.x for batch in here.batches(3, 4))

    found = []
    for limit in (0, home_.READY):
        monkeypatch.setattr(home_, "READY", limit)
        homes = Homes([federation], torch.device("cpu"), torch.float32)
        assert (homes.ready is None) == (limit == 0)
        cards = homes.client_rows(0, torch.arange(3))
        if mapped:
            found.append(vmap(partial(drawn, homes))(cards))
        else:
            found.append(tuple(map(torch.stack, zip(*(drawn(homes, card) for card in cards), strict=True))))
    for plain, ready in zip(*found, strict=True):
        assert plain.shape == ready.shape
        assert torch.equal(plain, ready)


# memories, on every engine


@pytest.fixture(params=toys.ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    return toys.engine(request.param, METHOD, toys.federations(2))


def visit(engine: Any, ids: list[int], note: float, **options: Any) -> list[float]:
    clients = Clients(engine, torch.tensor(ids), options.pop("round", 0), **options)
    return clients.run(METHOD.visit, shared={"note": torch.full((2,), note)}).each["visits"].tolist()  # type: ignore[no-any-return]


def look(engine: Any, ids: list[int], **options: Any) -> list[tuple[float, float]]:
    each = Clients(engine, torch.tensor(ids), options.pop("round", 9), **options).run(METHOD.look).each
    return list(zip(each["visits"].tolist(), each["note"][:, 0].tolist(), strict=True))


def blank(seed: int) -> float:
    return float(METHOD.memory(torch.Generator().manual_seed(seed))["note"][0])


def test_a_memory_lasts_from_round_to_round(engine: Any) -> None:
    assert visit(engine, [4, 1], 0.5) == [0, 0]
    assert visit(engine, [1, 2], 0.25, round=1) == [1, 0]
    assert look(engine, [1, 2, 4, 5]) == [(2, 0.25), (1, 0.25), (1, 0.5), (0, pytest.approx(blank(0)))]


def test_runs_in_lockstep_have_memories_of_their_own(engine: Any) -> None:
    visit(engine, [1], 0.5, run_index=1)
    assert look(engine, [1, 2]) == [(0, pytest.approx(blank(0)))] * 2
    assert look(engine, [1, 2], run_index=1) == [(1, 0.5), (0, pytest.approx(blank(1)))]
    assert blank(0) != blank(1)


def test_the_silent_keep_what_they_had(engine: Any) -> None:
    visit(engine, [1, 2, 3], 0.5)
    visit(engine, [1, 2, 3], 0.25, round=1, faults=lambda ids, number, step: ids == 2)
    assert look(engine, [1, 2, 3]) == [(2, 0.25), (1, 0.5), (2, 0.25)]


def test_an_evaluation_scribbles_and_forgets(engine: Any) -> None:
    visit(engine, [1], 0.5)
    assert visit(engine, [1, 8], 0.75, scratch=1) == [1, 0], "it begins from what was kept"
    assert look(engine, [1, 8], scratch=1) == [(2, 0.75), (1, 0.75)], "and sees its own scribbles"
    assert look(engine, [1, 8]) == [(1, 0.5), (0, pytest.approx(blank(0)))], "which training does not"
    assert look(engine, [1, 8], scratch=2) == [(1, 0.5), (0, pytest.approx(blank(0)))], "nor the next evaluation"
    visit(engine, [1], 0.125, scratch=2)
    assert look(engine, [1, 8], scratch=2, round=1) == [(2, 0.125), (0, pytest.approx(blank(0)))]
    assert look(engine, [1, 8], run_index=1, scratch=2) == [(0, pytest.approx(blank(1)))] * 2


def test_memories_in_a_checkpoint(engine: Any) -> None:
    assert engine.memories(0) == {}
    visit(engine, [6, 1], 0.5)
    visit(engine, [2], 0.25, run_index=1)
    dumped = [engine.memories(run) for run in range(2)]
    assert dumped[0]["ids"].tolist() == [1, 6]
    assert dumped[0]["rows"]["note"].tolist() == [[0.5, 0.5]] * 2
    visit(engine, [1, 3], 0.75, round=1)
    for which in toys.ENGINES:
        other = toys.engine(which, METHOD, toys.federations(2))
        visit(other, [5], 0.125)
        for run, memory in enumerate(dumped):
            other.remember(run, memory)
        assert look(other, [1, 3, 5, 6]) == [
            (1, 0.5),
            (0, pytest.approx(blank(0))),
            (0, pytest.approx(blank(0))),
            (1, 0.5),
        ]
        assert look(other, [2], run_index=1) == [(1, 0.25)]
    engine.remember(0, {})
    assert engine.memories(0) == {}


# errors


def test_an_error_in_a_step_names_client_round_step_and_argument() -> None:
    clients = Clients(make("loop", METHOD, [toys.federation()], "cpu"), torch.tensor([4, 2]), 17)
    with pytest.raises(StepError) as found:
        clients.run(METHOD.shapes, shared={"params": {"w": torch.ones(2, 3), "v": torch.ones(2)}})
    sentence = str(found.value)
    assert sentence.startswith("Client 4 failed in round 17 at step 'shapes', sent params/w (2, 3), params/v (2,): ")
    assert isinstance(found.value.__cause__, RuntimeError)


def test_the_argument_that_is_not_finite_is_named() -> None:
    clients = Clients(make("loop", METHOD, [toys.federation()], "cpu"), torch.tensor([4]), 0)
    broken = {"w": torch.ones(2, 3), "v": torch.tensor([1.0, torch.nan])}
    with pytest.raises(StepError, match="sent params/v with values that are not finite: "):
        clients.run(METHOD.shapes, shared={"params": broken})


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_a_sentence_of_our_own_stays_as_it_is(engine: str) -> None:
    clients = Clients(make(engine, METHOD, [toys.federation()], "cpu"), torch.tensor([4]), 0)
    with pytest.raises(ProtocolError, match=r"^this is a sentence already$"):
        clients.run(METHOD.quarrel)


def run_out(engine: Vector, monkeypatch: pytest.MonkeyPatch, above: int) -> list[int]:
    """Let the engine run out of memory with more than so many rows at once; the rows of every attempt."""
    inputs, attempts = engine._inputs, []

    def limited(asks: Any, first: int, rows: int, nested: bool) -> Any:
        attempts.append(rows)
        if rows > above:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return inputs(asks, first, rows, nested)

    monkeypatch.setattr(engine, "_inputs", limited)
    return attempts


def test_out_of_memory_with_a_fixed_chunk_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Vector(METHOD, [toys.federation()], "cpu", chunk=8)
    run_out(engine, monkeypatch, above=0)
    with pytest.raises(MemoryShortage, match=r"out of memory with 8 clients at once; --chunk 4 would fit"):
        Clients(engine, ALL, 0).run(METHOD.look)
    assert issubclass(MemoryShortage, LatecomerError)


def test_out_of_memory_halves_a_chunk_that_was_ours_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Vector(METHOD, [toys.federation()], "cpu")
    attempts = run_out(engine, monkeypatch, above=3)
    replies = Clients(engine, ALL, 0).run(METHOD.look)
    assert attempts[:3] == [10, 5, 2]
    assert max(attempts[2:]) <= 3
    assert replies.each["visits"].shape == (10,)
    assert replies.heard.all()


def test_out_of_memory_with_a_single_client_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Vector(METHOD, [toys.federation()], "cpu")
    attempts = run_out(engine, monkeypatch, above=0)
    with pytest.raises(MemoryShortage, match="with a single client"):
        Clients(engine, ALL, 0).run(METHOD.look)
    assert attempts[-1] == 1


# the choice


def test_engines_by_name() -> None:
    for name, kind in {"vector": "Vector", "loop": "Loop", "flower": "Flower"}.items():
        assert type(make(name, METHOD, [toys.federation()], "cpu")).__name__ == kind
    with pytest.raises(UnknownName, match="no engine 'vektor'; did you mean 'vector'"):
        make("vektor", METHOD, [toys.federation()])


def unequal(sizes: list[int]) -> Federation:
    """Two classes, and clients of these sizes, the last of them a latecomer."""
    ends = np.cumsum(sizes)
    rows = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    held = [[row[0]] for row in rows]
    x, y = np.random.default_rng(0).normal(size=(ends[-1], 8, 8)).astype(np.float32), np.arange(ends[-1]) % 2
    return Federation.from_arrays(x[:, None], y, train=rows, val=held, test=held, members=len(sizes) - 1, classes=10)


def test_clients_of_very_different_sizes_are_not_mapped_where_work_grows_faster_than_they_do() -> None:
    alike, federation = unequal([6] * 10), unequal([60] + [6] * 9)
    method = toys.method("pfedgp")
    assert padding(method, [alike]) == 1
    assert padding(method, [federation]) == pytest.approx(10 * 60**2 / (60**2 + 9 * 6**2))
    assert padding(toys.method("fedavg"), [federation]) == 1, "its work grows as they do"
    assert auto.faster(method, [federation], torch.device("cpu")) == "loop"
    plan = Plan(rounds=1, cohort=2)
    (note,) = Training(method, [federation], make("vector", method, [federation], "cpu"), plan).notes
    assert "the largest, which has 60 examples: that is at least 9 times the work of --engine loop" in note
    for name, several in (("vector", [alike]), ("loop", [federation])):
        assert Training(method, several, make(name, method, several, "cpu"), plan).notes == []


def test_a_method_says_what_memory_its_clients_need() -> None:
    method = toys.method("pfedgp")
    small, large = (make("vector", method, [unequal([size] * 4)], "cpu") for size in (8, 80))
    assert (large.activations - small.activations) > method.workspace(80) - method.workspace(8) > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["loop", "flower"])
def test_a_client_on_its_own_has_room_for_its_own_examples(name: str) -> None:
    seen: list[int] = []

    class Watched(Diary):
        @asked_in("round")
        def measure(self, home: Home) -> Tree:
            seen.extend((len(home.all().y), len(home.all("test").y), len(home.epochs(2, 4))))
            return {}

    method = Watched(task=toys.task(), clients=len(toys.TRAIN), members=toys.MEMBERS)
    Clients(toys.engine(name, method, [toys.federation()]), torch.tensor([0, 6]), 0).run(method.measure)
    assert seen[-6:] == [5, 5, 4, 30, 5, 16]


def test_auto_takes_the_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert auto.faster(METHOD, [toys.federation()], torch.device("cuda")) == "vector"
    assert auto.faster(METHOD, [toys.federation()], torch.device("cpu")) in ("vector", "loop")
    clock = (k / 1000 for k in range(10**6))
    ticks = {"Vector": 5, "Loop": 1}

    class Timed(auto.Clients):
        def run(self, *args: Any, **options: Any) -> Any:
            for _ in range(ticks[type(self.engine).__name__]):
                next(clock)
            return super().run(*args, **options)

    monkeypatch.setattr(auto, "Clients", Timed)
    monkeypatch.setattr(auto.time, "perf_counter", lambda: next(clock))
    assert auto.faster(METHOD, [toys.federation()], torch.device("cpu")) == "loop"
    ticks |= {"Vector": 1, "Loop": 5}
    assert auto.faster(METHOD, [toys.federation()], torch.device("cpu")) == "vector"
    ticks |= {"Loop": 60}  # 0.06 seconds for a few examples: with a network this small, the machine is busy
    assert auto.faster(METHOD, [toys.federation()], torch.device("cpu")) == "vector"
    monkeypatch.setattr(auto, "SMALL", 0)  # a large one is not even tried on the other
    assert auto.faster(METHOD, [toys.federation()], torch.device("cpu")) == "loop"


def test_devices() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    with pytest.raises(SettingError, match="must be cpu, cuda or auto; got 'tpu'"):
        pick_device("tpu")
    if not torch.cuda.is_available():
        assert pick_device("auto") == torch.device("cpu")
        with pytest.raises(SettingError, match="PyTorch finds none; use --device cpu"):
            pick_device("cuda")


def test_a_missing_extra_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(MissingExtra, match=r"pip install 'latecomer\[flower\]'"):
        make("flower", METHOD, [toys.federation()], "cpu")


def test_a_chunk_follows_from_the_memory_that_a_client_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 inputs, and 8 + 8 + 10 numbers that the layers compute: each kept, its gradient, and a working copy."""
    assert activation_bytes(METHOD) == 3 * 4 * (64 + 8 + 8 + 10)
    monkeypatch.setattr("latecomer.engines.fitting.CPU_BUDGET", 7 * max(toys.TRAIN) * activation_bytes(METHOD))
    assert Vector(METHOD, [toys.federation()], "cpu").chunk == 7
    assert Vector(METHOD, [toys.federation()], "cpu", chunk=2).chunk == 2


def test_what_a_client_is_sent_takes_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message as large as the activations of all examples together, ten times over: eleven rows become one."""
    activations = max(toys.TRAIN) * activation_bytes(METHOD)
    monkeypatch.setattr("latecomer.engines.fitting.CPU_BUDGET", 11 * activations)
    engine = Vector(METHOD, [toys.federation()], "cpu")
    monkeypatch.setattr(engine.kept[0], "blank", {})
    message = torch.zeros(activations // 4)
    ask = Ask(0, 0, torch.arange(3), torch.zeros(3), None, {"large": message}, {}, {}, None, Collector(None))
    assert engine._fitting() == 11
    assert engine._fitting([ask]) == 1


@pytest.mark.parametrize("name", toys.ENGINES)
def test_a_client_without_validation_examples_at_the_very_end(name: str) -> None:
    """Its rows would begin past the last index; all it has there is padding."""
    x, y = np.random.default_rng(0).random((6, 4), dtype=np.float32), np.arange(6) % 2
    federation = Federation.from_arrays(x, y, train=[[0, 1], [2, 3]], val=[[4], []], test=[[4], [5]], classes=2)
    method = methods.get("fedavg")(
        task=Task(Net(lambda: torch.nn.Linear(4, 2)), (4,), 2), clients=2, members=2, batch=2
    )
    clients = Clients(toys.engine(name, method, [federation]), torch.tensor([0, 1]), -1)
    counts = clients.run(method.score, shared=method.init(torch.Generator().manual_seed(0))).each
    assert counts["val"][:, 1].tolist() == [1, 0]
    assert counts["test"][:, 1].tolist() == [1, 1]


# several seeds, models of several sizes


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_seeds_in_lockstep_may_be_at_models_of_different_sizes(engine: str) -> None:
    """The first seed's clients hold three numbers, then two; the second's two, and then nobody is left to ask."""
    diary = Diary(task=toys.task(), clients=len(toys.TRAIN), members=toys.MEMBERS)
    made = toys.engine(engine, diary, toys.federations(2))

    def work(run: int, sizes: list[int], engine: Any) -> list[Tensor]:
        rounds = [Clients(engine, torch.arange(4), number, run_index=run) for number in range(len(sizes))]
        rows = [{"w": torch.full((4, size), run + 1.0), "v": torch.ones(4, size)} for size in sizes]
        return [
            clients.run(diary.shapes, each={"params": row}).each["product"]
            for clients, row in zip(rounds, rows, strict=True)
        ]

    lockstep = Lockstep(made)
    first, second = lockstep([partial(work, 0, [3, 2]), partial(work, 1, [2])])
    assert [part.tolist() for part in first] == [[3.0] * 4, [2.0] * 4]
    assert [part.tolist() for part in second] == [[4.0] * 4]


@pytest.mark.parametrize(("filters", "together"), [(False, [2]), (True, [1, 1])])
def test_on_a_cpu_seeds_that_share_filters_go_one_by_one(
    filters: bool, together: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Vector(METHOD, toys.federations(2), "cpu")
    inputs, counts = engine._inputs, []

    def counted(asks: Any, first: int, rows: int, nested: bool) -> tuple[Any, ...]:
        counts.append(len(asks))
        return inputs(asks, first, rows, nested)

    monkeypatch.setattr(engine, "_inputs", counted)

    def work(run: int, engine: Any) -> list[float]:
        params = {"w": torch.full((1, 1, 2, 2) if filters else (4,), run + 1.0), "v": torch.ones(4)}
        clients = Clients(engine, torch.arange(3), 0, run_index=run)
        product: list[float] = clients.run(METHOD.shapes, shared={"params": params}).each["product"].tolist()
        return product

    lockstep = Lockstep(engine)
    assert lockstep([partial(work, 0), partial(work, 1)]) == [[4.0] * 3, [8.0] * 3]
    assert counts == together


def test_while_the_body_runs_a_gpu_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[torch.device] = []
    monkeypatch.setattr(engines, "pick_device", torch.device)
    monkeypatch.setattr(engines, "_wake", woken.append)
    for device in ("cpu", "meta"):  # as a GPU, the second is no CPU
        with waking(device):
            pass
    assert woken == [torch.device("meta")]


def test_a_gpu_that_cannot_be_opened_is_an_error_after_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(device: torch.device) -> None:
        raise RuntimeError("no GPU memory")

    monkeypatch.setattr(engines, "pick_device", torch.device)
    monkeypatch.setattr(engines, "_wake", fail)
    done = False
    with pytest.raises(RuntimeError, match="no GPU memory"), waking("meta"):
        done = True
    assert done


def test_waking_maps_a_gradient_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped: list[torch.device] = []
    monkeypatch.setattr(engines, "vmap", lambda function: lambda rows: mapped.append(rows.device))
    engines._wake(torch.device("meta"))
    assert mapped == [torch.device("meta")]
