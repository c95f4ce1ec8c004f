"""Faults: whatever goes wrong with a reply is silence, alike on every engine, and the ledger names the client."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from flwr.app import Error, Message, RecordDict
from torch import Tensor

import faults as kills
import hostile
import toys
from console import Command
from latecomer import tree
from latecomer.clients import Clients, Exchange
from latecomer.engines.flower.grid import LocalGrid
from latecomer.engines.flower.wire import pack, unpack
from latecomer.faults import DROP, FLIP, HUGE, KINDS, NAN, SLOW, injected
from latecomer.method import Method
from latecomer.plan import Average
from latecomer.replies import Rules
from latecomer.train import Plan, Training
from latecomer.tree import Tree

METHODS = ["fedavg", "pefll", "ditto"]  # one exchange; three; and clients that keep something
ALL = "drop=0.2,nan=0.1,slow=0.1,huge=0.1,flip=0.1"
IDS, BAD = torch.arange(toys.MEMBERS), 3
SURVIVORS = IDS[IDS != BAD]


def lines(ledger: Iterable[Exchange]) -> list[dict[str, Any]]:
    """The ledger but for the time."""
    return [{key: value for key, value in exchange.line().items() if key != "seconds"} for exchange in ledger]


def only(kind: int) -> Callable[[Tensor, int, str], Tensor]:
    """One client has this fault at every step of the first round."""
    return lambda ids, number, step: (ids == BAD).long() * kind * (number == 0)


# faults that are injected


@pytest.mark.parametrize("name", METHODS)
def test_injected_faults_are_the_same_on_every_engine(name: str) -> None:
    found = {}
    for engine in toys.ENGINES:
        method = toys.method(name, torch.float64)
        made = toys.engine(engine, method, [toys.federation()])
        state, ledger = toys.rounds(method, made, 3, faults=injected(ALL, 5))
        found[engine] = toys.everything(state, made), lines(ledger)
    assert any("unheard" in line for line in found["loop"][1])
    for engine in toys.ENGINES[1:]:
        assert toys.gap(found[engine][0], found["vector"][0]) < 1e-9, engine
        assert found[engine][1] == found["vector"][1], engine


def test_faults_are_drawn_by_seed_round_client_and_step_at_the_rates_that_were_asked_for() -> None:
    faults = injected(ALL, 5)
    assert faults is not None
    ids = torch.arange(20_000)
    drawn = faults(ids, 0, "fit")
    for kind, share in ((0, 0.4), (DROP, 0.2), (NAN, 0.1), (SLOW, 0.1), (HUGE, 0.1), (FLIP, 0.1)):
        assert abs(float((drawn == kind).double().mean()) - share) < 0.01, [*KINDS][kind]
    assert torch.equal(drawn[7000:], faults(ids[7000:], 0, "fit"))
    others = [faults(ids, 1, "fit"), faults(ids, 0, "describe"), injected(ALL, 6)(ids, 0, "fit")]  # type: ignore[misc]
    assert all(0.2 < float((drawn == other).double().mean()) < 0.3 for other in others), "as independent draws agree"


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_what_each_fault_does_to_a_mean(engine: str) -> None:
    method = toys.method("fedavg", torch.float64)
    start = toys.start(method)

    def after(ids: Tensor, kind: int = 0) -> tuple[Tree, dict[str, Any]]:
        made = toys.engine(engine, method, [toys.federation()])
        clients = Clients(made, ids, 0, faults=only(kind))
        return tree.sub(method.round(start, clients)["params"], start["params"]), lines(clients.ledger)[0]

    whole, told = after(IDS)
    assert (told["asked"], told["answered"]) == (7, 7)
    assert "unheard" not in told
    survivors, alone = after(SURVIVORS)[0], after(IDS[IDS == BAD])[0]
    share = toys.TRAIN[BAD] / sum(toys.TRAIN[: toys.MEMBERS])
    expected = {DROP: survivors, NAN: survivors, SLOW: survivors}
    expected |= {kind: tree.add(whole, tree.scale(alone, share * more)) for kind, more in ((HUGE, 99), (FLIP, -2))}
    for kind, change in expected.items():
        found, told = after(IDS, kind)
        assert toys.gap(found, change) < 1e-9, kind
        assert told["asked"] == 7 - (kind == DROP)
        assert told.get("unheard") == ([BAD] if kind in (NAN, SLOW) else None)


# faults that happen


class Faulty(LocalGrid):
    """A grid on which one client's answers suffer a fault in the first round."""

    def __init__(self, inner: LocalGrid, fault: str) -> None:
        super().__init__(inner.app)
        self.fault, self.late = fault, []  # type: ignore[var-annotated]
        self.rounds: Counter[str] = Counter()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        arrived, self.late = self.late, []
        yield from arrived  # what was asked for before
        for reply in super().send_and_receive(messages):
            if reply.metadata.src_node_id == self.node(0, BAD) and not self.rounds[reply.metadata.message_type]:
                yield from self.suffered(reply)
            else:
                yield reply
        self.rounds.update({message.metadata.message_type for message in messages})

    def suffered(self, reply: Message) -> Iterator[Message]:
        if self.fault == "late":
            self.late.append(reply)
        elif self.fault == "twice":
            yield from (reply, reply)
        elif self.fault != "never":
            yield self.spoilt(reply)

    def spoilt(self, reply: Message) -> Message:
        if self.fault == "raises":
            reply.__dict__["_content"] = None
            reply.__dict__["_error"] = Error(2, "ValueError: broken")
            return reply
        change: dict[str, Callable[[Tensor], Tensor]] = {
            "nan": lambda leaf: leaf * torch.nan,
            "shape": lambda leaf: torch.cat([leaf[None], leaf[None]]),
        }
        reply.content = changed(reply.content, change[self.fault])
        return reply


def changed(content: RecordDict, change: Callable[[Tensor], Tensor]) -> RecordDict:
    """Another answer in the place of one."""
    return RecordDict({**content, "body": pack(tree.map(change, unpack(content["body"])))})


def two_rounds(name: str, engine: Any, method: Method, faults: Any = None, ids: Tensor = IDS) -> tuple[Tree, Any]:
    state, ledger = toys.start(method), []
    for number in range(2):
        cohort = ids if number == 0 else IDS
        state = method.round(state, Clients(engine, cohort, number, faults=faults, ledger=ledger))
    return state, lines(ledger)


@pytest.mark.parametrize("fault", ["raises", "nan", "shape", "late", "never"])
@pytest.mark.parametrize("name", METHODS)
def test_faults_that_happen_are_what_injected_ones_are(name: str, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    """A client of a real federation fails in the first round; in the second all are well, and a late answer to the
    first is no answer to the second. A simulation in which that client is slow gives the same, and so do the
    survivors alone."""
    method = toys.method(name, torch.float64)
    engine = toys.engine("flower", method, [toys.federation()])
    engine.grid = Faulty(engine.grid, fault)
    found, told = two_rounds(name, engine, method)
    simulated = toys.engine("vector", method, [toys.federation()])
    expected, ledger = two_rounds(name, simulated, method, only(SLOW))
    assert toys.gap(toys.everything(found, engine), toys.everything(expected, simulated)) < 1e-9
    assert told == ledger
    assert next(line.get("unheard") for line in told if line["round"] == 0) == [BAD]
    assert not any("unheard" in line for line in told if line["round"] == 1)
    if fault not in ("late", "never"):
        assert f"Client {BAD} counts as silent" in caplog.text


@pytest.mark.parametrize("name", METHODS)
def test_an_answer_that_comes_twice_counts_once(name: str) -> None:
    method = toys.method(name)
    plain, doubled = (toys.engine("flower", method, [toys.federation()]) for _ in range(2))
    doubled.grid = Faulty(doubled.grid, "twice")
    (expected, ledger), (found, told) = (two_rounds(name, engine, method) for engine in (plain, doubled))
    assert toys.same(toys.everything(found, doubled), toys.everything(expected, plain))
    assert told == ledger


# too few replies


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_a_round_with_too_few_replies_is_skipped_and_said(engine: str) -> None:
    method = toys.method("pefll", torch.float64)
    made = toys.engine(engine, method, [toys.federation()])
    plan = Plan(rounds=6, cohort=4, evaluate_every=6, faults="drop=0.15,nan=0.1", min_replies=3)
    training, states = Training(method, [toys.federation()], made, plan), []
    for _ in range(plan.rounds):
        before = training.states[0]
        training.advance()
        states.append(toys.same(before, training.states[0]))
    told = training.drain()
    skipped = {line["round"] for line in told if line.get("skipped")}
    assert 0 < len(skipped) < plan.rounds
    assert [number in skipped for number in range(plan.rounds)] == states
    assert training.skipped == [len(skipped)]
    for number in range(plan.rounds):
        answered = [line["answered"] for line in told if line["round"] == number]
        assert [count < plan.min_replies for count in answered] == [False] * (len(answered) - 1) + [number in skipped]


def test_skipped_rounds_are_said_at_the_end(command: Command, tmp_path: Path) -> None:
    words = ["--clients=10", "--rounds=4", "--cohort=4", "--faults=drop=0.5", "--min-replies=3", f"--out={tmp_path}"]
    done = command("run", "fedavg", *words, "--name=x")
    assert done.code == 0
    (skipped,) = json.loads((tmp_path / "x" / "result.json").read_text())["skipped_rounds"]
    assert skipped > 0
    assert f"{skipped} rounds had fewer than 3 replies (--min-replies) and were skipped." in " ".join(done.err.split())


def test_more_replies_than_clients_are_refused(command: Command) -> None:
    done = command("run", "fedavg", "--clients=10", "--cohort=4", "--min-replies=5")
    assert done.code == 2
    assert "--min-replies" in done.err


# hostile clients, and servers that die


@pytest.mark.parametrize("kind", get_args(Average))
def test_every_engine_averages_alike(kind: Average) -> None:
    """With huge and lost answers among them, and a limit that honest ones exceed, too."""
    found = {}
    for engine in toys.ENGINES:
        method = toys.method("fedavg", torch.float64)
        made = toys.engine(engine, method, [toys.federation()])
        faults = injected("huge=0.2,slow=0.2", 1)
        found[engine] = toys.rounds(method, made, 2, faults=faults, rules=Rules(0.2, kind))[0]
    assert all(toys.gap(found[engine], found["vector"]) < 1e-9 for engine in toys.ENGINES)


def test_a_change_is_scaled_down_to_its_limit_and_a_message_is_left_alone() -> None:
    method = toys.method("pefll", torch.float64)
    spied = toys.Spy(toys.engine("vector", method, [toys.federation()]))
    exchanged: dict[float, dict[str, Tree]] = {}
    for limit in (0.0, 0.1):
        spied.asks.clear()
        method.round(toys.start(method), Clients(spied, IDS, 0, faults=only(HUGE), rules=Rules(limit)))  # type: ignore[arg-type]
        exchanged[limit] = {
            step: ask.collector.replies().each for step, ask in spied.asks if ask.collector.fold is None
        }
    assert toys.same(exchanged[0.0]["describe"], exchanged[0.1]["describe"])
    free, limited = (
        torch.cat([leaf.flatten(1) for leaf in tree.leaves(exchanged[limit]["fit"])], 1) for limit in (0.0, 0.1)
    )
    assert free.norm(dim=1)[BAD] > 5 * free.norm(dim=1).median()
    share = (0.1 / free.norm(dim=1)).clamp(max=1)
    torch.testing.assert_close(limited, free * share[:, None])


def test_a_hostile_client_ruins_the_mean_and_nothing_that_withstands() -> None:
    """One of ten sends a hundred times its update."""
    settings = hostile.SETTINGS["FedAvg, dealt alike"][1] | {"rounds": 8, "epochs": 1, "graphs": False}
    honest = hostile.accuracies("fedavg", settings, hostile=False)[0]
    found = {
        name: hostile.accuracies("fedavg", settings | chosen, hostile=True)[0] for name, chosen in hostile.MEANS.items()
    }
    assert honest > 75
    assert found.pop("mean") < 30
    assert all(accuracy > honest - 10 for accuracy in found.values()), found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_server_that_is_killed_again_and_again_ends_where_it_would_have(tmp_path: Path) -> None:
    settings = {**kills.PEFLL, "faults": kills.FAULTS, "hidden": 20, "steps": 2, "threads": 1}
    count, found = kills.compare_killed(tmp_path, rounds=60, kills=6, settings=settings)
    assert (count >= 3, found) == (True, [])  # the run may end before the last of them
