"""Scores: among all classes and among a client's own, the bottom decile, and clients that give none."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import toys
from latecomer import train, tree
from latecomer.clients import Clients, Sending
from latecomer.engines.home import Homes, PackedHome
from latecomer.evaluate import Scores, bottom_decile, evaluate, over_seeds
from latecomer.sweep.lockstep import Lockstep
from latecomer.task import Home
from latecomer.tree import Tree

EVERYBODY = torch.arange(len(toys.TRAIN))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranks(toys.Idle):
    """Whatever it sees, class 0 seems likeliest, then class 1, and so on; some clients' models answer NaN."""

    broken: tuple[int, ...] = ()

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        broken = torch.isin(clients.ids, torch.tensor(self.broken, dtype=torch.long))
        return Sending(each={"scale": torch.where(broken, torch.nan, 1.0)})

    def model(self, home: Home, *, scale: Tensor) -> Tree:  # type: ignore[override]
        return {"scale": scale}

    def logits(self, model: Tree, x: Tensor) -> Tensor:
        return model["scale"] * -torch.arange(10.0).expand(len(x), -1)

    def report(self, home: Home, **sent: Tree) -> Tree:
        return {"largest": home.counts(10).max()}


def scored(method: Any, engine: str = "vector", **federation: Any) -> Scores:
    made = toys.engine(engine, method, [toys.federation(**federation)])
    (scores,) = evaluate([method], [{}], Lockstep(made), [EVERYBODY], number=1)
    return scores


def ranks(**settings: Any) -> Ranks:
    return Ranks(task=toys.task(), clients=len(toys.TRAIN), members=toys.MEMBERS, **settings)


@pytest.mark.parametrize("engine", toys.ENGINES)
def test_a_prediction_is_scored_among_all_classes_and_among_ones_own(engine: str) -> None:
    scores, federation = scored(ranks(), engine), toys.federation()
    for client in EVERYBODY.tolist():
        own, truth = (federation.examples.y[rows[client].long()] for rows in (federation.train, federation.test))
        right, known, among_own = scores.counts["test"][client].tolist()
        assert known == len(truth)
        assert right == (truth == 0).sum()
        assert among_own == (truth == own.min()).sum()
    assert scores.summary()["own_classes"] > scores.summary()["accuracy"]


def test_a_client_without_labels_has_no_classes_of_its_own() -> None:
    """Its own classes are all there are: it is not scored as if it always said the same."""
    scores = scored(ranks(), labelled=(False,) * 3 + (True,) * 7)
    right, _, among_own = scores.counts["test"].unbind(-1)
    assert right[:3].equal(among_own[:3])
    assert not right.equal(among_own)


def test_a_member_without_labels_does_not_always_say_class_0() -> None:
    method, federation = toys.method("pefll"), toys.federation(labelled=(False, *[True] * 9))
    made = toys.engine("vector", method, [federation])
    state, _ = toys.rounds(method, made, 2)
    sent = method.personalise(state, Clients(made, torch.tensor([0]), -1, scratch=1))
    assert isinstance(sent, Sending)
    homes = Homes([federation], torch.device("cpu"), torch.float32)
    home = PackedHome(homes, homes.client_rows(0, torch.tensor([0]))[0], torch.tensor(-1), {})
    logits = method.predict(home, home.all("test").x, **tree.row(sent.each, 0))
    assert logits.std(-1).min() > 0
    assert logits.abs().max() < 1e6, "no class is ruled out"


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (11, 2), (14, 2), (20, 2), (56, 6), (100, 10)])
def test_the_bottom_decile_is_a_client(clients: int, worst: int) -> None:
    """The (M/10)-th worst, rounded up."""
    each = torch.randperm(clients, generator=torch.Generator().manual_seed(0)).double() + 1
    assert bottom_decile(each) == worst


def test_a_model_that_answers_nan_has_no_score_and_counts_as_wrong() -> None:
    whole, scores = scored(ranks()), scored(ranks(broken=(2, 8)))
    assert scores.failed.nonzero()[:, 0].tolist() == [2, 8]
    assert scores.accuracy()[[2, 8]].tolist() == [0.0, 0.0]
    rest = [k for k in EVERYBODY.tolist() if k not in (2, 8)]
    expected = whole.accuracy()[rest].sum() / len(EVERYBODY)
    assert scores.summary()["accuracy"] == pytest.approx(float(expected))
    assert over_seeds([scores, whole])["failed"] == 2


def test_pooled_scores_know_of_those_that_failed() -> None:
    """Else a round in which most models answer NaN could have the best of all, and be selected."""
    right = torch.tensor([[3.0, 4.0, 4.0]]).repeat(4, 1)
    broken = right.clone()
    for failed, share in ((0, 1.0), (1, 0.75), (3, 0.25), (4, 0.0)):
        broken[:failed] = torch.nan
        scores = Scores.of(torch.arange(4), {"val": broken, "test": right}, torch.ones(4, dtype=torch.bool))
        for summary in (scores.summary("val"), scores.summary("test")):
            assert summary["pooled"] == pytest.approx(75 * share) == pytest.approx(summary["accuracy"])
            assert summary["own_pooled"] == pytest.approx(100 * share)


class Lies(toys.Spy):
    """An engine one of whose clients reports impossible scores."""

    def __init__(self, engine: Any, counts: list[float]) -> None:
        super().__init__(engine)
        self.counts = counts

    def exchange(self, step: str, asks: Any) -> None:
        for ask in asks:
            ask.collector = Liar(ask.collector, self.counts)
        super().exchange(step, asks)


class Liar:
    def __init__(self, collector: Any, counts: list[float]) -> None:
        self.__dict__.update(collector=collector, counts=counts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.collector, name)

    def take(self, each: Tree, weight: Tensor, heard: Tensor) -> None:
        if "test" in each:
            each = each | {"test": each["test"].clone()}
            each["test"][4] = torch.tensor(self.counts)
        self.collector.take(each, weight, heard)


@pytest.mark.parametrize(
    "counts",
    [
        [1e30, 1e30, 0],
        [1.5, 5, 1],
        [1e38, 5, 1],
        [6, 5, 1],
        [1, 5, 6],
        [-1, 5, 0],
        [1, -5, 1],
        [0, 0, 1],
        [torch.inf, 5, 1],
    ],
)
def test_impossible_scores_are_not_believed(counts: list[float]) -> None:
    method = ranks()
    engine: Any = Lies(toys.engine("vector", method, [toys.federation()]), counts)
    (scores,) = evaluate([method], [{}], Lockstep(engine), [EVERYBODY], number=1)
    assert scores.failed.nonzero()[:, 0].tolist() == [4]
    assert all(0 <= value <= 100 for value in scores.summary().values())


class Silences(toys.Spy):
    """An engine whose client 3 answers no step but `score`, or no step of another name."""

    def __init__(self, engine: Any, step: str) -> None:
        super().__init__(engine)
        self.step = step

    def exchange(self, step: str, asks: Any) -> None:
        for ask in asks:
            if step == self.step:
                ask.silent = ask.silent | (ask.ids == 3)
        super().exchange(step, asks)


@pytest.mark.parametrize("step", ["score", "tune"])
def test_a_client_silent_at_an_evaluation_stays_in_the_mean(step: str) -> None:
    """Also one that fell silent before: it has no model of its own, whatever it keeps."""
    method = toys.method("fedavgplus")
    made = toys.engine("vector", method, [toys.federation()])
    (whole,) = evaluate([method], [toys.start(method)], Lockstep(made), [EVERYBODY], number=1)
    engine: Any = Silences(made, step)
    (scores,) = evaluate([method], [toys.start(method)], Lockstep(engine), [EVERYBODY], number=2)
    assert scores.failed.nonzero()[:, 0].tolist() == [3]
    expected = whole.accuracy().index_fill(0, torch.tensor([3]), 0.0).mean()
    assert scores.summary()["accuracy"] == pytest.approx(float(expected))


def test_silence_within_a_part_of_a_cohort_is_silence_of_the_cohort() -> None:
    method = toys.method("ditto")
    engine: Any = Silences(toys.engine("vector", method, [toys.federation()]), "arrive")
    (scores,) = evaluate([method], [toys.start(method)], Lockstep(engine), [EVERYBODY], number=1)
    assert scores.failed.nonzero()[:, 0].tolist() == [3]


def test_what_clients_report_stands_in_their_rows(tmp_path: Path) -> None:
    scores = scored(ranks())
    most = [
        max(toys.federation().examples.y[rows.long()].bincount())
        for rows in map(toys.federation().train.__getitem__, range(10))
    ]
    assert scores.report["largest"].tolist() == [int(count) for count in most]


@pytest.mark.parametrize("select", ["accuracy", "own_classes", "pooled", "own_pooled"])
def test_one_setting_says_which_score_selects(select: Any) -> None:
    method = toys.method("fedavg")
    metrics: list[dict[str, Any]] = []
    plan = train.Plan(rounds=3, cohort=3, evaluate_every=1, select=select)
    training = train.Training(method, [toys.federation()], toys.engine("vector", method, [toys.federation()]), plan)
    training.complete(metrics.append)
    best = training.best[0]
    assert best is not None
    assert best.validation == max(line["runs"][0]["validation"] for line in metrics)
    assert best.validation == best.scores.summary("val")[select]


def test_a_run_whose_clients_fail_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from latecomer.cli import main

    words = "--clients 10 --unseen 0.2 --rounds 1 --cohort 2 --partition iid --model mlp --engine vector --tune-lr 1e30"
    assert main(["run", "fedavgplus", *words.split(), "--out", str(tmp_path), "--name", "x"]) == 0
    said = capsys.readouterr().err
    assert "10 clients gave no score" in said
    result = json.loads((tmp_path / "x/result.json").read_text())
    assert (result["seen"]["failed"], result["unseen"]["failed"]) == (8, 2)
    with (tmp_path / "x/clients.csv").open(newline="") as file:
        assert {row["accuracy"] for row in csv.DictReader(file)} == {"0.0"}
