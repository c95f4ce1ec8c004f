"""The benchmarks compare with the same work, run to the end at the smallest sizes, and keep what they measured."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attackers
import bench
import cohort
import common
import compare
import frames
import history
import membership
import odpflhn_privacy
import plain
import scale
import secure
import superlink
import toys
import twins
from latecomer import Federation, tree
from latecomer.engines import make
from latecomer.method import Method
from latecomer.methods.fedavg import FedAvg
from latecomer.methods.flowdup import FLowDUP
from latecomer.methods.pefll import PeFLL
from latecomer.nets.models import builder
from latecomer.runs.experiment import Experiment, make_task
from latecomer.runs.run import Run
from latecomer.train import Plan, Training

CPU = torch.device("cpu")
LINE = {
    "commit": "abc1234",
    "date": "2025-01-01",
    "machine": "a CPU",
    "threads": 2,
    "torch": "2.13.0",
    "figures": {"LeNet, 5 clients": {"times_as_fast": 1.25}},
}


def monotonous(clients: int = 3) -> Federation:
    """Clients that own one image many times over, so that it does not matter which batches are drawn."""
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (clients, 16, 16, 3), dtype=np.uint8)
    rows = [[client] * (4 + 2 * client) for client in range(clients)]
    return Federation.from_arrays(
        x, np.arange(clients), train=rows, test=rows, val=rows, classes=5, mean=(0.4,) * 3, std=(0.2,) * 3
    )


@pytest.mark.parametrize(
    ("kind", "settings", "learned"),
    [
        (FedAvg, {"batch": 4, "epochs": 2, "momentum": 0.5}, "params"),
        (PeFLL, {"batch": 4, "steps": 3, "server_lr": 0.01, "lambda_h": 0.1, "lambda_v": 0.2}, "learned"),
        (FLowDUP, {"batch": 4, "lambda_reg": 0.1, "server_lr": 0.01, "dimension": 50}, "psi"),
    ],
)
def test_the_plain_loop_does_the_same_work(kind: type[Method], settings: dict[str, Any], learned: str) -> None:
    federation = monotonous()
    task = make_task(federation, builder("lenet", federation.examples.shape))
    method = kind(task=task, clients=3, members=3, **settings)
    training = Training(method, [federation], make("loop", method, [federation], "cpu"), Plan(cohort=3))
    once = plain.rounds(training)
    before = tree.ravel(training.states[0][learned])
    for _ in range(2):  # in the second, Adam has something to remember
        training.advance()
        found = once()
    after = training.states[0][learned]
    gap = tree.ravel(found, like=after) - tree.ravel(after)
    moved = (tree.ravel(after) - before).abs().mean()
    assert moved > 1e-4
    assert gap.abs().mean() < 1e-3 * moved  # on the mean: Adam makes a full step of a gradient that is rounding noise


def test_the_plain_loop_trains_as_the_engines_do() -> None:
    clients = common.Cohort(monotonous(), "lenet", steps=3, device=CPU, batch=4)
    expected = clients.exchange(make("loop", clients.method, [clients.federation], "cpu"))
    found = clients.plain()()
    assert min(float(leaf.abs().max()) for leaf in tree.leaves(expected)) > 1e-4
    assert toys.gap(expected, found) < 1e-6


def test_twins_lend_their_models() -> None:
    """The third client has the classes, and the examples, of the second; nobody has those of the fourth."""
    random = np.random.default_rng(0)
    x, rows = random.integers(0, 256, (6, 16, 16, 3), dtype=np.uint8), [[0, 1], [2, 3], [2, 3], [4, 5]]
    federation = Federation.from_arrays(x, np.arange(6), train=rows, test=rows, val=rows, members=2)
    task = make_task(federation, builder("lenet", federation.examples.shape))
    method = PeFLL(task=task, clients=4, members=2, batch=2, steps=5, lr=0.05)
    training = Training(method, [federation], make("loop", method, [federation], "cpu"), Plan(cohort=2))
    training.advance()
    training.evaluate()
    words = re.fullmatch(
        r"seed 0: members \S+; latecomers \S+; 1 with twins (\S+), the twins themselves (\S+); "
        r"their models on the latecomers' data (\S+); 1 without twins \S+",
        twins.compare(training, 0),
    )
    assert words
    assert len(set(words.groups())) == 1


def test_bench_runs_and_records_nothing_tiny(capsys: pytest.CaptureFixture[str]) -> None:
    before = history.FILE.read_text(encoding="utf-8")
    bench.main(["--tiny"])
    shown = capsys.readouterr().out
    for name in ("LeNet, 2", "digits MLP, 3", "FedAvg round", "PeFLL round", "FLowDUP round", "120 clients against 60"):
        assert shown.count(name) == 1
    assert history.FILE.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("script", "words", "lines"),
    [
        (
            cohort,
            "--rows 2 --steps 1 --side 16 --repeats 1",
            ["2 clients  plain", "2 clients  loop", "2 clients  vector"],
        ),
        (scale, "--clients 60,70 --rounds 1", ["60 clients", "70 clients"]),
    ],
    ids=["cohort", "scale"],
)
def test_the_other_tables(
    script: Any, words: str, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script.__name__, *words.split()])
    script.main()
    shown = capsys.readouterr().out
    assert all(shown.count(line) == 1 for line in lines)


@pytest.mark.parametrize(("commit", "kept"), [("abc1234", True), ("abc1234-dirty", False), ("", False)])
def test_only_commits_are_recorded(
    commit: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(history, "FILE", tmp_path / "history.jsonl")
    monkeypatch.setattr(bench, "commit", lambda: commit)
    monkeypatch.setattr(bench, "figures", lambda sizes, device: [bench.Figure("LeNet", "loop", "round", 2.0, 3.0)])
    bench.main([])
    assert history.FILE.exists() == kept
    assert ("not recorded" in capsys.readouterr().out) != kept
    words = ["--record", str(tmp_path / "else.jsonl")]
    if not commit:
        with pytest.raises(SystemExit, match="2"):
            bench.main(words)
        words += ["--commit", (commit := "def5678")]
    bench.main(words)
    (line,) = history.read(tmp_path / "else.jsonl")
    assert line["commit"] == commit
    assert line["figures"]["LeNet"] == {
        "per": "round", "engine": "loop", "ms": 2.0, "against_ms": 3.0, "times_as_fast": 1.5
    }  # fmt: skip


def test_one_line_per_commit_and_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "history.jsonl"
    again = LINE | {"figures": {"LeNet, 5 clients": {"times_as_fast": 1.5}, "more": {"times_as_fast": 7}}}
    for line in (LINE, LINE | {"machine": "a GPU"}, LINE | {"commit": "def5678"}, again):
        history.record(path, line)
    assert [(line["commit"], line["machine"]) for line in history.read(path)] == [
        ("abc1234", "a GPU"),
        ("def5678", "a CPU"),
        ("abc1234", "a CPU"),
    ]
    bench.main(["--history", str(path)])
    shown = capsys.readouterr().out
    assert shown.index("a GPU") < shown.index("a CPU")
    assert shown.index("def5678") < shown.rindex("abc1234")
    assert "1.50" in shown
    assert "7.00" in shown


@pytest.mark.parametrize("text", ["nonsense", "[1]", json.dumps({"commit": "abc1234"})])
def test_a_file_that_is_no_history(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text + "\n", encoding="utf-8")
    for words in (["--history", str(path)], ["--history", str(tmp_path / "none.jsonl")]):
        with pytest.raises(SystemExit, match="2"):
            bench.main(words)
        assert "Traceback" not in (err := capsys.readouterr().err)
        assert "no history of measurements" in err or "cannot be read" in err


def test_the_history_in_the_repository_can_be_read() -> None:
    lines = history.read(history.FILE)
    assert lines
    assert not any(line["commit"].endswith("-dirty") for line in lines)


def test_validators_are_no_latecomers_in_the_curves_of_privacy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"data": "digits", "clients": "10", "unseen": "0.2", "validators": "0.25", "rounds": "2", "cohort": "2"}
    values |= {"engine": "vector", "pool": "mean", "bound": "1", "out": str(tmp_path), "name": "run"}
    Run.begin(Experiment.parse("odpflhn", values)).go()
    asked: list[list[int]] = []
    score = odpflhn_privacy.score
    monkeypatch.setattr(odpflhn_privacy, "score", lambda *given: (asked.append(given[4].tolist()), score(*given))[1])
    odpflhn_privacy.curves(tmp_path / "run", [10.0], [4], 2)
    assert asked == [[8, 9]] * 3, "two draws with noise and one without; 6 and 7 are validators"
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines[:3]] == ["members", "validators", "latecomers"]
    assert lines[-1].split()[0] == "4.0"


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, by jacfwd
def test_an_attack_is_measured_for_all_that_clients_give_away(capsys: pytest.CaptureFixture[str]) -> None:
    """Too small to find what is not certain: without noise, whoever knows all other examples knows the last."""
    threads = torch.get_num_threads()
    membership.main(["--clients", "6", "--examples", "4", "--rounds", "1"])
    torch.set_num_threads(threads)
    table = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    attacked = [cells for cells in table[2:] if "[" in cells[3]]
    assert [(cells[0].partition(",")[0], cells[1]) for cells in attacked if cells[2] == "population"] == [
        ("descriptor", "PeFLL"), ("descriptor", "ODPFL-HN"),
        ("update", "FedAvg"), ("update", "FedAvg"), ("update", "PeFLL"),
        ("model", "FedAvg+"), ("model", "PeFLL"), ("model", "ODPFL-HN"), ("common model", "FedAvg"),
    ]  # fmt: skip
    certain = [cells for cells in attacked if cells[2] == "all others"]
    assert len(certain) == 8
    assert {cells[3] for cells in certain} == {"1.00 [1.00, 1.00]"}
    assert sum(len(cells) == 4 + len(membership.EPSILONS) for cells in attacked) == 4, "ODPFL-HN alone has noise"


def test_a_threshold_is_chosen_by_shadow_clients_and_counted_on_others() -> None:
    own, others = torch.tensor([[3.0, 4.0], [5.0, 1.0]]), torch.tensor([[0.0, 1.0], [2.0, 3.5]])
    gain, place = attackers.best_threshold(own, others)
    assert (gain, place) == (0.5, 2.5), "three of four above it, and one of four"
    useless = [torch.zeros(2, 2)] * 2
    assert (
        attackers.advantage({"a": useless, "b": [own, others]}, {"a": [own, others], "b": useless})
        == "0.00 [0.00, 0.00]"
    )
    assert attackers.advantage({"b": [own, others]}, {"b": [own + 9, others - 9]}) == "1.00 [1.00, 1.00]"


def test_runs_are_compared_client_by_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Two seeds of two latecomers: over clients, as two seeds say nothing."""
    for name, scores in (("a", (90, 80, 70, 60)), ("b", (92, 83, 70, 63))):
        rows = [f"{k // 2},{k % 2},latecomer,{score},{score + 1}" for k, score in enumerate(scores)]
        rows += [f"{seed},9,member,{50 + seed},{60 + seed}" for seed in (0, 1)]
        (tmp_path / name).mkdir()
        (tmp_path / name / "clients.csv").write_text("\n".join(["seed,client,role,accuracy,own_classes", *rows]))
    monkeypatch.setattr(sys, "argv", ["compare.py", str(tmp_path / "a"), str(tmp_path / "b")])
    compare.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        f"{kind}, {column}" for kind in ("seen", "unseen") for column in ("accuracy", "own_classes")
    ]
    late = [line.split() for line in lines[lines.index("unseen, accuracy") + 1 :][:2]]
    assert late[0] == ["a", "75.0", "±", "14.1"]
    assert late[1][:5] == ["b", "77.0", "±", "14.8", "+2.00"], "the mean of 2, 3, 0 and 3"
    assert late[1][5:] == ["[-0.25,", "+4.25]", "over", "4", "clients"], "3.18 times a standard error of 0.71"


def test_an_eager_round_can_be_followed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["frames.py"])
    frames.main()
    shown = capsys.readouterr().out.splitlines()
    stack = [line.split()[1] for line in shown[:-2]]
    assert stack[0] == "train.py:Training.advance"
    assert stack[-1] == frames.UPDATE
    assert len(stack) <= 14, "a round that one can follow"
    assert shown[-2].startswith(f"{len(stack)} frames in ")
    assert "functions in" in shown[-1]
    assert "engines/capture" not in shown[-1]


def test_secure_means_cost_what_they_cost_and_are_as_exact_as_they_say() -> None:
    """By hand: keys, a sealed box and a share for each of 5 clients, 41 words; everybody's keys, boxes and numbers."""
    cost = secure.measure(5, 40, 0.4)
    assert (cost.up, cost.down) == (96 + 5 * (94 + 33) + 41 * 8, 5 * (96 + 16 + 94) + 8 * 4)
    assert 0 < cost.error <= 0.5


def test_a_simulated_superlink_answers_first_come_first_served() -> None:
    two = superlink.Station(workers=2)
    assert [two.take(0.0, 3.0), two.take(0.0, 1.0), two.take(0.5, 1.0), two.take(4.0, 1.0)] == [3.0, 1.0, 2.0, 5.0]
    assert (two.busy, two.waited) == (6.0, 0.5)


def test_a_simulated_exchange_is_twenty_requests_a_client_and_grows_with_them() -> None:
    cost = superlink.Cost()
    one = superlink.simulate(superlink.Load(nodes=1), cost, exchanges=1)
    assert one.requests["request"] == 20  # 5 to send, 4 to fetch, 1 to confirm, 5 to answer, 4 to collect, 1 to confirm
    assert one.median > 20 * cost.request
    many = superlink.simulate(superlink.Load(nodes=20), cost, exchanges=1)
    assert 20 * 19 * cost.request < many.median < 20 * 3 * one.median
    assert one.busy < many.busy <= 1
    several = superlink.simulate(superlink.Load(nodes=20, workers=4), cost, exchanges=1)
    assert several.median < many.median


def test_nodes_that_only_look_fill_a_superlink_at_the_number_that_the_formula_says() -> None:
    cost, load = superlink.Cost(), superlink.Load(nodes=100, cohort=1)
    share = superlink.idle(load, cost)
    assert share == pytest.approx(100 * 0.004 * (1 / 3 + 1 / 10))
    assert superlink.simulate(load, cost, exchanges=3).busy == pytest.approx(share, abs=0.1)
    assert superlink.idle(superlink.Load(nodes=superlink.most_nodes(load, cost, 20.0)), cost) < 1
