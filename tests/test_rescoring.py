"""Analyses that score a trained run again, against votes, mixtures and datastores worked out in plain numpy."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from latecomer.cli import main
from latecomer.data import Federation, load
from latecomer.errors import SettingError
from latecomer.handover.meet import Meeting, meet, thinned, unused
from latecomer.handover.trained import Trained
from latecomer.nets.neighbours import drawn
from latecomer.nets.net import Net
from latecomer.ops.shuffle import lot
from latecomer.study.analyses import analyse, mix, shift
from latecomer.study.rescore import Scoring, Voting
from latecomer.task import Batch, Task

Array = NDArray[Any]
SPLIT = ["--partition", "dirichlet", "--alpha", "0.5", "--clients", "12", "--unseen", "0.34", "--evaluate-every", "3"]
HOW = [*SPLIT, "--threads", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A common model, neighbours on it (three vote, and they alone), and a hypernetwork with heads of clients' own."""
    out = tmp_path_factory.mktemp("runs")
    common = ["--rounds", "3", "--cohort", "4", "--lr", "0.1"]
    votes = ["--rounds", "0", "--blends", "1", "--neighbours", "3", "--store-validation", "false"]
    heads = ["--clients", "6", "--rounds", "3", "--cohort", "3", "--evaluate-every", "3", "--steps", "5", "--lr", "0.1"]
    for words in (
        ["fedavg", *HOW, *common, "--name", "fedavg"],
        ["fedavg", *HOW, "--rounds", "15", "--cohort", "4", "--lr", "0.5", "--name", "longer"],
        ["knnper", *HOW, *votes, "--start", str(out / "fedavg"), "--name", "knnper"],
        ["pfedhn", *heads, "--personal-head", "--threads", "1", "--name", "pfedhn"],
        ["local", "--clients", "6", "--rounds", "1", "--threads", "1", "--name", "local"],
    ):
        assert main(["run", *words, "--out", str(out)]) == 0
    return out


class ByHand:
    """The common model of a run and its clients' examples, in numpy."""

    def __init__(self, path: Path, federation: Federation | None = None) -> None:
        trained = Trained.load(path)
        self.federation = federation or trained.federations[0]
        self.weights = {name: leaf.numpy().astype(np.float64) for name, leaf in trained.states[0]["params"].items()}
        x = self.federation.examples.x.numpy().astype(np.float64).reshape(len(self.federation.examples.y), -1)
        self.x, self.y = x / 255, self.federation.examples.y.numpy()

    def rows(self, client: int, split: str) -> Array:
        return self.federation.rows(split)[client].numpy()

    def features(self, rows: Array) -> Array:
        return np.maximum(self.x[rows] @ self.weights["hidden.weight"].T + self.weights["hidden.bias"], 0)

    def likely(self, rows: Array) -> Array:
        """The model's probabilities."""
        logits = self.features(rows) @ self.weights["head.weight"].T + self.weights["head.bias"]
        some = np.exp(logits - logits.max(1, keepdims=True))
        return some / some.sum(1, keepdims=True)

    def votes(self, stored: Array, rows: Array, count: int = 3, sigma: float = 1.0) -> Array:
        """Of the nearest stored examples, each weighing exp(-distance / sigma)."""
        keys, shares = self.features(stored), np.zeros((len(rows), 10))
        for k, query in enumerate(self.features(rows)):
            far = np.sqrt(((keys - query) ** 2).sum(1))
            for near in far.argsort(kind="stable")[:count]:
                shares[k, self.y[stored[near]]] += np.exp(-far[near] / sigma)
        return shares / shares.sum(1, keepdims=True)

    def right(self, client: int, probabilities: Array) -> float:
        return float(100 * (probabilities.argmax(1) == self.y[self.rows(client, "test")]).mean())

    def late(self) -> range:
        return range(self.federation.first_late, len(self.federation))

    def voted(self, blend: float = 1.0, stored: Any = None, only: Any = None, **how: Any) -> float:
        """The latecomers' mean accuracy where all take the same lambda; `stored` says which rows a client keeps."""
        each = []
        for client in only or self.late():
            test, kept = self.rows(client, "test"), (stored or partial(self.rows, split="train"))(client)
            votes = self.votes(kept, test, **how) if blend and len(kept) else 0.0
            share = blend if len(kept) else 0.0
            each.append(self.right(client, share * votes + (1 - share) * self.likely(test)))
        return float(np.mean(each))

    def chosen(self, client: int) -> float:
        """The lambda with which most validation examples are right, and of several the one that finds them likelier."""
        rows = self.rows(client, "val")
        votes, likely = self.votes(self.rows(client, "train"), rows, count=10), self.likely(rows)
        gains = {}
        for blend in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
            both = blend * votes + (1 - blend) * likely
            right = (both.argmax(1) == self.y[rows]).sum()
            gains[blend] = right + both[np.arange(len(rows)), self.y[rows]].mean()
        return max(gains, key=lambda blend: gains[blend])

    def part(self, client: int, share: float) -> Array:
        """What a datastore that has room for a share of the examples holds, by the lot that its client drew."""
        rows = self.rows(client, "train")
        chance = lot(self.federation.seed, torch.tensor(client), "datastore train")
        order = drawn(torch.arange(len(rows)), torch.tensor(len(rows)), chance).numpy()
        return rows[order < np.ceil(len(rows) * share - 1e-4)]


def test_neighbours_vote_as_by_hand(runs: Path) -> None:
    hand = ByHand(runs / "knnper")
    found = analyse("neighbours", [runs / "knnper"], {"counts": (1, 3, 7)})
    assert [row[:3] for row in found.rows] == [
        ["knnper", count, pytest.approx(hand.voted(count=count), abs=1e-3)] for count in (1, 3, 7)
    ]
    assert len({row[2] for row in found.rows}) > 1, "a test in which k makes no difference would show nothing"


def test_blends_as_by_hand(runs: Path) -> None:
    hand = ByHand(runs / "knnper")
    asked = {"blends": (0.0, 0.4, 1.0), "sigmas": (0.2,), "capacities": (0.5, 1.0)}
    found = analyse("blend", [runs / "knnper"], asked)
    halves = np.mean([len(hand.part(client, 0.5)) for client in hand.late()])
    for _, share, kept, sigma, blend, accuracy, *_ in found.rows:
        assert sigma == 0.2
        assert share == 1 or kept == round(float(halves), 1)
        assert accuracy == pytest.approx(hand.voted(blend, partial(hand.part, share=share), sigma=0.2), abs=1e-3)
    assert [(row[1], row[4]) for row in found.rows] == [(share, blend) for share in (0.5, 1) for blend in (0, 0.4, 1)]
    (row,) = analyse("blend", [runs / "knnper"], {"blends": (1.0,)}).rows
    assert row[3:6] == ["1", 1.0, pytest.approx(hand.voted(), abs=1e-3)], "sigma as in the run"
    assert found.rows[0][5] == found.rows[3][5], "without a vote it does not matter who is stored"


def test_capacity_as_by_hand(runs: Path) -> None:
    hand = ByHand(runs / "knnper")
    found = analyse("capacity", [runs / "knnper"], {"capacities": (0.0, 0.3, 1.0)})
    expected = [hand.voted(0.0), hand.voted(stored=partial(hand.part, share=0.3)), hand.voted()]
    assert [row[2] for row in found.rows] == pytest.approx(expected, abs=1e-3)
    none, some, every = expected
    assert [row[-2:] for row in found.rows] == [
        pytest.approx(pair, abs=1e-3) for pair in ([0, every - none], [some - none, every - some], [every - none, 0])
    ]


def test_less_data_as_by_hand(runs: Path) -> None:
    asked = {"capacities": (0.0, 0.3, 1.0), "by": "data"}
    found = analyse("capacity", [runs / "knnper", runs / "fedavg"], asked)
    few = ByHand(runs / "knnper", thinned(Trained.load(runs / "knnper").federations[0], 0.3))
    whole = ByHand(runs / "knnper")
    assert [row[:2] for row in found.rows] == [["knnper", 0.3], ["knnper", 1.0], ["fedavg", 0.3], ["fedavg", 1.0]]
    alone = whole.voted(0.0)
    assert [row[2] for row in found.rows] == pytest.approx([few.voted(), whole.voted(), alone, alone], abs=1e-3)


def test_unequal_capacities_as_by_hand(runs: Path) -> None:
    hand = ByHand(runs / "knnper")
    found = analyse("hardware", [runs / "knnper"], {"gaps": (0.0, 0.5)})
    chance = lot(hand.federation.seed, torch.arange(len(hand.federation)), "weak").numpy()
    late = chance[hand.federation.first_late :]
    assert 0 < (late < 0.5).sum() < len(late), "some are weak and some are not"
    apart = hand.voted(stored=lambda client: hand.rows(client, "train")[: 0 if chance[client] < 0.5 else None])
    equal = hand.voted(stored=partial(hand.part, share=0.5))
    assert [row[2] for row in found.rows] == pytest.approx([equal, apart], abs=1e-3)


def test_quality_as_by_hand(runs: Path) -> None:
    hand = ByHand(runs / "knnper")
    (row,) = analyse("quality", [runs / "knnper"]).rows
    assert row[0] == "knnper"
    # Clients of this run have a single lambda to choose from, 1: blended is the vote alone.
    assert row[2:] == pytest.approx([hand.voted(0.0), hand.voted(), hand.voted()], abs=1e-3)
    # On any other run they are kNN-Per's defaults: each chooses on its validation examples, which then vote, too.
    common, stored = ByHand(runs / "longer"), {}
    for client in common.late():
        stored[client] = np.concatenate([common.rows(client, split) for split in ("train", "val")])
    chosen = {client: common.chosen(client) for client in common.late()}
    blended = [common.voted(chosen[k], stored.get, only=[k], count=10) for k in common.late()]
    (row,) = analyse("quality", [runs / "longer"]).rows
    expected = [common.voted(0.0), common.voted(1.0, stored.get, count=10), np.mean(blended)]
    assert row[2:] == pytest.approx(expected, abs=1e-3)
    assert {*chosen.values()} - {0.0, 1.0}, "somebody blends"
    assert expected[2] not in expected[:2]


def test_prototypes_beside_all_examples(runs: Path) -> None:
    hand = ByHand(runs / "knnper")
    found = analyse("prototypes", [runs / "knnper"], {"prototypes": (1,), "projections": (0, 4)})
    assert found.rows[0][1:5] == ["all examples", "", 1.0, pytest.approx(hand.voted(), abs=1e-3)]
    # A prototype a class: 100 features, or 4 of them and 100 times 4 numbers of the projection; and 10 scores.
    sizes = [
        (len(np.unique(hand.y[rows])), len(rows)) for rows in (hand.rows(client, "train") for client in hand.late())
    ]
    plain = np.mean([held * (100 + 10) / (100 * count) for held, count in sizes])
    narrow = np.mean([(held * (4 + 10) + 400) / (100 * count) for held, count in sizes])
    assert [row[3] for row in found.rows[1:]] == pytest.approx([plain, narrow], abs=1e-3)
    assert found.rows[1][4] > 20, "one mean a class is far better than chance on digits"


def test_new_alphas_as_by_hand(runs: Path) -> None:
    asked = {"alphas": (0.2, 5.0), "clients": 8, "local": True, "local_lr": 0.05, "device": "cpu"}
    found = analyse("alphas", [runs / "fedavg"], asked)
    trained = Trained.load(runs / "fedavg")
    for row, alpha in zip(found.rows, (0.2, 5.0), strict=False):
        split = {"partition": "dirichlet", "over": "classes", "split": "pefll", "alpha": alpha, "clients": 8}
        (new,) = meet(trained, Meeting(device="cpu"), **split).federations
        assert row[:3] == ["fedavg", alpha, pytest.approx(ByHand(runs / "fedavg", new).voted(0.0), abs=1e-3)]
    assert [row[0] for row in found.rows[2:]] == ["local, no server"] * 2
    assert found.rows[2][2] != found.rows[0][2]


def test_new_clients_have_as_much_as_members(runs: Path) -> None:
    """Latecomers' data fall to as many as they were: else who trains alone would have a part of what members had."""
    federation = Trained.load(runs / "fedavg").federations[0]
    members = float(federation.train.sizes[: federation.members].float().mean())
    found = analyse("alphas", [runs / "fedavg"], {"alphas": (1.0,), "device": "cpu"})
    assert found.rows[0][-1] == pytest.approx(members, rel=0.35)
    many = analyse("variation", [runs / "fedavg"], {"alphas": (1.0,), "clients": 12, "device": "cpu"})
    assert many.rows[0][-1] < members / 2


def test_variation_of_new_clients(runs: Path) -> None:
    found = analyse("variation", [runs / "fedavg"], {"alphas": (0.2, 5.0), "clients": 8, "device": "cpu"})
    trained = Trained.load(runs / "fedavg")
    members = shares(trained.federations[0], range(trained.federations[0].members))
    for row, alpha in zip(found.rows, (0.2, 5.0), strict=True):
        split = {"partition": "dirichlet", "over": "classes", "split": "pefll", "alpha": alpha, "clients": 8}
        (new,) = meet(trained, Meeting(device="cpu"), **split).federations
        far = [min(0.5 * sum(abs(p - q)) for q in members) for p in shares(new, range(new.first_late, len(new)))]
        reached = ByHand(runs / "fedavg", new).voted(0.0)
        assert row[1:5] == [f"{alpha:g}", len(far), pytest.approx(np.mean(far)), pytest.approx(reached, abs=1e-3)]


def shares(federation: Federation, clients: range) -> list[Array]:
    y = federation.examples.y.numpy()
    counts = [np.bincount(y[federation.train[client].numpy()], minlength=10) for client in clients]
    return [count / count.sum() for count in counts]


def test_layers_mixed_by_hand() -> None:
    """Two numbers an example; one body swaps them, the other does not; a head takes the larger, or the smaller."""
    task = Task(Net(lambda: nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))), (2,), 2)
    straight, swapped = torch.eye(2), torch.eye(2).flip(0)
    models = [{"0.weight": straight, "1.weight": straight}, {"0.weight": swapped, "1.weight": swapped}]
    x = torch.tensor([[3.0, 1.0], [2.0, 0.0], [0.0, 5.0], [1.0, 4.0]])
    tests = [
        Batch(x, torch.tensor(y), torch.ones(4, dtype=torch.bool), torch.ones(4)) for y in ([0, 0, 1, 0], [0, 0, 1, 1])
    ]
    found = mix.matrix(task, models, tests)
    # Client 0: its own layers get 3 of 4 right; behind a body that swaps, they get the one that is labelled wrongly.
    # Client 1 swaps twice: all right; behind a body that does not, its head swaps once: none.
    assert found.tolist() == [[75.0, 25.0], [0.0, 100.0]]
    assert mix.normalised(found).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert mix.normalised(np.array([[50.0, 50.0]])).tolist() == [[1.0, 1.0]]


def test_own_layers_score_what_the_run_scored(runs: Path) -> None:
    found = analyse("mix", [runs / "pfedhn"], {"clients": 4})
    lines = [line.split(",") for line in (runs / "pfedhn" / "clients.csv").read_text().splitlines()]
    told = {int(line[1]): float(line[2]) for line in lines[1:]}
    *each, every = found.rows
    assert [row[4 + k] for k, row in enumerate(each)] == pytest.approx([told[k] for k in range(4)], abs=1e-3)
    assert [row[:2] for row in found.rows] == [["pfedhn", str(k)] for k in range(4)] + [["pfedhn", "all"]]
    for k, (_, _, own, others, *among) in enumerate(each):
        assert (own, others) == pytest.approx((among[k], (sum(among) - among[k]) / 3))
    assert every[2:] == pytest.approx([sum(column) / 4 for column in zip(*(row[2:] for row in each), strict=True)])


def test_a_fifo_datastore_under_a_shift_by_hand(runs: Path) -> None:
    trained = Trained.load(runs / "knnper")
    asked = shift.Settings(clients=4, alpha=1.0, shift=4, steps=8, device="cpu")
    voting = Voting.of(trained, Scoring(device="cpu"))
    world = shift.World(unused(trained, load("digits"), 0), asked, 0)
    play = shift.Play(world, voting.method, voting.states[0]["params"], asked)
    times = [0, 3, 4, 7]
    course = play.course(1.0, times)
    for k, time in enumerate(times):
        now = int(time >= 4)
        hand, right = ByHand(runs / "knnper", play.federations[now]), dict.fromkeys(course, 0)
        total = 0
        for client, (old, new, test) in enumerate(zip(world.old, world.new, world.tests[now], strict=True)):
            half = -(-len(old) // 2)  # a quarter of the rest of S comes in every step, then a quarter of S'
            came = half + (len(old) - half) * min(time + 1, 4) // 4 + len(new) * max(0, time - 3) // 4
            stream = np.concatenate([old, new])
            stored = {"fifo": stream[came - half : came], "concatenate": stream[:came], "fixed": stream[:half]}
            for name, kept in stored.items():
                right[name] += int((hand.votes(kept, test).argmax(1) == hand.y[test]).sum())
            right[shift.ALONE] += int((hand.likely(test).argmax(1) == hand.y[test]).sum())
            total += len(test)
            assert len(play.federations[now].test[client]) == len(test)
        assert {name: course[name][k] for name in course} == pytest.approx(
            {name: 100 * count / total for name, count in right.items()}, abs=1e-3
        )


def test_the_lambda_of_a_shift_by_hand(runs: Path) -> None:
    """What is held out of S chooses it, on what is there before anything arrives; and S is never the larger one."""
    trained = Trained.load(runs / "fedavg")
    asked = shift.Settings(clients=4, alpha=0.5, shift=4, steps=8, device="cpu")
    voting = Voting.of(trained, Scoring(device="cpu"))
    world = shift.World(unused(trained, load("digits"), 0), asked, 0)
    assert all(len(a) + len(b) <= len(c) for a, b, c in zip(world.old, world.val, world.new, strict=True))
    play = shift.Play(world, voting.method, voting.states[0]["params"], asked)
    hand, blends, right = ByHand(runs / "fedavg", play.federations[0]), (0.0, 0.3, 1.0), dict[float, float]()
    for blend in blends:
        right[blend] = 0
        for old, held in zip(world.old, world.val, strict=True):
            votes = hand.votes(old[: -(-len(old) // 2)], held, count=10)
            right[blend] += (hand.y[held] == (blend * votes + (1 - blend) * hand.likely(held)).argmax(1)).sum()
    count = sum(map(len, world.val))
    best = max(blends, key=lambda blend: right[blend])
    found, percent = play.best(blends)
    assert found == best
    assert percent == pytest.approx(100 * right[best] / count, abs=1e-3)
    assert len({*right.values()}) > 1, "a test in which lambda makes no difference would show nothing"


def test_a_world_deals_shares(runs: Path) -> None:
    random = np.random.default_rng(0)
    y = np.repeat([0, 1], [10, 20])
    (first, second) = shift.deal(y, np.array([[0.3, 0.7], [0.5, 0.5]]), random)
    assert np.bincount(y[first]).tolist() == [3, 10]
    assert np.bincount(y[second]).tolist() == [7, 10]
    assert sorted([*first, *second]) == list(range(30))
    halves = shift.deal(y, np.array([[0.1, 0.4], [0.25, 0.25]]), random)
    assert [np.bincount(y[rows]).tolist() for rows in halves] == [[1, 5], [4, 5]], "nobody has the other half"


def test_shift_as_a_whole(runs: Path) -> None:
    asked = {"clients": 4, "alpha": 1.0, "shift": 2, "steps": 4, "every": 2, "blend": 1.0, "device": "cpu"}
    found = analyse("shift", [runs / "fedavg"], asked)
    assert [row[1] for row in found.rows] == [0, 1, 2, 3]
    assert [row[4] for row in found.rows[:2]] == [found.rows[0][4]] * 2, "a fixed datastore stays as it is"
    assert "4 clients (0 had too few examples); lambda 1," in found.notes[0]


@pytest.mark.parametrize(
    ("name", "run", "settings", "says"),
    [
        ("neighbours", "pfedhn", {}, "a run of pfedhn, which has no model that is the same for all"),
        ("capacity", "local", {}, "a run of local, which has no model"),
        ("blend", "pfedhn", {}, "no model that is the same for all"),
        ("hardware", "pfedhn", {}, "no model that is the same for all"),
        ("prototypes", "pfedhn", {}, "no model that is the same for all"),
        ("quality", "pfedhn", {}, "no model that is the same for all"),
        ("shift", "pfedhn", {}, "no model that is the same for all"),
        ("shift", "fedavg", {"shift": 9, "steps": 9}, "must come before the last"),
        ("shift", "fedavg", {"clients": 2000, "alpha": 100.0, "device": "cpu"}, "take fewer --clients"),
        ("mix", "knnper", {}, "no layers that could be exchanged"),
        ("mix", "pfedhn", {"seed": 3}, "no seed 3"),
        ("capacity", "pfedhn", {"by": "data"}, "no latecomers"),
    ],
)
def test_what_scoring_again_needs(runs: Path, name: str, run: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        analyse(name, [runs / run], settings)
