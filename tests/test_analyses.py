"""Analyses that read run folders alone, on folders made by hand, against numbers worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from console import Command
from latecomer.errors import RunError, SettingError, UnknownName
from latecomer.study.analyses import analyse, names
from latecomer.study.figure import Figure, Panels

Row = dict[str, Any]


def member(classes: str, accuracy: float = 50.0, **other: Any) -> Row:
    return {"role": "member", "accuracy": accuracy, "classes": classes, "train_examples": 10, **other}


def latecomer(classes: str, accuracy: float = 50.0, **other: Any) -> Row:
    return member(classes, accuracy, role="latecomer", **other)


def fabricate(
    path: Path,
    clients: Sequence[Row],
    *,
    method: str = "pefll",
    run: Row | None = None,
    own: Row | None = None,
    seeds: Sequence[int] = (0,),
    descriptors: dict[str, list[list[float]]] | None = None,
    states: dict[int, str] | None = None,
    splits: Sequence[str] = ("a",),
) -> Path:
    """A finished run whose seeds have the same clients; `descriptors` by file, `states` by round."""
    path.mkdir(parents=True)
    rows = [{"seed": seed, "client": k, **row} for seed in seeds for k, row in enumerate(clients)]
    columns = [*dict.fromkeys(name for row in rows for name in row)]
    lines = [",".join(columns), *(",".join(str(row.get(name, "")) for name in columns) for row in rows)]
    (path / "clients.csv").write_text("\n".join(lines) + "\n")
    told = {
        "run": {"method": method, "data": "digits", **(run or {})},
        "method": own or {},
        "about": {"splits": splits},
    }
    text = [f"[{part}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items()) for part, keys in told.items()]
    (path / "settings.toml").write_text("\n".join(text))
    data = (run or {}).get("data", "digits")
    (path / "result.json").write_text(
        json.dumps({"method": method, "data": data, "rounds": 1, "seeds": [*seeds], "seconds": 1.0})
    )
    each = [
        {"round": at, "runs": [{"seed": seed, "state": state} for seed in seeds]}
        for at, state in (states or {}).items()
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in each))
    for name, found in (descriptors or {}).items():
        (path / "descriptors").mkdir(exist_ok=True)
        tensors = {str(seed): np.array(found, np.float32) for seed in seeds}
        save_file(tensors, path / "descriptors" / f"{name}.safetensors")
    return path


# Class shares (1, 0), (3/4, 1/4), (1/2, 1/2), (0, 1): from the last client, all others are nearer and nearer.
FOUR = [member("0:8"), member("0:6 1:2"), member("0:4 1:4"), latecomer("1:8")]


def test_spearman_by_hand(tmp_path: Path) -> None:
    # The latecomer's true ranks, nearest last: 4, 3, 2, 1 (itself). In round 0 descriptors rank 3, 4, 2, 1 by distance
    # 5, 9, 2, 0: one swap of neighbours, 1 - 6 * (1 + 1) / (4 * 15) = 0.8. The selected ones have the true order.
    course = {"round-00000000": [[5.0], [9.0], [2.0], [0.0]], "selected": [[9.0], [5.0], [2.0], [0.0]]}
    run = fabricate(tmp_path / "one", FOUR, seeds=(0, 1), descriptors=course)
    found = analyse("spearman", [run])
    # Shares of two classes lie on a line, whose distances no linear map puts into another order.
    told = [(0, 0.8), ("selected", 1.0), ("random", 1.0)]
    assert found.rows == [["one", at, pytest.approx(value), 0.0, 2] for at, value in told]
    assert isinstance(found.figure, Figure)
    assert found.figure.series[0].x == [0.0]
    # Ties share a rank: with all but itself as far away, ranks 3, 3, 3, 1 against 4, 3, 2, 1 have 3 / sqrt(3 * 5).
    tied = fabricate(tmp_path / "tied", FOUR, descriptors={"selected": [[1.0, 0], [0, 1], [-1, 0], [0, 0]]})
    told = analyse("spearman", [tied])
    assert told.rows[0][2] == pytest.approx(3 / np.sqrt(15))
    assert told.figure is None
    assert "--trace-descriptors" in told.notes[0]


def test_a_random_map_of_many_dimensions_keeps_the_order(tmp_path: Path) -> None:
    """Of one dimension it does not: what a descriptor's size alone brings."""
    clients = [member(f"0:{9 - k} 1:{k} 2:{3 * k % 7}") for k in range(1, 9)] + [latecomer("0:3 1:5 2:1")]
    found = []
    for size in (1, 2000):
        course = {"selected": [[float(k)] * size for k in range(9)]}
        (_, random) = analyse("spearman", [fabricate(tmp_path / str(size), clients, descriptors=course)]).rows
        assert random[1] == "random"
        found.append(random[2])
    assert found[0] < 0.9 < 0.97 < found[1]


def test_spearman_says_what_it_needs(tmp_path: Path) -> None:
    without = fabricate(tmp_path / "without", FOUR, method="fedavg")
    alone = fabricate(tmp_path / "alone", FOUR[:3], descriptors={"selected": [[1.0], [2.0], [3.0]]})
    same = fabricate(tmp_path / "same", FOUR, descriptors={"selected": [[1.0]] * 4})
    few = fabricate(tmp_path / "few", FOUR, descriptors={"selected": [[1.0]] * 3})
    lost = fabricate(tmp_path / "lost", FOUR, descriptors={"selected": [[1.0], [2.0], [3.0], [np.nan]]})
    for run, says in (
        (without, "a run of fedavg that kept no descriptors"),
        (alone, "no latecomers"),
        (same, "the same descriptor"),
        (few, "not a descriptor for every client"),
        (lost, "not all finite"),
    ):
        with pytest.raises((SettingError, RunError), match=says):
            analyse("spearman", [run])


def test_curves_by_hand(tmp_path: Path) -> None:
    # Means of the seeds 40 and 60, then 50 and 80, with deviations of 10 * sqrt(2) and 15 * sqrt(2).
    run = fabricate(tmp_path / "one", FOUR, seeds=(0, 1))
    lines: list[Row] = [
        {"round": 3, "runs": [{"seen": {"accuracy": 40.0}}, {"seen": {"accuracy": 60.0}}]},
        {"round": 6, "runs": [{"seen": {"accuracy": 50.0}}, {"seen": {"accuracy": 80.0}}]},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = analyse("curves", [run])
    ten, fifteen = 10 * 2**0.5, 15 * 2**0.5
    assert found.rows == [["one", 3, 50.0, pytest.approx(ten)], ["one", 6, 65.0, pytest.approx(fifteen)]]
    assert isinstance(found.figure, Figure)
    (line,) = found.figure.series
    assert (line.x, line.y, line.low) == ([3, 6], [50, 65], [pytest.approx(50 - ten), pytest.approx(65 - fifteen)])
    with pytest.raises(SettingError, match="no accuracy of its latecomers on the way: --watch-unseen"):
        analyse("curves", [run], {"who": "latecomers"})


def test_variation_by_hand(tmp_path: Path) -> None:
    # The nearest member of (1/4, 3/4) is (1/2, 1/2): half of 1/4 + 1/4. That of class 2 alone is 1 from everybody.
    clients = [member("0:8", 90), member("0:4 1:4", 70), latecomer("0:2 1:6", 60), latecomer("2:5", 30)]
    found = analyse("variation", [fabricate(tmp_path / "one", clients, method="pfedhn")])
    assert found.rows == [["one", "own", 2, pytest.approx(0.625), 45.0, 80.0, -35.0, 10.0]]
    assert isinstance(found.figure, Panels)
    (each,) = found.figure.figures[0].series
    assert (each.x, each.y) == ([pytest.approx(0.25), 1.0], [60.0, 30.0])


def test_variation_says_what_it_needs(tmp_path: Path) -> None:
    for name, clients, says in (
        ("no late", FOUR[:3], "had no latecomers"),
        ("no test", [member("0:8", np.nan), latecomer("0:8")], "members of .* have no test examples"),
        ("no labels", [member("0:8"), latecomer("")], "not known which classes"),
    ):
        with pytest.raises(SettingError, match=says):
            analyse("variation", [fabricate(tmp_path / name, clients)])


# Two clusters, far apart: clients 0 to 2 and 3 to 5.
PLACES = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [10.0, 10.0], [10.0, 11.0], [11.0, 10.0]]


def cluster(traits: Sequence[int], **more: Sequence[Any]) -> list[Row]:
    rows = [member(f"{k % 3}:5", rotation=turned) for k, turned in enumerate(traits)]
    return [row | {name: values[k] for name, values in more.items()} for k, row in enumerate(rows)]


@pytest.mark.parametrize("method", ["pfedhn", "odpflhn", "flowdup"])
def test_a_map_by_hand(tmp_path: Path, method: str) -> None:
    clients = cluster([0, 0, 0, 90, 90, 90])
    found = analyse("map", [fabricate(tmp_path / "one", clients, method=method, descriptors={"selected": PLACES})])
    assert [row[2] for row in found.rows] == ["descriptors", "PCA", "t-SNE"]
    # Everybody's nearest is of its own kind; by chance 2 of the 5 others are.
    expected = sum(silhouette(k) for k in range(6)) / 6
    assert found.rows[0][3:] == [6, 2, pytest.approx(expected), 1.0, 0.4]
    assert found.rows[1][3:] == [6, 2, pytest.approx(expected), 1.0, 0.4], "two axes of two lose nothing"
    assert "100.0 %" in found.notes[0]
    assert isinstance(found.figure, Panels)
    assert [one.name for one in found.figure.figures[0].series] == ["rotation 0", "rotation 90"]


def silhouette(k: int) -> float:
    """Of client k: how much nearer its own kind is than the other, (b - a) / b."""
    far = [float(np.hypot(x - PLACES[k][0], y - PLACES[k][1])) for x, y in PLACES]
    own, other = (far[:3], far[3:]) if k < 3 else (far[3:], far[:3])
    return 1 - (sum(own) / 2) / (sum(other) / 3)


def test_a_map_by_any_trait(tmp_path: Path) -> None:
    clients = cluster([0] * 6, budget=list("SSMMLL"), own_classes=[1, 2, 3, 4, 5, np.nan])
    run = fabricate(tmp_path / "one", clients, descriptors={"selected": PLACES})

    def kinds(trait: str) -> list[str]:
        figure = analyse("map", [run], {"trait": trait}).figure
        assert isinstance(figure, Panels)
        return [f"{one.name}: {len(one.x)}" for one in figure.figures[0].series]

    assert kinds("auto") == ["class 0: 2", "class 1: 2", "class 2: 2"]
    assert kinds("has:1") == ["class 1: 2", "other: 4"]
    assert kinds("budget") == ["budget L: 2", "budget M: 2", "budget S: 2"]
    assert kinds("own_classes")[-1] == "own_classes none: 1"
    for settings, says in (
        ({"trait": "rotation"}, "the same rotation"),
        ({"trait": "bugdet"}, "did you mean 'budget'"),
        ({"seed": 7}, "no seed 7"),
        ({"who": "latecomers"}, "needs 4 clients"),
    ):
        with pytest.raises(SettingError, match=says):
            analyse("map", [run], settings)


def test_a_number_of_many_values_falls_into_quarters(tmp_path: Path) -> None:
    sizes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]  # quarters at 1, 4, 7, 10, 13
    clients = [member("0:1") | {"train_examples": size} for size in sizes]
    run = fabricate(tmp_path / "one", clients, descriptors={"selected": [[float(k), 0.0] for k in sizes]})
    figure = analyse("map", [run], {"trait": "train_examples"}).figure
    assert isinstance(figure, Panels)
    told = {one.name.removeprefix("train_examples "): len(one.x) for one in figure.figures[0].series}
    assert told == {"1 to 4": 3, "4 to 7": 3, "7 to 10": 3, "10 to 13": 4}


def test_choices_by_hand(tmp_path: Path) -> None:
    chosen = [(10, 0.1), (20, 0.3), (30, 0.9), (41, 0.7)]
    clients = [member("0:1", blend=blend) | {"train_examples": size} for size, blend in chosen]
    run = fabricate(tmp_path / "one", clients, method="knnper", own={"capacity": 0.5, "weak": 0.0})
    found = analyse("choices", [run], {"groups": 2})
    # Of 41 examples half is 21, as a bit of one counts as one. Ranks 1 2 3 4 against 1 2 4 3: 1 - 6 * 2 / 60.
    assert found.rows == [
        ["one", "5 to 10", 2, pytest.approx(0.2), 0.0],
        ["one", "15 to 21", 2, pytest.approx(0.8), 1.0],
    ]
    assert "0.800 over 4 clients" in found.notes[0]


def test_choices_say_what_they_need(tmp_path: Path) -> None:
    other = fabricate(tmp_path / "other", FOUR, method="fedavg")
    weak = fabricate(tmp_path / "weak", [member("0:1", blend=0.5)], method="knnper", own={"weak": 0.5})
    for run, says in ((other, "a run of fedavg, whose clients choose no lambda"), (weak, "some are weak")):
        with pytest.raises(SettingError, match=says):
            analyse("choices", [run])


def scored(path: Path, scores: Sequence[float], **how: Any) -> Path:
    return fabricate(path, [member("0:8", 10), *(latecomer("0:8", score) for score in scores)], **how)


def test_along_a_setting_by_hand(tmp_path: Path) -> None:
    runs = [
        scored(tmp_path / str(k), scores, method="flowdup", own={"dimension": k}, run={"name": str(k)})
        for k, scores in ((200, (40, 62)), (20, (20, 30)), (100, (30, 50)))
    ]
    found = analyse("along", runs, {"by": "dimension", "log_x": True})
    # From 20 to 100 the two clients gain 10 and 20: 15 with 12.706 * 7.071 / sqrt(2) = 63.5 on either side.
    assert [row[:3] for row in found.rows] == [["flowdup", 20, 25.0], ["flowdup", 100, 40.0], ["flowdup", 200, 51.0]]
    minus = "\N{MINUS SIGN}"
    assert [row[5] for row in found.rows] == [
        "",
        f"+15.0 [{minus}48.5, +78.5], 2 clients",
        f"+11.0 [{minus}1.7, +23.7], 2 clients",
    ]
    assert isinstance(found.figure, Figure)
    assert found.figure.series[0].x == [20, 100, 200]
    members = analyse("along", runs, {"by": "dimension", "who": "members", "score": "bottom_decile"})
    assert [row[2] for row in members.rows] == [10.0, 10.0, 10.0]


def test_lines_are_what_differs_besides(tmp_path: Path) -> None:
    """FLowDUP's Table 6: as many labelled clients in a round, with unlabelled ones beside them and without."""
    runs = [
        scored(
            tmp_path / f"{name} {p}", (score + 10 * p,), method="flowdup", run={"labelled": p, **how}, splits=[str(p)]
        )
        for name, how, score in (
            ("without", {"cohort": 5, "cohort_labelled": 1.0}, 40),
            ("with", {"cohort": 10, "cohort_labelled": 0.5}, 43),
        )
        for p in (0.1, 0.2)
    ]
    found = analyse("along", runs, {"by": "labelled"})
    without, beside = ("flowdup, cohort 5, cohort_labelled 1", "flowdup, cohort 10, cohort_labelled 0.5")
    assert [row[:3] for row in found.rows] == [
        [without, 0.1, 41],
        [without, 0.2, 42],
        [beside, 0.1, 44],
        [beside, 0.2, 45],
    ]
    assert [row[6] for row in found.rows] == ["", "", "+3.0, 1 clients", "+3.0, 1 clients"]
    assert found.rows[1][5] == "+1.0, no pairs", "another labelled share is another split"
    together = analyse("along", runs[::2], {"by": "cohort-labelled", "lines": ("method",)})
    assert [row[:3] for row in together.rows] == [["flowdup", 0.5, 44.0], ["flowdup", 1.0, 41.0]]
    assert together.notes == ["flowdup: its runs differ in cohort, too."]


def test_words_and_seeds_along_a_setting(tmp_path: Path) -> None:
    runs = [
        scored(
            tmp_path / f"{seed} {learned}", (50 + seed,), own={"learned_regulariser": learned}, seeds=(seed,), splits=[]
        )
        for learned in (True, False)
        for seed in (0, 2)
    ]
    found = analyse("along", runs, {"by": "learned_regulariser"})
    root = pytest.approx(2**0.5)
    assert [row[1:5] for row in found.rows] == [["false", 51.0, root, 2], ["true", 51.0, root, 2]]
    assert isinstance(found.figure, Figure)
    assert found.figure.series[0].low == [pytest.approx(51 - 2**0.5)] * 2
    for settings, says in (
        ({"by": "lerned-regulariser"}, "did you mean 'learned_regulariser'"),
        ({}, "Say which setting"),
        ({"by": "learned_regulariser", "log_x": True}, "numbers above 0"),
        ({"by": "learned_regulariser", "who": "unlike"}, "no scores of latecomers of a kind that no member has"),
        ({"by": "data"}, "All runs have the same --data, digits; they differ in learned_regulariser"),
    ):
        with pytest.raises(SettingError, match=says):
            analyse("along", runs, settings)
    again = scored(tmp_path / "again", (60,), own={"learned_regulariser": True}, splits=[])
    with pytest.raises(SettingError, match="same --learned-regulariser and seeds"):
        analyse("along", [*runs, again], {"by": "learned_regulariser"})


def test_other_data_are_another_line(tmp_path: Path) -> None:
    runs = [
        scored(tmp_path / f"{data} {k}", (50,), run={"data": data}, own={"steps": k}, splits=[data])
        for data in ("mnist", "digits")
        for k in (1, 2)
    ]
    found = analyse("along", runs, {"by": "steps", "lines": ("method",)})
    assert {row[0] for row in found.rows} == {"pefll, data mnist", "pefll, data digits"}


def test_where_runs_part(tmp_path: Path) -> None:
    one = fabricate(tmp_path / "one", FOUR, states={10: "a", 20: "b", 30: "c"}, own={"lr": 0.1})
    two = fabricate(tmp_path / "two", FOUR, states={10: "a", 20: "x", 30: "c", 40: "d"}, own={"lr": 0.2})
    same = fabricate(tmp_path / "same", FOUR, states={10: "a", 30: "c"}, own={"lr": 0.1})
    never = fabricate(tmp_path / "never", FOUR, states={15: "a"}, own={"lr": 0.1})
    found = analyse("part", [one, two, same, never])
    assert found.rows == [["two", 0, 3, 10, 20], ["same", 0, 2, 30, "-"], ["never", 0, 0, "-", "-"]]
    assert found.notes[:2] == [
        "one and two differ in --lr.",
        "one and same have the same settings, machine, versions and splits.",
    ]
    old = fabricate(tmp_path / "old", FOUR)
    stranger = fabricate(tmp_path / "stranger", FOUR, seeds=(5,), states={10: "a"})
    for runs, says in (([one], "one cannot"), ([one, old], "kept no digests"), ([one, stranger], "no seed in common")):
        with pytest.raises(SettingError, match=says):
            analyse("part", runs)


def test_a_damaged_run_does_not_lose_the_others(tmp_path: Path) -> None:
    course = {"selected": [[9.0], [5.0], [2.0], [0.0]]}
    good, bad = (fabricate(tmp_path / name, FOUR, descriptors=course) for name in ("good", "bad"))
    (bad / "result.json").unlink()
    found = analyse("spearman", [bad, good])
    assert {row[0] for row in found.rows} == {"good"}
    assert "not finished" in found.notes[-1]
    assert found.about["runs"] == [str(good)]
    with pytest.raises(RunError, match="not finished"):
        analyse("spearman", [bad])
    with pytest.raises(SettingError, match=r"one cannot.*bad is not finished"):
        analyse("part", [good, bad])
    with pytest.raises(UnknownName, match="did you mean 'spearman'"):
        analyse("speerman", [good])
    with pytest.raises(UnknownName, match="did you mean"):
        analyse("spearman", [tmp_path / "goood"])


def test_the_command_writes_table_and_figure(tmp_path: Path, command: Command) -> None:
    course = {"round-00000000": [[5.0], [9.0], [2.0], [0.0]], "selected": [[9.0], [5.0], [2.0], [0.0]]}
    run = fabricate(tmp_path / "one", FOUR, descriptors=course)
    done = command("analyse", "spearman", run, "-o", tmp_path / "out")
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "out" / "spearman.json").read_text())
    assert told["rows"][0][:3] == ["one", 0, pytest.approx(0.8)]
    assert told["rows"][0][3] is None, "of one seed there is no spread, and JSON knows no NaN"
    assert (tmp_path / "out" / "spearman.svg").read_text().count("Spearman") >= 1
    listed = command("analyse").out
    assert all(name in listed for name in names())
    for words in (("analyse", "map", run, "--trait", "claas"), ("analyse", "along", run), ("analyse", "spearman")):
        done = command(*words)
        assert done.code == 2
        assert "Traceback" not in done.err
        assert done.err.startswith("latecomer: ")
