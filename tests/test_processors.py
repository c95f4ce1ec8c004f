"""Processors: by hand-worked values, under `vmap`, and over many rounds."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

import toys
from latecomer import methods, privacy, tree
from latecomer.clients import Clients
from latecomer.engines.flower.spending import ledger
from latecomer.errors import ProtocolError, SettingError
from latecomer.processors import Processors, floats
from latecomer.replies import Rules
from latecomer.runs.run import restore, snapshot
from latecomer.steps import Answers
from latecomer.tally import Tally
from latecomer.train import Plan, Training
from latecomer.tree import Tree

STACKS = [
    "clip=1",
    "topk=0.1",
    "quantise=8",
    "quantise=4",
    "topk=0.1,quantise=8",
    "clip=1,noise=0.1,topk=0.1,quantise=4",
]


class Quiet:
    """A home with noise of its own, and nothing else."""

    def __init__(self, seed: Any = 0) -> None:
        self.seed = seed

    def noise(self, size: int, purpose: str = "noise", dtype: torch.dtype | None = None) -> Tensor:
        return torch.sin(torch.arange(size, dtype=dtype) * 1.7 + self.seed + len(purpose))


def there_and_back(text: str, reply: Tree, answers: Answers = "change", left: Tree | None = None) -> Any:
    """The wire form, what the server reads, and what is left."""
    processors = Processors.parse(text)
    before = processors.left(reply, answers) if left is None else left
    wire, after = processors.outgoing(reply, answers, Quiet(), before, "fit")  # type: ignore[arg-type]
    return wire, tree.row(processors.incoming(tree.map(lambda leaf: leaf[None], wire)), 0), after


def reply_of(seed: int, dtype: torch.dtype = torch.float32) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    made = {"w": torch.randn(5, 7, generator=generator), "b": torch.randn(5, generator=generator)}
    return {"params": tree.map(lambda leaf: leaf.to(dtype), made)}


# by hand


def test_clipping_shortens_what_is_too_long_and_nothing_else() -> None:
    reply = {"w": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0]), "seen": torch.tensor([7])}
    wire, read, left = there_and_back("clip=2.5", reply)
    assert wire["w"].tolist() == [1.5, 0.0]
    assert wire["b"].tolist() == [2.0]
    assert wire["seen"].tolist() == [7]
    assert read["w"].tolist() == [1.5, 0.0]
    assert left == {}
    unchanged, _, _ = there_and_back("clip=5", reply)
    assert unchanged["w"].tolist() == [3.0, 0.0]
    zero, _, _ = there_and_back("clip=5", {"w": torch.zeros(3)})
    assert zero["w"].tolist() == [0.0, 0.0, 0.0]
    huge, _, _ = there_and_back("clip=5", {"w": torch.tensor([3e30, 4e30])})  # whose squares are more than a float
    assert huge["w"].tolist() == pytest.approx([3.0, 4.0])


def test_the_server_clips_again_what_a_liar_sent() -> None:
    rows = {"w": torch.tensor([[30.0, 40.0], [0.3, 0.4]])}
    read = Processors.parse("clip=1").incoming(rows)["w"]
    assert torch.allclose(read, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    lied = {"w": torch.full((1, 100), 1e6)}
    assert float(Processors.parse("clip=1,noise=2").incoming(lied)["w"].norm()) == pytest.approx(1 + 4 * (10 + 6))


def test_the_largest_numbers_travel_with_their_places() -> None:
    reply = {"w": torch.tensor([[1.0, -9.0], [0.5, 2.0]]), "b": torch.tensor([-5.0]), "seen": torch.tensor([7])}
    wire, read, left = there_and_back("topk=0.4", reply)  # two of five
    assert sorted(wire["~places"].tolist()) == [1, 4]
    assert sorted(wire["~values"].tolist()) == [-9.0, -5.0]
    assert read["w"].tolist() == [[0.0, -9.0], [0.0, 0.0]]
    assert read["b"].tolist() == [-5.0]
    assert read["seen"].tolist() == [7]
    assert left["w"].tolist() == [[1.0, 0.0], [0.5, 2.0]]
    assert left["b"].tolist() == [0.0]
    assert tree.nbytes(wire) == 2 * (4 + 4) + 8  # values, places, and the whole number beside them


def test_what_was_left_goes_with_the_next_reply() -> None:
    _, _, left = there_and_back("topk=0.4", {"w": torch.tensor([1.0, -9.0, 0.5, 2.0, -5.0])})
    _, read, after = there_and_back("topk=0.4", {"w": torch.tensor([1.0, 0.1, 0.0, 0.1, 0.0])}, left=left)
    assert read["w"].tolist() == pytest.approx([2.0, 0.0, 0.0, 2.1, 0.0])
    assert after["w"].tolist() == pytest.approx([0.0, 0.1, 0.5, 0.0, 0.0])


@pytest.mark.parametrize(("bits", "most", "size"), [(8, 127, 17), (4, 7, 9)])
def test_codes_are_the_nearest_on_a_scale(bits: int, most: int, size: int) -> None:
    numbers = torch.tensor([most, -most, 0.4, 0.6, -1.4, -1.6, *[0.0] * 11]) / 2  # 17 numbers, on a scale of a half
    wire, read, left = there_and_back(f"quantise={bits}", {"w": numbers, "b": torch.tensor([1 / 3])})
    assert read["w"].tolist() == [most / 2, -most / 2, 0.0, 0.5, -0.5, -1.0, *[0.0] * 11]
    assert left["w"].tolist() == pytest.approx([0, 0, 0.2, -0.2, -0.2, 0.2, *[0] * 11])
    assert torch.equal(read["b"], torch.tensor([1 / 3]))  # too few to be worth it
    assert wire["w"]["~scale"].item() == 0.5
    assert tree.nbytes(wire) == size + 4 + 4


def test_bytes_of_a_stack() -> None:
    reply = {"w": torch.randn(1000), "b": torch.randn(24)}
    assert tree.nbytes(there_and_back("topk=0.1,quantise=4", reply)[0]) == 103 * 4 + 52 + 4
    assert tree.nbytes(there_and_back("topk=0.01,quantise=8", reply)[0]) == 11 * 8  # so few that they stay as they are
    assert tree.nbytes(there_and_back("quantise=8", reply)[0]) == 1024 + 2 * 4
    assert tree.nbytes(there_and_back("topk=0.07", {"w": torch.randn(100)})[0]) == 7 * 8


def test_a_message_is_rounded_and_never_thinned_out() -> None:
    _, read, left = there_and_back("topk=0.1,quantise=8", {"v": torch.arange(20.0)}, "message")
    assert left == {}
    assert torch.allclose(read["v"], torch.arange(20.0), atol=19 / 254 + 1e-6)


def test_nothing_is_done_without_processors() -> None:
    reply = reply_of(0)
    wire, left = Processors().outgoing(reply, "change", Quiet(), {}, "fit")  # type: ignore[arg-type]
    assert wire is reply
    assert left == {}
    assert Processors().incoming(reply) is reply
    assert Processors.parse("").left(reply, "change") == {}
    assert Processors.parse("clip=1").left(reply, "change") == {}
    for text in STACKS:
        assert Processors.parse(text).outgoing({}, "change", Quiet(), {}, "fit") == ({}, {})  # type: ignore[arg-type]
        assert Processors.parse(text).incoming({}) == {}


# over rounds


@given(seed=st.integers(0, 10**6), text=st.sampled_from(STACKS[1:5]), answers=st.sampled_from(["change", "averaged"]))
@settings(max_examples=20, deadline=None)
def test_what_arrived_and_what_is_left_add_up_to_what_was_said(seed: int, text: str, answers: Answers) -> None:
    replies = [reply_of(seed + k, torch.float64) for k in range(6)]
    left, read = Processors.parse(text).left(replies[0], answers), []
    for reply in replies:
        _, plain, left = there_and_back(text, reply, answers, left)
        read.append(plain)
    arrived, said = (tree.map(lambda *rows: sum(rows), *some) for some in (read, replies))
    assert torch.allclose(tree.ravel(tree.add(arrived, left)), tree.ravel(said), atol=1e-6)


def test_feedback_knows_what_the_server_clips() -> None:
    """What is left may make a reply longer than the bound; the server then shortens it, and the rest is not lost."""
    left, arrived = Processors.parse("clip=1,topk=0.5").left({"w": torch.zeros(4)}, "change"), torch.zeros(4)
    for _ in range(20):
        _, read, left = there_and_back("clip=1,topk=0.5", {"w": torch.full((4,), 0.5)}, left=left)
        arrived = arrived + read["w"]
        assert float(read["w"].norm()) <= 1 + 1e-6
    assert torch.allclose(arrived + left["w"], torch.full((4,), 10.0), atol=1e-4)


@given(
    numbers=st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=40),
    text=st.sampled_from(STACKS),
    answers=st.sampled_from(["message", "change", "averaged"]),
)
@settings(max_examples=150, deadline=None)
def test_nonsense_stays_nonsense_and_is_not_kept(numbers: list[float], text: str, answers: Answers) -> None:
    reply = {"w": torch.tensor(numbers), "b": torch.ones(3)}
    wire, read, left = there_and_back(text, reply, answers)
    assert tree.flatten(read).keys() == tree.flatten(reply).keys()
    assert all(read[name].shape == reply[name].shape and read[name].dtype == reply[name].dtype for name in reply)
    assert bool(tree.finite(left))
    if not bool(tree.finite(reply)) and "noise" in text:  # whether it was finite is hidden, too
        assert bool(tree.finite(wire))
        assert bool(tree.finite(read))
    elif not bool(tree.finite(reply)):
        assert not bool(tree.finite(wire))
        assert not bool(tree.finite(read))
        assert not tree.leaves(left) or not tree.ravel(left).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("text", STACKS)
def test_many_clients_at_once_are_what_each_would_be(text: str, dtype: torch.dtype) -> None:
    processors, replies = Processors.parse(text), [reply_of(seed, dtype) for seed in range(3)]
    before = processors.left(replies[0], "change")

    def one(reply: Tree, seed: Tensor) -> tuple[Tree, Tree]:
        return processors.outgoing(reply, "change", Quiet(seed), before, "fit")  # type: ignore[arg-type]

    rows, left = vmap(one)(tree.stack(replies), torch.arange(3))
    alone = [one(reply, torch.tensor(seed)) for seed, reply in enumerate(replies)]
    tolerance = 1e-3 if dtype == torch.float16 else 1e-5
    plain = processors.incoming(rows)
    for k, (wire, kept) in enumerate(alone):
        expected = processors.incoming(tree.map(lambda leaf: leaf[None], wire))
        assert tree.nbytes(wire) == tree.nbytes(rows) // 3
        assert torch.allclose(tree.ravel(tree.row(plain, k)), tree.ravel(expected), atol=tolerance)
        assert not kept or torch.allclose(tree.ravel(tree.row(left, k)), tree.ravel(kept), atol=tolerance)
    assert {leaf.dtype for leaf in tree.leaves(plain)} == {dtype}


def test_places_that_no_number_has_are_silence() -> None:
    wire, _, _ = there_and_back("topk=0.2", reply_of(0))
    rows = tree.stack([wire, wire, wire])
    rows["~places"][1, 0], rows["~places"][2, 0] = -1, 40
    assert tree.finite(Processors.parse("topk=0.2").incoming(rows), rows=True).tolist() == [True, False, False]


# privacy


def test_noise_has_the_size_that_was_promised() -> None:
    class Loud(Quiet):
        def noise(self, size: int, purpose: str = "noise", dtype: torch.dtype | None = None) -> Tensor:
            return torch.randn(size, dtype=dtype, generator=torch.Generator().manual_seed(1))

    processors, reply = Processors.parse("clip=0.5,noise=3"), {"w": torch.full((200, 100), 1.0), "b": torch.zeros(10)}
    wire, _ = processors.outgoing(reply, "change", Loud(), {}, "fit")  # type: ignore[arg-type]
    noise = wire["w"] - 0.5 / math.sqrt(20_000)
    assert float(noise.std()) == pytest.approx(3 * 2 * 0.5, rel=0.02)
    assert abs(float(noise.mean())) < 0.1
    read = processors.incoming(tree.map(lambda leaf: leaf[None], wire))
    assert torch.equal(read["w"][0], wire["w"])  # an honest reply is not clipped again
    central = Processors.parse("clip=0.5,central=3").central
    assert central is not None
    total = central.add({"w": torch.zeros(20_000)}, lambda size, dtype: Loud().noise(size, "", dtype))
    assert float(total["w"].std()) == pytest.approx(3, rel=0.02)


def test_the_promise_of_an_answer() -> None:
    promise = Processors.parse("clip=1,noise=2,quantise=8", delta=1e-6, budget=9.0).promise
    assert promise is not None
    assert (promise.sigma, promise.delta, promise.budget) == (2.0, 1e-6, 9.0)
    assert promise.epsilon == pytest.approx(privacy.epsilon(0.25, 1e-6))
    assert Processors.parse("clip=1,central=2").promise is not None
    assert Processors.parse("clip=1,topk=0.1").promise is None
    with pytest.raises(SettingError, match=r"--privacy-budget must be 0, or at least the 1.99309 that one answer"):
        Processors.parse("clip=1,noise=2", budget=1.0)


@pytest.mark.parametrize("text", ["clip=1,noise=1", "clip=1,central=1"])
@pytest.mark.parametrize("leaf", [torch.tensor([1]), torch.tensor([True]), torch.tensor([1j])])
def test_noise_refuses_what_it_cannot_cover(text: str, leaf: Tensor) -> None:
    with pytest.raises(SettingError, match=r"'counts/seen' of a reply is \w+, and noise covers floating-point"):
        there_and_back(text, {"w": torch.ones(3), "counts": {"seen": leaf}})


def test_a_method_that_cannot_keep_the_promise_is_refused() -> None:
    central, local = Processors.parse("clip=1,central=1"), Processors.parse("clip=1,noise=1")
    central.check("FedAvg", {"fit": "averaged"}, ())
    local.check("PeFLL", {"fit": "change", "describe": "message"}, ())
    Processors.parse("topk=0.1").check("ODPFLHN", {"fit": "change"}, ["request"])
    with pytest.raises(SettingError, match="the server of PeFLL reads the replies to 'describe', 'fit' one by one"):
        central.check("PeFLL", {"fit": "change", "describe": "message", "backprop": "averaged"}, ())
    for processors in (central, local):
        with pytest.raises(SettingError, match="ODPFLHN's own noise, on 'request', are two promises"):
            processors.check("ODPFLHN", {"fit": "averaged"}, ["request"])


# in a training


def training(name: str, engine: str, text: str, budget: float = 0.0, seeds: int = 1, **plan: Any) -> Training:
    """In double precision, in which what engines do differently is far too small to be rounded to another code."""
    method = toys.method(name, torch.float64, processors=Processors.parse(text, budget=budget))
    federations, chosen = toys.federations(seeds), {"rounds": 3, "cohort": 4, "evaluate_every": 3} | plan
    return Training(method, federations, toys.engine(engine, method, federations), Plan(**chosen))


@cache
def after(name: str, engine: str, text: str) -> tuple[Tree, list[Any], Any]:
    """What servers and clients have after some rounds, what the ledger says, and what was given away."""
    going = training(name, engine, text)
    for _ in range(3):
        going.advance()
    lines = [(line["step"], line["asked"], line["answered"], line["up"]) for line in map(_line, going.ledgers[0])]
    kept = {} if engine == "flower" else {"kept": going.engine.memories(0)}
    return {"state": going.states[0]} | kept, lines, going.tally.report()


def _line(exchange: Any) -> dict[str, Any]:
    line: dict[str, Any] = exchange.line()
    return line


@pytest.mark.parametrize("engine", ["chunked", "loop", "flower"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fedavg", "clip=0.1"),
        ("fedavg", "clip=0.1,central=0.5,quantise=8"),
        ("fedavg", "topk=0.1,quantise=4"),
        ("pefll", "clip=0.5,noise=0.1"),
        ("pefll", "topk=0.05"),
        ("pefll", "quantise=8"),
    ],
)
def test_every_engine_gives_the_same(name: str, text: str, engine: str) -> None:
    expected, lines, told = after(name, "vector", text)
    found, counted, released = after(name, engine, text)
    expected = expected if "kept" in found else {"state": expected["state"]}
    assert toys.gap(found, expected) < 1e-5
    assert (counted, released) == (lines, told)
    assert toys.gap(expected["state"], after(name, "vector", "")[0]["state"]) > 1e-4, "it does something"


def test_the_ledger_counts_the_bytes_that_travel() -> None:
    plain, sparse = (
        dict.fromkeys(()) | {line[0]: line[3] // line[2] for line in after("pefll", "vector", text)[1]}
        for text in ("", "topk=0.05")
    )
    method = toys.method("pefll", torch.float64)
    descriptor, model = method.descriptor or max(2, 1 + method.clients // 4), method.task.model.size
    assert plain["describe"] == sparse["describe"] == 8 * descriptor
    assert plain["fit"] == 8 * model
    assert sparse["fit"] == (8 + 4) * math.ceil(0.05 * model)


def test_runs_with_feedback_can_be_resumed() -> None:
    whole, first, second = (training("pefll", "vector", "topk=0.1,quantise=8", seeds=2, rounds=4) for _ in range(3))
    for _ in range(4):
        whole.advance()
    first.advance()
    first.advance()
    restore(second, *snapshot(first))
    for _ in range(2):
        second.advance()
    assert all(toys.same(a, b) for a, b in zip(whole.states, second.states, strict=True))
    assert toys.same(whole.engine.memories(1), second.engine.memories(1))


@pytest.mark.parametrize("text", ["clip=1,noise=2", "clip=1,central=2"])
def test_what_members_give_away_in_training_is_counted(text: str) -> None:
    going = training("fedavg", "vector", text, rounds=4, cohort=3)
    told = going.result(going.complete())["privacy"]
    took_part = torch.cat([going.cohorts(0, number) for number in range(4)]).bincount(minlength=10)
    assert going.tally.released[0].answers.tolist() == took_part.tolist(), "neither evaluations nor latecomers cost any"
    worst = int(took_part.max())
    assert told["worst"]["answers"] == worst
    assert told["worst"]["epsilon"] == pytest.approx(privacy.epsilon(worst / 4, 1e-5), rel=1e-5)
    assert told["worst_by_dp_accounting"] == pytest.approx(told["worst"]["epsilon"], rel=0.01)
    assert told["covers"].startswith("all of a client's data")
    assert ("not from the server" in told["covers"]) == ("central" in text)
    assert "personalisation" in told["does_not_cover"]
    assert "latecomers" not in told, "of whom nothing is promised"


def test_a_client_that_has_spent_its_budget_is_silent() -> None:
    budget = privacy.epsilon(2 / 4, 1e-5)  # of two answers
    going = training("fedavg", "vector", "clip=1,noise=2", budget, rounds=5, cohort=7)
    told = going.result(going.complete())["privacy"]
    assert going.tally.released[0].answers.tolist() == [2] * 7 + [0] * 3
    assert (told["refused"], told["budget"]) == (3 * 7, budget)


def test_a_real_client_counts_by_itself() -> None:
    going = training("pefll", "flower", "clip=1,noise=2", privacy.epsilon(4 / 4, 1e-5), cohort=7)
    for _ in range(3):
        going.advance()
    grid = going.engine.grid
    kept = ledger(grid.context(grid.node(0, 3)).state)
    assert [entry.round for entry in kept.entries] == [0, 0, 0, 1], "three steps a round, and four answers fit"
    assert {entry.sigma for entry in kept.entries} == {2.0}


def test_the_servers_noise_needs_means() -> None:
    """A method that says that it only averages, and reads replies one by one, would give away more than is counted."""
    method = toys.method("fedavg", processors=Processors.parse("clip=1,central=1"))
    engine, rules = toys.engine("vector", method, [toys.federation()]), Rules(processors=method.processors)
    clients = Clients(Tally(engine, [method], [toys.federation()]), toys.cohort(0), 0, rules=rules)
    with pytest.raises(ProtocolError, match="'fit' is to be averaged with noise"):
        clients.run(method.fit, shared=toys.start(method))


def test_methods_that_cannot_are_refused() -> None:
    with pytest.raises(SettingError, match="the server of PeFLL reads"):
        toys.method("pefll", processors=Processors.parse("clip=1,central=1"))
    with pytest.raises(SettingError, match="ODPFLHN's own noise"):
        toys.method("odpflhn-private", processors=Processors.parse("clip=1,noise=1"))
    with pytest.raises(SettingError, match="models come in several sizes; leave --budgets out"):
        toys.method("pfedhn", sizes=("S", "L"), processors=Processors.parse("topk=0.1"))
    with pytest.raises(SettingError, match="adds noise to sums; --average median is none"):
        training("fedavg", "vector", "clip=1,central=1", average="median")


@pytest.mark.parametrize("name", methods.names())
def test_every_method_can_be_compressed(name: str) -> None:
    going = training(name, "loop", "topk=0.1,quantise=8", rounds=2)
    going.advance()
    going.advance()
    assert all(bool(exchange.answered.all()) for exchange in going.ledgers[0])
    assert bool(tree.finite(going.states[0]))


# the setting


def test_stacks_compare_and_say_what_they_are() -> None:
    for text in [*STACKS, "", "clip=2,central=0.123456789,quantise=8"]:
        assert str(Processors.parse(text)) == text
        assert Processors.parse(text) == Processors.parse(f" {text} ")
    assert len({Processors.parse(text) for text in STACKS * 2}) == len(STACKS)
    assert Processors.parse("") == Processors()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topk=0.1,clip=1", "in the order clip, noise, central, topk, quantise"),
        ("quantise=8,topk=0.1", "in the order"),
        ("clip=1,topk=0.1,noise=1", "noise comes before what loses something"),
        ("clip=1,clip=2", "each processor once"),
        ("noise=1", "needs clip= first"),
        ("central=1,topk=0.1", "needs clip= first"),
        ("clip=1,noise=1,central=1", "and not both"),
        ("clop=1", "no processor 'clop'; did you mean 'clip'"),
        ("clip", "clip must be a number from 1e-09 to 1e\\+09; got ''"),
        ("clip=0", "clip must be"),
        ("clip=nan", "clip must be"),
        ("clip=1,noise=inf", "noise must be"),
        ("topk=1", "topk must be a number from 1e-09 to 0.999; got '1'"),
        ("topk=1%", "topk must be"),
        ("quantise=6", "quantise must be 8 or 4 bits; got '6'"),
        ("clip=1,", "no processor ''"),
    ],
)
def test_a_stack_that_makes_no_sense_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says) as raised:
        Processors.parse(text)
    assert str(raised.value).count("\n") == 0


def test_names_of_ours_are_not_a_methods() -> None:
    with pytest.raises(ProtocolError, match="'~values'"):
        there_and_back("quantise=8", {"~values": torch.ones(3)})
    assert list(floats({"a": torch.ones(1), "b": torch.tensor([1])})) == ["a"]
