"""The loop: who is drawn for a round, who selects the best one, and what is refused before it begins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import toys
from console import Command
from latecomer import federate, train, tree
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.errors import DataError, SettingError
from latecomer.evaluate import evaluate
from latecomer.faults import failing_since
from latecomer.runs.experiment import Experiment
from latecomer.runs.run import restore, snapshot
from latecomer.sweep.lockstep import Lockstep
from latecomer.train import Plan, Training

LABELLED = (True, False, True, True, False, False, False, True, True, True)  # members 0, 2 and 3 of seven


def training(labelled: tuple[bool, ...] = LABELLED, validators: int = 0, name: str = "fedavg", **plan: Any) -> Training:
    federation = toys.federation(labelled=labelled)
    if validators:
        federation = replace(federation, members=toys.MEMBERS - validators, validators=validators)
    method = toys.method(name)
    return Training(method, [federation], make("vector", method, [federation], "cpu"), Plan(**plan))


# cohorts


@pytest.mark.parametrize(
    ("share", "size", "labelled"),
    [
        (0.5, 4, 2),
        (0.9, 3, 3),
        (1.0, 3, 3),
        (0.0, 4, 0),
        (0.9, 6, 3),
        (0.0, 6, 2),
        (1.0, 7, 3),
        (0.5, 1, 0),
        (0.6, 1, 1),
    ],
)
def test_a_cohort_has_the_asked_share_of_labelled_clients(share: float, size: int, labelled: int) -> None:
    """Three members have labels and four have none; where one group is too small, the other fills the cohort."""
    going = training(cohort=size, cohort_labelled=share)
    for number in range(20):
        ids = going.cohorts(0, number)
        assert len(ids.unique()) == size
        assert ids.tolist() == sorted(ids.tolist())
        assert int(ids.max()) < toys.MEMBERS
        assert sum(LABELLED[k] for k in ids.tolist()) == labelled
        assert ids.equal(training(cohort=size, cohort_labelled=share).cohorts(0, number)), (
            "the seed and the round decide"
        )


def test_where_all_are_alike_the_share_changes_nothing_but_the_draw() -> None:
    going = training((True,) * 10, cohort=5, cohort_labelled=0.9)
    drawn = torch.cat([going.cohorts(0, number) for number in range(60)])
    assert drawn.bincount(minlength=toys.MEMBERS).min() > 25
    assert len(drawn) == 300


def test_every_member_has_its_turn() -> None:
    going = training(cohort=4, cohort_labelled=0.5)
    counts = torch.cat([going.cohorts(0, number) for number in range(300)]).bincount(minlength=toys.MEMBERS)
    chance = torch.tensor([2 / 3 if LABELLED[k] else 2 / 4 for k in range(toys.MEMBERS)])
    assert float((counts / 300 - chance).abs().max()) < 0.1


def test_without_a_share_the_draw_is_what_it_was() -> None:
    plain, other = training(cohort=4), training((True,) * 10, cohort=4)
    assert all(plain.cohorts(0, number).equal(other.cohorts(0, number)) for number in range(10))


# validators


def test_validators_select_and_neither_train_nor_come_late() -> None:
    going = training((True,) * 10, validators=2, rounds=3, cohort=5, evaluate_every=1, watch_unseen=True)
    assert all(int(going.cohorts(0, number).max()) < 5 for number in range(10))
    lines = [metrics["runs"][0] for metrics in going.go() if metrics]
    federation = going.federations[0]
    (scores,) = evaluate(
        going.methods, going.states, Lockstep(going.engine), [torch.arange(5, 7)], number=going.evaluations + 1
    )
    assert lines[-1]["validation"] == scores.summary("val")["accuracy"]
    assert going.best[0] is not None
    assert going.best[0].validation == max(line["validation"] for line in lines)
    result, ((seen, late),) = going.finish()
    assert late is not None
    assert seen.ids.tolist() == list(range(5))
    assert late.ids.tolist() == [7, 8, 9] == list(range(federation.first_late, len(federation)))
    assert result["unseen"]["accuracy"] == pytest.approx(late.summary()["accuracy"], abs=1e-3)


def test_where_a_server_learns_nothing_members_select_the_round() -> None:
    """Validators train the same models at every round: of all, the first evaluation would win."""
    found = []
    for validators in (0, 2):
        going = training((True,) * 10, 2, "local", rounds=4, cohort=5, evaluate_every=1)
        going.federations[0] = replace(going.federations[0], validators=validators)
        found.append([line["runs"][0]["validation"] for line in going.go() if line])
        assert going.best[0] is not None
        assert going.best[0].validation == max(found[-1])
    assert found[0] == found[1]
    assert len({*found[0]}) > 1


def test_a_validators_labels_score_and_are_not_trained_on() -> None:
    """An unlabelled one shows what it is scored by, its val labels, and nothing else."""
    labelled = (True,) * 5 + (False,) * 5
    going = training(labelled, validators=2)
    cards = going.engine.homes.client_rows(0, torch.arange(10))  # type: ignore[attr-defined]
    known = {
        split: [int((going.engine.homes.find(torch.arange(3), card, split)[1] >= 0).sum()) for card in cards]  # type: ignore[attr-defined]
        for split in ("train", "val", "test")
    }
    assert known["train"] == [3] * 5 + [0] * 5
    assert known["val"] == [3] * 7 + [0] * 3
    assert known["test"] == [3] * 10
    assert going.federations[0].weight[5:].tolist() == [0] * 5


@pytest.mark.parametrize("name", ["flowdup", "pfedhn", "local", "ditto", "fedrep", "clusteredfl"])
def test_methods_treat_validators_as_clients_that_did_not_train(name: str) -> None:
    method = toys.method(name)
    method.set(members=5)
    federation = replace(toys.federation(), members=5, validators=2)
    going = Training(method, [federation], make("vector", method, [federation], "cpu"), Plan(rounds=1, cohort=3))
    (metrics,) = [found for found in going.go() if found]
    assert 0 <= metrics["runs"][0]["validation"] <= 100


SPLIT = {
    "data": "digits", "split": "flowdup", "unseen_labelled": "false", "clients": "20", "unseen": "0.2",
    "validators": "0.1", "validation": "0", "rounds": "2", "cohort": "3", "evaluate_every": "1", "engine": "vector",
}  # fmt: skip


def test_members_without_anything_to_score_are_not_asked() -> None:
    going = Experiment.parse("ldfedavg", SPLIT).training()
    asked: list[int] = []
    exchange = going.engine.exchange
    going.engine.exchange = lambda step, asks: (  # type: ignore[method-assign]
        asked.extend(asks[0].ids.tolist()) if step == "score" else None,
        exchange(step, asks),
    )[1]
    metrics = [found["runs"][0] for found in going.go() if found]
    assert set(asked) == {14, 15}
    assert all(0 <= line["validation"] <= 100 for line in metrics)
    assert all(line["seen"]["accuracy"] != line["seen"]["accuracy"] for line in metrics), "NaN: nothing to score"
    again = Experiment.parse("ldfedavg", SPLIT).training()
    restore(again, *json_round_trip(*snapshot(going)))
    assert again.finish()[0]["unseen"] == going.finish()[0]["unseen"]


def json_round_trip(tensors: Any, facts: Any) -> tuple[Any, Any]:
    return tensors, json.loads(json.dumps(facts))


def test_the_papers_split_on_the_command_line(tmp_path: Path, command: Command) -> None:
    flags = [word for key, value in SPLIT.items() for word in (f"--{key.replace('_', '-')}", value)]
    done = command("run", "flowdup", *flags, "--hidden", "8", "--seeds", "2", "--out", str(tmp_path), "--name", "x")
    assert done.code == 0, done.err
    assert "flowdup on digits: 14 members, 2 validators and 4 latecomers, 2 rounds" in done.out
    assert "Selected by validation data" in done.out
    assert "nan" not in done.out + done.err
    result = json.loads((tmp_path / "x" / "result.json").read_text())
    assert result["seen"]["accuracy"] is None
    assert 0 <= result["unseen"]["accuracy"] <= 100
    table = (tmp_path / "x" / "clients.csv").read_text()
    assert table.count("\n") == 1 + 2 * (14 + 4)


def test_a_method_that_needs_labels_is_refused_for_validators_without() -> None:
    experiment = Experiment.parse("ditto", {"clients": 20, "validators": 0.2, "unseen_labelled": False})
    with pytest.raises(Exception, match="needs a latecomer's labels"):
        experiment.method(experiment.federations())


def test_clients_are_asked_by_the_round_that_draws_them() -> None:
    """The share is a matter of the loop: a method sees a cohort like any other."""
    going = training(cohort=4, cohort_labelled=0.5)
    state = going.methods[0].round(going.states[0], Clients(going.engine, going.cohorts(0, 0), 0))
    going.advance()
    assert toys.same(state, going.states[0])


# what is said before it begins


@pytest.mark.parametrize(
    ("name", "first", "settings", "what"),
    [
        ("lgfedavg", "warmup", {}, "plain FedAvg"),
        ("atp", "warmup", {}, "plain FedAvg"),
        ("odpflhn", "first_phase", {"training": "two-phases"}, "of the first phase"),
    ],
)
def test_a_run_that_ends_before_its_method_begins_says_so(
    name: str, first: str, settings: dict[str, Any], what: str
) -> None:
    method, federation = toys.method(name, **settings, **{first: 4}), toys.federation()
    engine = make("loop", method, [federation], "cpu")
    (note,) = Training(method, [federation], engine, Plan(rounds=4)).notes
    assert note == (
        f"All 4 rounds of {type(method).__name__} are {what}; lower --{first.replace('_', '-')}, which is 4, "
        "or raise --rounds."
    )
    assert Training(method, [federation], engine, Plan(rounds=5)).notes == []
    assert Training(method, [federation], engine, Plan(rounds=0)).notes == [], "a trained model is only scored"


def test_end_to_end_there_is_no_first_phase() -> None:
    assert toys.method("odpflhn", first_phase=400).review([], None, rounds=4) == []  # type: ignore[arg-type]


# replies that fail


def line(number: int, asked: int, answered: int, step: str = "fit") -> dict[str, Any]:
    return {"round": number, "step": step, "asked": asked, "answered": answered}


@pytest.mark.parametrize(
    ("lines", "since"),
    [
        ([], None),
        ([line(0, 4, 4), line(1, 4, 2)], None),
        ([line(0, 4, 4), line(1, 4, 1), line(2, 4, 0)], 2),
        ([line(0, 4, 0), line(1, 4, 3), line(2, 4, 0)], 3),
        ([line(0, 4, 1), line(1, 0, 0)], 1),
        ([line(0, 5, 5, "describe"), line(0, 5, 0), line(0, 0, 0, "backprop")], 1),
        ([line(0, 1, 0), line(0, 4, 4)], None),
    ],
)
def test_from_which_round_on_most_replies_failed(lines: list[dict[str, Any]], since: int | None) -> None:
    assert failing_since(lines) == since
    half = len(lines) // 2
    if not half or lines[half - 1]["round"] != lines[half]["round"]:
        assert failing_since(lines[half:], failing_since(lines[:half])) == since, "in parts"


@pytest.mark.parametrize("faults", ["", "drop=0.5"])
def test_a_training_that_diverges_says_since_when(faults: str) -> None:
    """By whole rounds replayed, and exchange by exchange, where most of the clients are silent on purpose."""
    method, federation = toys.method("fedavg", lr=1e30, weight_decay=1.0), toys.federation()
    engine = make("vector", method, [federation], "cpu")
    result = train.run(method, federation, engine, rounds=8, cohort=4, evaluate_every=4, faults=faults)
    assert result["diverged_at"][0] in (1, 2)
    assert result["answered"] < 0.3
    calm = train.run(toys.method("fedavg"), federation, rounds=8, cohort=4, evaluate_every=4, faults=faults)
    assert (calm["diverged_at"], calm["answered"]) == ([None], 1.0), "who is silent on purpose was not asked"


@pytest.mark.parametrize("name", ["vector", "loop", "flower"])
def test_a_client_that_would_keep_nonsense_has_not_answered(name: str) -> None:
    """Local's clients answer nothing at all, so only what they keep can go wrong."""
    method, federation = toys.method("local", lr=1e30, weight_decay=1.0), toys.federation()
    engine = make(name, method, [federation], "cpu")
    result = train.run(method, federation, engine, rounds=3, cohort=4, evaluate_every=3)
    assert (result["diverged_at"], result["answered"]) == ([1], 0.0)
    assert all(leaf.isfinite().all() for leaf in tree.leaves(engine.memories(0)))


def test_a_checkpoint_knows_since_when() -> None:
    method, federation = toys.method("local", lr=1e30, weight_decay=1.0), toys.federation()
    going, again = (
        Training(method, [federation], make("loop", method, [federation], "cpu"), Plan(rounds=2, cohort=4))
        for _ in range(2)
    )
    going.advance()
    going.drain()
    restore(again, *json_round_trip(*snapshot(going)))
    assert again.diverged == going.diverged == [1]


FAILING = ["--clients=10", "--rounds=6", "--cohort=4", "--engine=vector", "--faults=drop=0.3", "--data=digits"]


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["fedavg", "--lr=1e30"], "Note: Most replies were missing or not finite from round 1 on; lower --lr."),
        (
            ["pefll", "--server-lr=1e30", "--steps=2", "--seeds=2"],
            "Note: Most replies were missing or not finite from round 2 on (seed 0), from round 2 on (seed 1); "
            "lower --lr or --server-lr.",
        ),
        (["fedavg", "--lr=0.01"], ""),
    ],
)
def test_a_run_that_diverged_says_what_to_lower(words: list[str], note: str, tmp_path: Path, command: Command) -> None:
    done = command("run", *words, *FAILING, "--out", str(tmp_path), "--name", "x")
    assert done.code == 0, done.err
    assert note in done.err.splitlines() if note else "replies" not in done.err


# what is refused


@pytest.mark.parametrize("faults", ["drop=1", "drop=-0.1", "drop=0.5,nan=0.5", "drop", "rain=0.1", "drop=0.1,drop=0.2"])
def test_somebody_must_answer(faults: str, command: Command) -> None:
    with pytest.raises(SettingError, match="--faults"):
        training(faults=faults)
    done = command("run", "fedavg", f"--faults={faults}")
    assert (done.code, done.err.count("--faults")) == (2, 1)


LATE = len(toys.TRAIN) - toys.MEMBERS


def begin(name: str, members: bool, late: bool) -> dict[str, object]:
    """A round of a method on the toy federation, whose members and latecomers have labels or have none."""
    federation = toys.federation(labelled=(members,) * toys.MEMBERS + (late,) * LATE)
    method = toys.method(name)
    return train.run(method, federation, toys.engine("vector", method, [federation]), rounds=1, cohort=2)


@pytest.mark.parametrize("name", ["fedavg", "pefll"])
def test_members_without_labels_have_nothing_to_learn(name: str) -> None:
    with pytest.raises(DataError, match="None of the 7 training clients has a labelled example"):
        begin(name, members=False, late=True)


def test_latecomers_without_labels_are_refused_where_a_method_needs_them() -> None:
    with pytest.raises(DataError, match="FedPer needs a latecomer's labels, but none of the 3 latecomers has any"):
        begin("fedper", members=True, late=False)
    assert "unseen" in begin("fedavg", members=True, late=False), "FedAvg needs none"


def test_what_is_no_method_or_no_federation_is_said_in_a_sentence() -> None:
    method, federation = toys.method("fedavg"), toys.federation()
    for given in ((method, "digits"), (method, []), ("fedavg", federation), (method, [federation, 3])):
        with pytest.raises(SettingError, match=f"needs a method and a federation.*{type(given[1]).__name__}"):
            train.run(*given, rounds=1, cohort=2)
    with pytest.raises(DataError, match=r"Arrays come as a pair.*got int"):
        federate(3)  # type: ignore[arg-type]
