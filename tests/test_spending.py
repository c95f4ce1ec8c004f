"""What a client has given away: its own ledger on a real client, a training's tally in a simulation."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from flwr.common.serde import context_from_proto, context_to_proto

import letters
import toys
from console import Command
from latecomer import privacy, tree
from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.engines.flower.app import client_app
from latecomer.engines.flower.grid import LocalGrid
from latecomer.engines.flower.spending import LEDGER, ledger
from latecomer.method import asked_in
from latecomer.privacy import Release
from latecomer.runs.run import restore, snapshot
from latecomer.tally import Tally
from latecomer.task import Home
from latecomer.train import Plan, Training
from latecomer.tree import Tree

WATCHED = dataclasses.replace(toys.federation(), validators=1)  # 7 members, a validator, 2 latecomers


def method(**settings: Any) -> Any:
    return toys.method("odpflhn-private", **settings)


def answers(epsilon: float, budget: float) -> int:
    """How often a client can answer."""
    loss, count = privacy.sigma(epsilon, 1e-5) ** -2, 0
    while privacy.epsilon((count + 1) * loss, 1e-5) <= budget * (1 + 1e-9):
        count += 1
    return count


# on a real client


class Server:
    """Sends what it likes, and says of it what it likes."""

    def __init__(self, asked: Any, federations: list[Federation]) -> None:
        self.method, self.grid = asked, LocalGrid(client_app(asked, federations))
        self.encoder = toys.start(asked)["learned"]["encoder"]

    def ask(
        self, step: str = "request", number: int = -1, run: int = 0, scratch: int | None = None, **sent: Any
    ) -> str:
        """The reason why the client did not answer; empty: it did."""
        sent = sent or {"encoder": self.encoder}
        content = letters.request(self.method, step, sent, number, run=run, scratch=scratch)
        message = Message(content, dst_node_id=self.grid.node(0, 3), message_type=f"query.{step}")
        (reply,) = self.grid.send_and_receive([message])
        return str(reply.error.reason) if reply.has_error() else ""

    @property
    def context(self) -> Context:
        return self.grid.context(self.grid.node(0, 3))


def test_no_lie_about_round_evaluation_or_run_gets_another_answer() -> None:
    asked, most = method(epsilon_budget=2.5), answers(1.0, 2.5)
    assert most == 5
    server = Server(asked, toys.federations(2))
    lies: list[dict[str, Any]] = [
        {},
        {"number": -7},
        {"number": 3, "scratch": 3},
        {"number": -2, "run": 1},
        {"scratch": 9, "run": 1},
    ]
    assert [server.ask(**lie) for lie in lies] == [""] * most
    for lie in lies:
        reason = server.ask(**lie)
        assert reason.startswith("BudgetSpent: This client has spent epsilon 2.4")
        assert reason.endswith("of its budget of 2.5 in 5 answers, and another one does not fit; it does not answer.")
    kept = ledger(server.context.state)
    assert len(kept.entries) == most, "a refusal costs nothing"
    assert [entry.round for entry in kept.entries] == [-1, -7, 3, -2, -1]
    assert {(entry.epsilon, entry.delta) for entry in kept.entries} == {(1.0, 1e-5)}
    assert kept.epsilon(1e-5) <= 2.5
    assert all("run" in entry.asked_by and entry.time > 1e9 for entry in kept.entries)


def test_the_ledger_survives_with_the_context() -> None:
    server = Server(method(), [toys.federation()])
    server.ask()
    server.ask(number=-5)
    back = context_from_proto(context_to_proto(server.context))
    assert ledger(back.state) == ledger(server.context.state)
    assert len(ledger(back.state).entries) == 2


def test_an_answer_that_fails_on_its_way_is_counted_too() -> None:
    """Weights that make the reply nonsense tell something by that; that others do not fit is the server's own loss."""
    server = Server(method(epsilon_budget=1.5), [toys.federation()])
    most = answers(1.0, 1.5)
    assert most >= 2
    server.ask(encoder=server.encoder | {"psi": tree.map(lambda leaf: leaf * torch.nan, server.encoder["psi"])})
    assert server.ask(number=-2, encoder={"phi": server.encoder["phi"]})
    assert len(ledger(server.context.state).entries) == 2


def test_steps_that_release_nothing_write_nothing() -> None:
    server = Server(method(epsilon_budget=1.0), [toys.federation()])
    assert server.ask("describe", number=0) == ""
    assert LEDGER not in server.context.state
    free = Server(method(epsilon=0.0), [toys.federation()])
    assert free.ask() == ""
    assert LEDGER not in free.context.state


# in a simulation


def training(engine: str = "vector", federation: Federation = WATCHED, plan: Any = None, **settings: Any) -> Training:
    asked = method(**settings)
    chosen = {"rounds": 4, "cohort": 3, "evaluate_every": 2} | (plan or {})
    return Training(asked, [federation], toys.engine(engine, asked, [federation]), Plan(**chosen))


@pytest.mark.parametrize("engine", toys.ENGINES)
@pytest.mark.parametrize("watch", [False, True])
def test_every_evaluation_counts_for_whom_it_asks(engine: str, watch: bool) -> None:
    going = training(engine, plan={"watch_unseen": watch})
    scores = going.complete()
    assert going.tally.released[0].answers.tolist() == [2] * 8 + [3 if watch else 1] * 2
    found = going.result(scores)["privacy"]
    late, worst = found["latecomers"], found["worst"]
    assert (worst["answers"], worst["role"]) == ((3, "latecomer") if watch else (2, "member"))
    assert late["answers"] == (3 if watch else 1)
    loss = privacy.sigma(1.0, 1e-5) ** -2
    for one in (late, worst):
        assert one["epsilon"] == pytest.approx(privacy.epsilon(one["answers"] * loss, 1e-5), rel=1e-5)


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_whoever_has_spent_its_budget_is_silent(engine: str) -> None:
    """Two answers fit; members and the validator are asked three times."""
    assert answers(1.0, 1.5) == 2
    going = training(engine, plan={"evaluate_every": 1, "rounds": 3}, epsilon_budget=1.5)
    told = going.result(going.complete())["privacy"]
    assert going.tally.released[0].answers.tolist() == [2] * 8 + [1] * 2
    assert (told["refused"], told["budget"]) == (8, 1.5)
    assert told["worst"]["epsilon"] <= 1.5
    clients = Clients(going.tally, torch.tensor([1, 9]), -1, scratch=9)
    replies = clients.run(going.methods[0].request, shared={"encoder": going.states[0]["learned"]["encoder"]})
    assert replies.heard.tolist() == [False, True]
    assert replies.each["v"][0].abs().max() == 0


def test_who_is_silent_anyway_spends_nothing() -> None:
    going = training()
    faults = lambda ids, number, step: ids == 2  # noqa: E731
    clients = Clients(going.tally, torch.tensor([2, 4]), -1, scratch=1, faults=faults)
    clients.run(going.methods[0].request, shared={"encoder": going.states[0]["learned"]["encoder"]})
    assert going.tally.released[0].answers.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert int(going.tally.released[0].refused) == 0


@pytest.mark.parametrize("engine", ["vector", "flower"])
def test_the_tally_goes_on_after_a_checkpoint(engine: str) -> None:
    whole = training(engine, epsilon_budget=1.5)
    expected = whole.result(whole.complete())
    first = training(engine, epsilon_budget=1.5)
    for _ in first.go():
        if first.round == 2:
            break
    kept = snapshot(first)
    second = training(engine, epsilon_budget=1.5)
    restore(second, *kept)
    assert second.tally.report() == first.tally.report()
    assert second.result(second.complete())["privacy"] == expected["privacy"]
    third = training(engine, epsilon_budget=1.5)
    restore(third, {"0": tree.without(kept[0]["0"], ["released"])}, kept[1])  # as it was before releases were counted
    assert third.tally.report() == {}


def test_seeds_are_counted_apart_and_the_worst_is_told() -> None:
    asked, several = method(), toys.federations(2)
    going = Training(asked, several, toys.engine("vector", asked, several), Plan(rounds=1, cohort=3))
    going.complete()
    clients = Clients(going.tally, torch.tensor([8]), -1, run_index=1, scratch=9)
    clients.run(asked.request, shared={"encoder": going.states[1]["learned"]["encoder"]})
    assert [int(run.answers[8]) for run in going.tally.released] == [1, 2]
    worst = going.tally.report()["worst"]
    assert (worst["client"], worst["seed"], worst["answers"]) == (8, several[1].seed, 2)
    assert going.tally.report(slice(0, 1))["worst"]["answers"] == 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Talkative(toys.Idle):
    """Releases something in every round."""

    @asked_in("round")
    def hum(self, home: Home) -> Tree:
        return {"number": home.noise(1, "hum")}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return state | {"sum": clients.run(self.hum).sum()["number"]}

    def init(self, generator: torch.Generator) -> Tree:
        return {"sum": torch.zeros(1)}

    def release(self, step: str) -> Release | None:
        return Release.gaussian(1.0, 1e-5) if step == "hum" else None


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_rounds_that_release_are_counted(engine: str) -> None:
    """Also by an engine that would replay them: a round that is counted is done as it is written."""
    asked = Talkative(task=toys.task(), clients=10, members=7)
    counted = Training(
        asked, [WATCHED], toys.engine(engine, asked, [WATCHED]), Plan(rounds=5, cohort=7, evaluate_every=5)
    )
    counted.complete()
    assert counted.tally.released[0].answers.tolist() == [5] * 7 + [0] * 3


def test_what_releases_nothing_passes_through() -> None:
    """The very asks, and nothing in a checkpoint."""
    asked = toys.method("fedavg")
    spy = toys.Spy(toys.engine("vector", asked, [WATCHED]))
    tally = Tally(spy, [asked], [WATCHED])
    clients = Clients(tally, torch.arange(3), 0)
    seen: list[Any] = []
    inner = spy.exchange
    spy.exchange = lambda step, asks: (seen.extend(asks), inner(step, asks))[1]  # type: ignore[method-assign]
    asked.round(toys.start(asked), clients)
    assert [ask is one for ask, (_, one) in zip(seen, spy.asks, strict=True)] == [True]
    assert tally.snapshot(0) == {}
    assert tally.report() == {}


def test_the_command_line_says_who_was_refused(command: Command, tmp_path: Path) -> None:
    words = [
        "--clients",
        "10",
        "--unseen",
        "0.2",
        "--rounds",
        "3",
        "--cohort",
        "2",
        "--batch",
        "8",
        "--engine",
        "vector",
    ]
    words += ["--epsilon", "2", "--pool", "mean", "--bound", "1", "--evaluate-every", "1", "--epsilon-budget", "2"]
    done = command("run", "odpflhn", *words, "--out", tmp_path, "--name", "x")
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "x/result.json").read_text())["privacy"]
    assert (told["refused"], told["worst"]["answers"], told["latecomers"]["answers"]) == (16, 1, 1)
    assert "16 answers were refused, as --epsilon-budget 2 was spent" in " ".join(done.err.split())
    assert "a member spent at most 2 in 1 answer, a latecomer spent at most 2 in 1 answer" in " ".join(done.out.split())
