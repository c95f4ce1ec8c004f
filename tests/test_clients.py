"""The boundary: what is refused, what silence does, what is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import toys
from latecomer import tree
from latecomer.clients import Clients, Exchange, Replies, Sending
from latecomer.engines import make
from latecomer.engines.home import CLIENT
from latecomer.errors import ProtocolError
from latecomer.method import asked_in
from latecomer.ops.sums import weighted_sum
from latecomer.replies import _end_to_end
from latecomer.steps import steps
from latecomer.task import Home
from latecomer.tree import Tree


@dataclass(frozen=True, kw_only=True)
class Echo(toys.Idle):
    """Says what it is sent, in a few ways."""

    @asked_in("round")
    def echo(self, home: Home, *, value: Tensor) -> Tree:
        return {"value": value}

    @asked_in("round")
    def double(self, home: Home, *, value: Tensor, twice: Tensor | None = None) -> Tree:
        return {"value": value + (value if twice is None else twice)}

    @asked_in("round")
    def double_again(self, home: Home, *, value: Tensor, twice: Tensor) -> Tree:
        return self.double(home, value=value, twice=twice)

    @asked_in("round")
    def total(self, home: Home, *, value: Tensor) -> Tree:
        return {"total": value.sum()}

    @asked_in("round")
    def whoami(self, home: Any) -> Tree:
        return {
            "id": home._client[CLIENT],
            "share": home._client[CLIENT] / 10,
            "pair": {"x": home._client[CLIENT] * torch.ones(2)},
        }

    @asked_in("round")
    def whoami_again(self, home: Any) -> Tree:
        return self.whoami(home)

    @asked_in("personalise")
    def settle_in(self, home: Home) -> Tree:
        return {"x": torch.ones(1)}

    def helper(self, home: Home) -> Tree:
        return {}

    @asked_in("round")
    def odd_one_out(self, home: Any) -> Tree:
        """Nonsense from client 3, in one number of two."""
        return {"x": torch.where(home._client[CLIENT] == 3, torch.tensor([1.0, torch.nan]), torch.ones(2))}


METHOD = Echo(task=toys.task(), clients=len(toys.TRAIN), members=toys.MEMBERS)
IDS = torch.tensor([6, 0, 3, 5])


def plain(home: Home) -> Tree:
    return {}


WEIGHTS = [toys.TRAIN[client] for client in IDS.tolist()]


def cohort(engine: str = "vector", **options: Any) -> Clients:
    return Clients(toys.engine(engine, METHOD, [toys.federation()]), IDS, 0, **options)


def silent(*who: int, step: str = "") -> Any:
    return lambda ids, number, now: torch.isin(ids, torch.tensor(who)) & (step in ("", now))


# what is refused


def test_a_name_that_is_missing() -> None:
    with pytest.raises(ProtocolError, match="Step 'echo' needs 'value', which was not sent"):
        cohort().run(METHOD.echo)


def test_a_name_that_the_step_does_not_take() -> None:
    with pytest.raises(ProtocolError, match="Step 'echo' is sent 'valu' but takes only 'value'"):
        cohort().run(METHOD.echo, shared={"value": torch.ones(1), "valu": torch.ones(1)})


def test_a_name_both_shared_and_each() -> None:
    with pytest.raises(ProtocolError, match="is sent 'value' both as shared and as each"):
        cohort().run(METHOD.echo, shared={"value": torch.ones(1)}, each={"value": torch.ones(4)})


def test_recall_of_what_was_not_sent() -> None:
    clients = cohort()
    clients.run(METHOD.echo, shared={"value": torch.ones(1)})
    with pytest.raises(ProtocolError, match="recalls 'twice', but this round sent only 'value'"):
        clients.run(METHOD.double, shared={"value": torch.ones(1)}, recall=["twice"])


def test_recall_of_what_was_sent_to_each() -> None:
    """Only what was shared can be recalled: the server would have to remember every client's own."""
    clients = cohort()
    clients.run(METHOD.echo, each={"value": torch.ones(4)})
    with pytest.raises(ProtocolError, match="sent only nothing"):
        clients.run(METHOD.total, recall=["value"])


@pytest.mark.parametrize("rows", [torch.ones(3), torch.ones(5, 2), torch.tensor(1.0)])
def test_rows_that_do_not_fit_the_cohort(rows: Tensor) -> None:
    with pytest.raises(ProtocolError, match=r"'value' is sent to each of 4 clients but has shape"):
        cohort().run(METHOD.echo, each={"value": rows})


def test_nothing_is_asked_when_something_is_refused() -> None:
    clients = cohort()
    with pytest.raises(ProtocolError):
        clients.run(METHOD.echo)
    assert clients.ledger == []


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_what_is_no_step(engine: str) -> None:
    with pytest.raises(ProtocolError, match=r"Step 'helper' does not say when it may be asked for; put @asked_in"):
        cohort(engine).run(METHOD.helper)
    with pytest.raises(ProtocolError, match=r"Step 'plain' does not say when"):
        cohort(engine).run(plain)


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_a_step_of_another_phase(engine: str) -> None:
    with pytest.raises(
        ProtocolError, match="'settle_in' is declared for 'personalise' and cannot be asked for in 'rou"
    ):
        cohort(engine).run(METHOD.settle_in)
    for outside in (Clients(cohort(engine).engine, IDS, -1), cohort(engine, scratch=1)):
        assert outside.run(METHOD.settle_in).heard.all()
        with pytest.raises(
            ProtocolError, match="Step 'whoami' is declared for 'round' and cannot be asked for in 'per"
        ):
            outside.run(METHOD.whoami)
    with pytest.raises(ProtocolError, match="Step 'score' is declared for 'score' and cannot be asked for in 'round'"):
        cohort(engine).run(METHOD.score)


def test_a_step_that_overrides_another_inherits_its_declaration() -> None:
    class Shout(Echo):
        def settle_in(self, home: Home) -> Tree:
            return {"x": torch.full((1,), 2.0)}

    method = Shout(task=toys.task(), clients=len(toys.TRAIN), members=toys.MEMBERS)
    clients = Clients(toys.engine("vector", method, [toys.federation()]), IDS, -1)
    assert clients.run(method.settle_in).each["x"].tolist() == [[2.0]] * 4
    assert steps(Shout) == steps(Echo) != []


def test_a_step_is_asked_for_once_a_round() -> None:
    clients = cohort()
    clients.run(METHOD.whoami)
    for same in (clients, clients.only(IDS > 3)):
        with pytest.raises(ProtocolError, match="Step 'whoami' was asked for already; a client answers each step once"):
            same.run(METHOD.whoami)
    others = [clients.only(IDS > 3), clients.only(IDS <= 3)]
    assert all(part.run(METHOD.whoami_again).heard.all() for part in others), "each of them once"


# what comes back


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_only_training_counts_examples(engine: str) -> None:
    outside = Clients(cohort(engine).engine, IDS, -1, scratch=1, faults=silent(3))
    assert outside.run(METHOD.settle_in).weight.tolist() == [1.0, 1.0, 0.0, 1.0]
    assert cohort(engine).run(METHOD.whoami).weight.tolist() == WEIGHTS


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_rows_are_in_the_order_of_the_cohort(engine: str) -> None:
    replies = cohort(engine).run(METHOD.whoami)
    assert replies.each["id"].tolist() == IDS.tolist()
    assert replies.each["id"].dtype == torch.int64
    assert replies.each["pair"]["x"].tolist() == [[client, client] for client in IDS.tolist()]
    assert replies.weight.tolist() == WEIGHTS
    assert replies.heard.all()


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_what_is_shared_and_what_each_is_sent(engine: str) -> None:
    rows = torch.arange(8.0).reshape(4, 2)
    replies = cohort(engine).run(METHOD.double, shared={"twice": torch.tensor([100.0, 200.0])}, each={"value": rows})
    assert torch.equal(replies.each["value"], rows + torch.tensor([100.0, 200.0]))


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_what_was_sent_can_be_recalled_and_does_not_travel_again(engine: str) -> None:
    clients = cohort(engine)
    clients.run(METHOD.echo, shared={"value": torch.tensor([3.0])})
    replies = clients.run(METHOD.double, shared={"twice": torch.tensor([4.0])}, recall=["value"])
    assert replies.each["value"].tolist() == [[7.0]] * 4
    again = clients.run(METHOD.double_again, recall=["value", "twice"])
    assert again.each["value"].tolist() == [[7.0]] * 4
    assert [exchange.line()["down"] for exchange in clients.ledger] == [16, 16, 0]


def test_nothing_that_crosses_carries_a_gradient() -> None:
    value = torch.ones(2, requires_grad=True)
    replies = cohort().run(METHOD.echo, shared={"value": value * 2})
    assert not replies.each["value"].requires_grad


# silence


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_silence_is_a_zero_row_that_weighs_nothing(engine: str) -> None:
    replies = cohort(engine, faults=silent(0, 5)).run(METHOD.whoami)
    assert replies.heard.tolist() == [True, False, True, False]
    assert replies.weight.tolist() == [WEIGHTS[0], 0, WEIGHTS[2], 0]
    assert replies.each["id"].tolist() == [6, 0, 3, 0]
    assert replies.mean()["share"].item() == pytest.approx((0.6 + 0.3) / 2)
    expected = (0.6 * WEIGHTS[0] + 0.3 * WEIGHTS[2]) / (WEIGHTS[0] + WEIGHTS[2])
    assert replies.mean(by="examples")["share"].item() == pytest.approx(expected)
    assert replies.sum()["share"].item() == pytest.approx(0.9)
    assert replies.share().tolist() == [0.5, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_silent_once_is_silent_for_the_rest_of_the_round(engine: str) -> None:
    clients = cohort(engine, faults=silent(0, step="whoami"))
    heard = [clients.run(step).heard.tolist() for step in (METHOD.odd_one_out, METHOD.whoami, METHOD.whoami_again)]
    everyone, no_three, no_zero_either = [True] * 4, [True, True, False, True], [True, False, False, True]
    assert heard == [no_three, no_zero_either, no_zero_either] != [everyone] * 3
    lines = [exchange.line() for exchange in clients.ledger]
    assert [(line["asked"], line["answered"]) for line in lines] == [(4, 3), (2, 2), (2, 2)]


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_an_answer_that_is_not_finite_is_silence(engine: str) -> None:
    replies = cohort(engine).run(METHOD.odd_one_out)
    assert replies.heard.tolist() == [True, True, False, True]
    assert replies.each["x"].tolist() == [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert replies.weight[2] == 0
    assert replies.mean()["x"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_a_mean_of_nobody_is_zero(engine: str) -> None:
    clients = cohort(engine, faults=silent(*IDS.tolist()))
    assert clients.mean(METHOD.odd_one_out)["x"].tolist() == [0.0, 0.0]
    assert (
        Replies({"x": torch.zeros(2, 3)}, torch.zeros(2, dtype=torch.bool), torch.zeros(2)).mean()["x"].tolist()
        == [0.0] * 3
    )


@pytest.mark.parametrize("by", ["clients", "labelled", "examples"])
@pytest.mark.parametrize("engine", toys.ENGINES)
def test_a_folded_mean_equals_the_mean_of_the_rows(engine: str, by: Any) -> None:
    faults = silent(5)
    folded = cohort(engine, faults=faults).mean(METHOD.odd_one_out, by=by)
    stacked = cohort(engine, faults=faults).run(METHOD.odd_one_out).mean(by=by)
    assert toys.gap(folded, stacked) < 1e-7
    rows = {"value": torch.randn(4, 3, generator=torch.Generator().manual_seed(0))}
    folded = cohort(engine).mean(METHOD.echo, each=rows, by=by)
    assert toys.gap(folded, cohort(engine).run(METHOD.echo, each=rows).mean(by=by)) < 1e-6


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_a_mean_over_those_with_labels(engine: str) -> None:
    """Of the clients 6, 0, 3 and 5, the last is silent and the first has no labels."""
    federation = toys.federation(labelled=tuple(client != 6 for client in range(len(toys.TRAIN))))
    made = toys.engine(engine, METHOD, [federation])
    for found in (
        Clients(made, IDS, 0, faults=silent(5)).mean(METHOD.whoami, by="labelled"),
        Clients(made, IDS, 1, faults=silent(5)).run(METHOD.whoami).mean(by="labelled"),
    ):
        assert found["share"].item() == pytest.approx((0.0 + 0.3) / 2)
    assert int(Clients(made, IDS, 2, faults=silent(5)).run(METHOD.whoami).labelled) == 2


def test_a_folded_mean_keeps_no_rows() -> None:
    spy = toys.Spy(toys.engine("chunked", METHOD, [toys.federation()]))
    Clients(spy, IDS, 0).mean(METHOD.whoami)
    (part,) = spy.asks[0][1].collector.parts
    assert part.tree()["pair"]["x"].shape == (2,)


# what is counted


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_ledger_lines(engine: str) -> None:
    clients = cohort(engine, faults=silent(0))
    sent = {"value": torch.ones(3), "twice": torch.ones(3, dtype=torch.float64)}
    clients.run(METHOD.double, shared={"twice": sent["twice"]}, each={"value": sent["value"].expand(4, 3)})
    (line,) = [exchange.line() for exchange in clients.ledger]
    assert line.pop("seconds") >= 0
    expected = {"round": 0, "step": "double", "asked": 3, "answered": 3, "down": 3 * (3 * 8 + 3 * 4), "up": 3 * 3 * 8}
    assert line == expected


def test_a_ledger_line_reads_its_numbers_late() -> None:
    asked, answered = torch.tensor([True] * 5 + [False]), torch.tensor([True] * 3 + [False, True, False])
    exchange = Exchange(7, "fit", torch.arange(10, 16), asked, answered, 100, 30, lambda: 0.25)
    assert exchange.line() == {
        "round": 7,
        "step": "fit",
        "asked": 5,
        "answered": 4,
        "down": 500,
        "up": 120,
        "seconds": 0.25,
        "unheard": [13],
    }


# parts of a cohort, and rounds of their own


def test_only_some() -> None:
    clients = cohort(faults=silent(0))
    clients.run(METHOD.echo, shared={"value": torch.ones(1)})
    part = clients.only(IDS < 5)
    assert part.ids.tolist() == [0, 3]
    assert part.silent is not None
    assert part.silent.tolist() == [True, False]
    assert part.held is clients.held, "what all were sent, some of them hold"
    assert part.run(METHOD.total, recall=["value"]).each["total"].tolist() == [0.0, 1.0]
    assert part.run(METHOD.whoami).heard.tolist() == [False, True]
    assert part.ledger is clients.ledger
    assert len(clients) == 4
    assert len(clients.only(IDS > 100)) == 0


def test_messages_of_different_shapes_go_out_one_by_one_and_rows_come_back_in_order() -> None:
    clients = cohort(faults=silent(3))
    first, second = IDS < 5, IDS >= 5
    sendings = [
        Sending(each={"value": torch.tensor([[1.0, 2.0]]).repeat(2, 1)}, to=second),
        Sending(each={"value": torch.tensor([[10.0], [20.0]])}, to=first),
    ]
    replies = clients.send(METHOD.total, sendings)
    assert replies.each["total"].tolist() == [3.0, 10.0, 0.0, 3.0]
    assert replies.heard.tolist() == [True, True, False, True]
    alone = cohort(faults=silent(3)).run(METHOD.total, each={"value": torch.ones(4, 1)})
    assert torch.equal(replies.weight, alone.weight)
    assert [(int(e.asked.sum()), e.down_each) for e in clients.ledger] == [(2, 8), (1, 4)]


def test_one_sending_may_stand_alone() -> None:
    assert cohort().send(METHOD.total, Sending({"value": torch.ones(3)})).each["total"].tolist() == [3.0] * 4


@pytest.mark.parametrize("masks", [[IDS < 5], [IDS < 5, IDS >= 3], []])
def test_everybody_gets_one_message(masks: list[torch.Tensor]) -> None:
    sendings = [Sending(shared={"value": torch.ones(1)}, to=mask) for mask in masks]
    with pytest.raises(ProtocolError, match="'total' needs one message for every client"):
        cohort().send(METHOD.total, sendings)


def test_a_message_for_some_is_not_sent_to_all() -> None:
    with pytest.raises(ProtocolError, match="'total' is sent to 2 of 4 clients alone"):
        cohort().send(METHOD.total, Sending(shared={"value": torch.ones(1)}, to=IDS < 5))


def test_turns_are_rounds_of_their_own() -> None:
    with pytest.raises(ProtocolError, match=r"^A round of training has no turns; they are for personalisation\.$"):
        cohort().turns(3)
    clients = Clients(toys.engine("vector", METHOD, [toys.federation()]), IDS, -1, held={"value": torch.ones(1)})
    turns = clients.turns(3)
    assert len({turn.round for turn in turns}) == 3
    assert all(turn.held == {} and torch.equal(turn.ids, IDS) and turn.ledger is clients.ledger for turn in turns)


def test_an_empty_tree_is_a_mean_too() -> None:
    assert cohort().run(METHOD.echo, each={"value": torch.ones(4, 0)}).mean()["value"].shape == (0,)
    assert tree.nbytes(cohort().mean(METHOD.whoami)) > 0
    assert make("vector", METHOD, [toys.federation()], "cpu").device == torch.device("cpu")


@pytest.mark.parametrize("rows", [1, 3])
def test_leaves_that_lie_end_to_end_are_not_copied(rows: int) -> None:
    flat = torch.arange(rows * 9.0).view(rows, 9)
    each = [flat[:, :4].view(rows, 2, 2), flat[:, 4:5].squeeze(1), flat[:, 5:]]
    joined = _end_to_end(each)
    assert torch.equal(joined, flat)
    assert joined.data_ptr() == flat.data_ptr()
    for other in ([*each[:2], each[2].clone()], [each[1], each[0], each[2]], [each[0], each[2]]):
        expected = torch.cat([leaf.reshape(rows, -1) for leaf in other], 1)
        assert torch.equal(_end_to_end(other), expected)


@pytest.mark.parametrize("nonsense", [torch.nan, torch.inf])
def test_sums_do_not_see_rows_that_weigh_nothing(nonsense: float) -> None:
    rows = torch.tensor([[1.0, 2.0], [nonsense, 3.0], [5.0, 6.0]])
    assert weighted_sum(torch.tensor([1.0, 0.0, 2.0]), rows).tolist() == [11, 14]
    assert weighted_sum(torch.tensor([1, 1, 1]), torch.tensor([[1, 2], [3, 4], [5, 6]])).tolist() == [9, 12]
