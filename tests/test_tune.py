"""Settings are chosen by validation data: searches go on where they stopped, the worse trials end early."""

from __future__ import annotations

import dataclasses
import sqlite3
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from console import Command
from latecomer import methods, train
from latecomer.errors import LatecomerError, MissingExtra, RunError, SettingError, UnknownName
from latecomer.runs.experiment import Experiment
from latecomer.settings import settings_of
from latecomer.study.tune import tune as tuning
from latecomer.study.tune.search import SEARCHED, Choice, Range, Tuning, space
from latecomer.study.tune.trials import Trial, Trials
from latecomer.study.tune.tune import Search, Tuned, over, tune

TINY: dict[str, Any] = {
    "clients": 12,
    "unseen": 0.25,
    "rounds": 8,
    "cohort": 3,
    "evaluate_every": 2,
    "batch": 16,
    "engine": "vector",
    "graphs": False,
    "device": "cpu",
}
WANTED = "lr=0.005:0.5:log,epochs=1|2"


def search(given: str = WANTED, **budget: Any) -> Search:
    return Search.of("fedavg", TINY, Tuning(**{"trials": 8, "pack": 4, "search": given, **budget}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A search that was never interrupted."""
    return tune(search(), tmp_path_factory.mktemp("tune") / "whole")


# the search


def test_trials_differ_and_the_best_is_kept(whole: Tuned) -> None:
    assert [trial.number for trial in whole.trials] == list(range(8))
    assert whole.trials[0].settings == {"lr": 0.05, "epochs": "1"}, "what is usual comes first"
    assert [trial.settings["epochs"] for trial in whole.trials[:4]] == ["1"] * 4, "they share exchanges"
    assert [trial.settings["epochs"] for trial in whole.trials[4:]] == ["2"] * 4
    rates = {trial.settings["lr"] for trial in whole.trials}
    assert len(rates) == 8
    assert all(0.005 <= rate <= 0.5 for rate in rates)
    best = max(whole.trials, key=lambda trial: trial.score)
    kept = tomllib.loads((whole.path / "tuned.toml").read_text())
    assert kept == whole.settings == {"lr": best.settings["lr"], "epochs": int(best.settings["epochs"])}


def test_what_a_search_came_to_needs_no_data(whole: Tuned, tmp_path: Path) -> None:
    known = over(whole.search, whole.path)
    assert known is not None
    assert (known.settings, known.trials) == (whole.settings, whole.trials)
    more = dataclasses.replace(whole.search.tuning, trials=whole.search.tuning.trials + 1)
    assert over(dataclasses.replace(whole.search, tuning=more), whole.path) is None, "its budget is not spent"
    assert over(whole.search, tmp_path / "nowhere") is None
    assert not (tmp_path / "nowhere").exists()


def test_the_score_is_that_of_a_run_with_these_settings(whole: Tuned) -> None:
    """On a split with validators, whose best validation score selects; nothing of latecomers or of tests counts."""
    assert not whole.best.ended
    values = {**TINY, "seed": 1000, "validators": 0.1, **whole.settings}
    experiment = Experiment.parse("fedavg", values)
    training = experiment.training()
    assert training.federations[0].validators == 1
    lines = [metrics["runs"][0] for metrics in training.go() if metrics is not None]
    assert whole.best.score == max(line["validation"] for line in lines)
    assert training.best[0] is not None
    assert whole.best.round == training.best[0].round
    assert whole.best.scores == {
        2 * (k + 1): max(line["validation"] for line in lines[: k + 1]) for k in range(len(lines))
    }


def test_the_worse_half_ends_early(whole: Tuned) -> None:
    ended = [trial for trial in whole.trials if trial.ended]
    assert ended
    assert {max(trial.scores) for trial in ended} <= {2, 4}, "after a quarter, or half of the rounds"
    assert {max(trial.scores) for trial in whole.trials if not trial.ended} == {8}
    first = [trial.scores[2] for trial in whole.trials[:4]]
    for trial in whole.trials[:4]:
        worse = trial.scores[2] < sorted(first)[1] / 2 + sorted(first)[2] / 2
        assert (trial.ended and max(trial.scores) == 2) == worse


def test_who_trains_alone_is_judged_once(tmp_path: Path) -> None:
    """Local's strangers train anew whenever they are asked, and members' rounds change nothing of that."""
    wanted = Search.of("local", TINY, Tuning(trials=4, pack=4, search="lr=0.01:0.3:log"))
    once = tune(wanted, tmp_path / "once")
    assert [{*trial.scores} for trial in once.trials] == [{1}] * 4
    assert not any(trial.ended for trial in once.trials)
    members = Search.of("local", TINY, Tuning(trials=4, pack=4, search="lr=0.01:0.3:log", validators=0))
    assert {*tune(members, tmp_path / "members").best.scores} == {2, 4, 6, 8}, "members go on from round to round"
    falling = Search.of("local", {**TINY, "lr_schedule": "cosine"}, wanted.tuning)
    assert {*tune(falling, tmp_path / "falling").best.scores} == {2, 4, 6, 8}, "a rate that falls has its rounds"


def test_without_pruning_all_trials_are_as_long_and_score_alike(
    whole: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial's numbers do not depend on who was ended beside it; and nobody meets latecomers, who are for tests."""
    monkeypatch.setattr(train.Training, "_late", None)
    asked, score = list[list[int]](), train.Training._score

    def scored(self: train.Training, states: Any, ids: Any) -> Any:
        asked.extend(some.tolist() for some in ids)
        return score(self, states, ids)

    monkeypatch.setattr(train.Training, "_score", scored)
    every = tune(search(prune=False, trials=4), tmp_path / "every")
    assert {client for some in asked for client in some} == {8}, "the one validator: 8 of 12 train, 3 come late"
    assert all(max(trial.scores) == 8 for trial in every.trials)
    for pruned, other in zip(whole.trials, every.trials, strict=False):
        assert pruned.settings == other.settings
        assert pruned.scores == {number: other.scores[number] for number in pruned.scores}


def test_many_combinations_have_their_turn_in_a_search(tmp_path: Path) -> None:
    """Runs that share exchanges differ in their rates alone; where more is searched, fewer of them share."""
    rates = Range(0.1, 1.0, log=True)
    for name, values, expected in (("few", "ab", 2), ("many", "abcdefghij", 10)):
        trials = Trials(tmp_path / name, {"lr": rates, "kind": Choice(tuple(values))})
        found = trials.next(0, 10, {"lr": 0.2, "kind": "b"}, ["kind"], 0)
        assert found[0].settings == {"lr": 0.2, "kind": "b"}
        assert len({trial.settings["kind"] for trial in found}) == expected
    assert len({trial.settings["lr"] for trial in found}) == 10


# interruptions


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("when", ["in the first pack", "in the second", "while trials are written"])
def test_going_on_ends_where_it_would_have_ended(
    whole: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    calls = {"in the first pack": 2, "in the second": 6}

    def news(text: str) -> None:
        calls[when] = calls.get(when, 99) - 1
        if calls[when] == 0:
            raise Interrupted

    def add(self: Trials, trials: Sequence[Trial]) -> None:
        whole_add(self, trials[:2])
        raise Interrupted

    whole_add = Trials.add
    with monkeypatch.context() as patch:
        if when == "while trials are written":
            patch.setattr(Trials, "add", add)
        with pytest.raises(Interrupted):
            tune(search(), tmp_path / "part", news)
    assert not (tmp_path / "part" / "tuned.toml").exists()
    known = len(Trials(tmp_path / "part" / "trials.db", search().space).known)
    assert known == {"in the first pack": 0, "in the second": 4, "while trials are written": 2}[when]
    assert tune(search(), tmp_path / "part").trials == whole.trials


@pytest.mark.parametrize("when", ["in its second half", "while trials are written", "and what was kept is damaged"])
def test_what_of_a_pack_is_over_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Trials of a pack that share no exchanges are trained one after the other, which can take long."""
    whole, part, together = tune(search(pack=8), tmp_path / "whole"), tmp_path / "part", train.together
    trained, whole_add = list[int](), Trials.add

    def counted(runs: Sequence[Any], *rest: Any, **named: Any) -> Any:
        trained.append(len(runs))
        return together(runs, *rest, **named)

    def news(text: str) -> None:
        if text.startswith("trials 4"):
            raise Interrupted

    def add(self: Trials, trials: Sequence[Trial]) -> None:
        whole_add(self, trials[:3])
        raise Interrupted

    monkeypatch.setattr(train, "together", counted)
    with monkeypatch.context() as patch:
        if when == "while trials are written":
            patch.setattr(Trials, "add", add)
        with pytest.raises(Interrupted):
            tune(search(pack=8), part, news if when != "while trials are written" else lambda _: None)
    if when == "and what was kept is damaged":
        (part / "pack.json").write_text('[{"number": 0, "scores": {"2": "much"}}]')
    assert tune(search(pack=8), part).trials == whole.trials
    again = {"in its second half": 4, "while trials are written": 0, "and what was kept is damaged": 8}
    assert trained == [8, again[when]]
    assert not (part / "pack.json").exists()


def test_a_search_that_had_more_trials_than_others_may_have_counts_as_many_as_they(whole: Tuned) -> None:
    """All methods have the same budget, though some were searched before it was made smaller."""
    for found in (over(search(trials=3), whole.path), tune(search(trials=3), whole.path)):
        assert found is not None
        assert found.trials == whole.trials[:3]


def test_a_search_that_is_over_costs_nothing_and_may_be_given_more(
    whole: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = tune(search(trials=4), tmp_path / "more")
    assert part.trials == whole.trials[:4]
    with monkeypatch.context() as patch:
        patch.setattr(train, "together", None)
        assert tune(search(trials=4), tmp_path / "more").trials == part.trials
    assert tune(search(), tmp_path / "more").trials == whole.trials


OTHER: dict[str, tuple[Search, str]] = {
    "space": (search("lr=0.005:0.4:log,epochs=1|2"), "another lr: '0.005:0.5:log' there, '0.005:0.4:log' here"),
    "setting": (search("lr=0.005:0.5:log"), "another epochs: '1|2' there, none here"),
    "plan": (search(tune_rounds=6), "another rounds: 8 there, 6 here"),
    "seed": (search(tune_seed=7), "another seed: 1000 there, 7 here"),
    "pack": (search(pack=3), "another pack: 4 there, 3 here"),
}


@pytest.mark.parametrize("case", OTHER)
def test_another_search_in_the_same_folder_is_refused(whole: Tuned, case: str) -> None:
    other, sentence = OTHER[case]
    with pytest.raises(RunError, match=rf"holds a search with {sentence}; choose another --name"):
        tune(other, whole.path)


def test_one_process_at_a_time(whole: Tuned) -> None:
    with tuning._held(whole.path, search().plan()), pytest.raises(RunError, match="Another process is at work"):
        tune(search(), whole.path)


@pytest.mark.parametrize("name", ["trials.db", "plan.toml"])
def test_a_damaged_file_is_a_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "plan.toml").write_text(tuning.dump(search().plan()))
    (tmp_path / name).write_text("nonsense = [")
    with pytest.raises(RunError, match=rf"{name} cannot be"):
        tune(search(), tmp_path)


def test_others_can_read_the_trials(whole: Tuned) -> None:
    """The file is a study of Optuna's."""
    with sqlite3.connect(whole.path / "trials.db") as file:
        assert file.execute("select state, count(*) from trials group by state order by state").fetchall() == [
            ("COMPLETE", sum(not trial.ended for trial in whole.trials)),
            ("PRUNED", sum(trial.ended for trial in whole.trials)),
        ]


# what is searched


@pytest.mark.parametrize("name", methods.names())
def test_every_method_has_something_to_search(name: str) -> None:
    experiment = Experiment.parse(name, {})
    found = space("", experiment, methods.get(name))
    assert found
    sweepable = [key for key, field in settings_of(methods.get(name)).items() if field.metadata["sweepable"]]
    for key, some in found.items():
        assert key in sweepable or name == "apfl", "so that trials share exchanges"
        assert isinstance(some, Range)
        assert experiment.own[key] in some


def test_methods_with_a_search_of_their_own_exist() -> None:
    assert SEARCHED.keys() <= methods.names().keys()


def test_ranges_values_and_names_alone() -> None:
    experiment = Experiment.parse("pefll", {"server_lr": 0.003})
    found = space(
        "lr=0.001:0.3:log, steps=5:50, server-lr, embed=example|label, cohort=2|5", experiment, methods.get("pefll")
    )
    assert found == {
        "lr": Range(0.001, 0.3, log=True),
        "steps": Range(5, 50),
        "server_lr": Range(0.0003, 0.03, log=True),
        "embed": Choice(("example", "label")),
        "cohort": Choice(("2", "5")),
    }
    table = {"steps": [5, 50], "lr": "0.001:0.3:log"}
    assert space(table, experiment, methods.get("pefll")) == {"steps": Choice(("5", "50")), "lr": found["lr"]}


WRONG: dict[str, tuple[str, type[LatecomerError], str]] = {
    "unknown": ("epoch=1|2", UnknownName, "no setting to search 'epoch'; did you mean 'epochs'"),
    "of the budget": ("rounds=10|20", UnknownName, "no setting to search 'rounds'"),
    "empty range": ("lr=0.3:0.3", SettingError, "must go from a smaller number to a larger one; got '0.3:0.3'"),
    "backwards": ("lr=0.3:0.1", SettingError, "must go from a smaller number"),
    "no number": ("lr=0.1:much", SettingError, "--lr must be a number; got 'much'"),
    "out of range": ("lr=0:1", SettingError, "--lr must be greater than 0; got 0"),
    "not finite": ("lr=0.1:inf", SettingError, "--lr must be greater than 0; got inf"),
    "logarithm": ("momentum=0:0.9:log", SettingError, "must begin above 0, as it is by its logarithm"),
    "another scale": ("lr=0.1:1:linear", SettingError, "must be low:high or low:high:log; got '0.1:1:linear'"),
    "no whole number": ("epochs=1.5:3", SettingError, "--epochs must be a whole number; got '1.5'"),
    "twice the same": ("epochs=1|1", SettingError, "must be values that differ"),
    "twice": ("lr,lr=0.1:1", SettingError, "--search has lr twice"),
    "no value": ("lr=", SettingError, "--search takes settings such as"),
    "no name": ("lr,,epochs=1|2", SettingError, "--search takes settings such as .* got ''"),
    "no range of its own": ("momentum", SettingError, "--search needs values for momentum, as --momentum is 0.0"),
    "no range of a word": ("lr_schedule=step:cosine", SettingError, "must be some of its values, a|b|c"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_search_that_cannot_be_is_a_sentence(case: str) -> None:
    given, kind, sentence = WRONG[case]
    with pytest.raises(kind, match=sentence.replace("|", r"\|")):
        search(given)


def test_a_method_with_nothing_to_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SEARCHED, "fedavg", {})
    with pytest.raises(SettingError, match="There is nothing to search of FedAvg; --search names"):
        search("")


def test_settings_that_trials_cannot_have(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Every trial begins anew; leave --start out"):
        Search.of("fedavg", {**TINY, "start": "runs/x"}, Tuning())
    nothing = Search.of("fedavg", {**TINY, "validation": 0.0}, Tuning(validators=0.0))
    with pytest.raises(SettingError, match="Nothing is held out to choose settings by"):
        tune(nothing, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


# the command line


def test_the_command_line(command: Command, tmp_path: Path) -> None:
    words = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", value)]
    budget = ["--trials", 2, "--tune-rounds", 2, "--out", tmp_path, "--search", "lr=0.01:0.5:log"]
    done = command("tune", "fedavg", *words, *budget)
    assert done.code == 0
    tuned = tmp_path / "tune-fedavg-digits" / "tuned.toml"
    assert done.out.splitlines()[-1] == str(tuned)
    assert "Best of 2: lr " in done.out
    assert command("tune", "fedavg", *words, *budget).out == done.out
    assert command("run", "fedavg", *words, "--settings", tuned, "--out", tmp_path, "--name", "run").code == 0
    run = tomllib.loads((tmp_path / "run" / "settings.toml").read_text())
    assert run["method"]["lr"] == tomllib.loads(tuned.read_text())["lr"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Say what it is about: latecomer tune METHOD"),
        (["fedavgg"], "There is no method 'fedavgg'; did you mean 'fedavg'?"),
        (["fedavg", "--seed", "3"], "There is no setting 'seed'; did you mean 'tune-seed'?"),
        (["fedavg", "--trials", "0"], "--trials must be at least 1; got 0."),
        (["fedavg", "--name", "a/b"], "--name must be a plain name, without slashes and not '.' or '..'; got 'a/b'."),
    ],
)
def test_a_command_line_that_is_wrong(command: Command, words: list[str], sentence: str) -> None:
    done = command("tune", *words)
    assert done.code == 2
    assert sentence in done.err


def test_without_optuna(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"pip install 'latecomer\[tune\]'"):
        tune(search(), tmp_path / "none")


def test_help(command: Command) -> None:
    told = command("tune", "--help")
    assert told.code == 0
    assert "--tune-seeds" in told.out
