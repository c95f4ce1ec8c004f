"""Settings: from text, TOML and Python into a dataclass, and back."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

import toys
from latecomer import engines, methods, train
from latecomer.data import Split
from latecomer.errors import RunError, SettingError, UnknownName
from latecomer.plan import Plan
from latecomer.runs.experiment import Experiment
from latecomer.runs.settings import Settings
from latecomer.settings import allowed, check_ranges, complete, convert, dump, parse, setting, settings_of


@dataclass(frozen=True, kw_only=True)
class Example:
    whole: int = setting(3, "a whole number", low=1, high=9)
    share: float = setting(0.5, "a number", above=0)
    word: str = setting("a", "a text")
    switch: bool = setting(False, "a switch")
    several: tuple[int, ...] = setting((), "whole numbers", low=-90)
    choice: Literal["red", "blue"] | None = setting(None, "a choice")
    maybe: int | None = setting(None, "a number, or none", low=1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"whole": "4", "share": "2e-3"}, {"whole": 4, "share": 0.002}),
        ({"whole": 4, "share": 2}, {"whole": 4, "share": 2.0}),
        ({"switch": "true"}, {"switch": True}),
        ({"switch": "FALSE"}, {"switch": False}),
        ({"several": "0,90, 180"}, {"several": (0, 90, 180)}),
        ({"several": "-90 7"}, {"several": (-90, 7)}),
        ({"several": [1, 2]}, {"several": (1, 2)}),
        ({"several": ""}, {"several": ()}),
        ({"choice": "blue", "maybe": "7"}, {"choice": "blue", "maybe": 7}),
        ({"maybe": None}, {"maybe": None}),
        ({"word": ""}, {"word": ""}),
    ],
)
def test_text_and_values_are_converted_alike(values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parse(Example, values) == Example(**expected)
    assert type(parse(Example, {"share": 2}).share) is float


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"whole": "four"}, "--whole must be a whole number; got 'four'."),
        ({"whole": "1.5"}, "--whole must be a whole number; got '1.5'."),
        ({"whole": 1.5}, "--whole must be a whole number; got 1.5."),
        ({"whole": True}, "--whole must be a whole number; got True."),
        ({"whole": "0"}, "--whole must be at least 1 and at most 9; got 0."),
        ({"whole": 10**400}, f"--whole must be at least 1 and at most 9; got {10**400}."),
        ({"share": 0}, "--share must be greater than 0; got 0.0."),
        ({"share": "nan"}, "--share must be greater than 0; got nan."),
        ({"share": "inf"}, "--share must be greater than 0; got inf."),
        ({"share": 10**400}, f"--share must be a number; got {10**400}."),
        ({"word": 3}, "--word must be a text; got 3."),
        ({"word": "\udcff"}, "--word must be a text; got '\\udcff'."),
        ({"switch": "yes"}, "--switch must be true or false; got 'yes'."),
        ({"switch": 1}, "--switch must be true or false; got 1."),
        ({"several": 5}, "--several takes several values; got 5."),
        ({"several": "1,x"}, "--several must be a whole number; got 'x'."),
        ({"several": "0,-91"}, "--several must be at least -90; got -91."),
        ({"choice": "bleu"}, "There is no value for --choice 'bleu'; did you mean 'blue'?"),
        ({"maybe": 0}, "--maybe must be at least 1; got 0."),
        ({"hole": 1}, "There is no setting 'hole'; did you mean 'whole'?"),
    ],
)
def test_what_does_not_fit_is_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse(Example, values)
    assert str(caught.value) == sentence


def test_other_known_names_are_offered_too() -> None:
    with pytest.raises(UnknownName, match="did you mean 'momentum'"):
        parse(Example, {"momentun": 1}, known=["momentum"])


@pytest.mark.parametrize(
    ("name", "words"),
    [("whole", "1 to 9"), ("share", "above 0"), ("choice", "red, blue"), ("maybe", "at least 1"), ("word", "")],
)
def test_what_is_allowed_in_words(name: str, words: str) -> None:
    assert allowed(Example, name) == words


def test_every_setting_of_the_house_explains_itself() -> None:
    for kind in (Settings, *(methods.get(name) for name in methods.names())):
        for name, field in settings_of(kind).items():
            assert field.metadata["meaning"], f"{kind.__name__}.{name}"
            allowed(kind, name)


def test_settings_that_papers_choose_have_a_default_of_the_house() -> None:
    assert {name for name, field in settings_of(Settings).items() if field.default is None} == {"cohort_labelled"}
    for name in methods.names():
        parse(Settings, methods.get(name).paper)


def test_what_is_given_stands_before_the_paper_and_the_paper_before_the_default() -> None:
    assert methods.get("pfedhn").paper == {"split": "pfedhn", "cohort": 1, "rounds": 5000}
    settings = Experiment.parse("pfedhn", {"cohort": "5", "rounds": None}).settings
    assert (settings.split, settings.cohort, settings.rounds) == ("pfedhn", 5, 5000)
    assert Experiment.parse("pfedhn", {"split": "pefll"}).settings.split == "pefll", "though it is the default"
    assert Experiment.parse("flowdup", {}).settings.cohort_labelled == 0.9


@pytest.mark.parametrize("kind", [Split, Plan])
def test_every_setting_stands_once(kind: type[Any]) -> None:
    """A run's settings are those of a split and of a plan, and more; none is declared again."""
    assert settings_of(kind).keys() <= settings_of(Settings).keys()
    assert not Settings.__annotations__.keys() & settings_of(kind).keys()
    assert not settings_of(Split).keys() & settings_of(Plan).keys()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Plan(faults="drop=1"), "--faults must be shares of the replies, below 1 all together; got 'drop=1'."),
        (lambda: Plan(rounds=2.5), "--rounds must be a whole number; got 2.5."),
        (lambda: Split(unseen=1.5), "--unseen must be at least 0 and at most 0.99; got 1.5."),
        (lambda: Settings(seeds=0), "--seeds must be at least 1; got 0."),
    ],
)
def test_a_dataclass_of_settings_is_checked_however_it_is_made(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        make()
    assert str(caught.value) == sentence


def test_what_python_has_beside_plain_numbers_and_texts() -> None:
    given = {"whole": np.int64(4), "share": np.float32(0.5), "word": Path("a") / "b", "several": np.array([1, 2])}
    made = parse(Example, given)
    assert made == Example(whole=4, share=0.5, word=str(Path("a") / "b"), several=(1, 2))
    assert [type(value) for value in (made.whole, made.share, made.word, made.several[0])] == [int, float, str, int]
    assert parse(Example, {"several": range(3)}).several == (0, 1, 2)


def test_settings_can_be_completed_without_an_instance() -> None:
    kind = methods.get("pefll")  # which needs a task, and so data
    assert complete(kind, {"lr": "0.5"}) == {name: f.default for name, f in settings_of(kind).items()} | {"lr": 0.5}
    check_ranges(Example())


def test_the_engines_that_a_setting_allows_are_those_there_are() -> None:
    assert get_args(get_type_hints(Settings)["engine"]) == tuple(engines.NAMES)


# to TOML and back

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
examples = st.fixed_dictionaries(
    {},
    optional={
        "whole": st.integers(1, 9),
        "share": st.floats(min_value=0, exclude_min=True, allow_infinity=False),
        "word": text,
        "switch": st.booleans(),
        "several": st.lists(st.integers(-90, 2**40)).map(tuple),
        "choice": st.sampled_from(["red", "blue"]),
        "maybe": st.none() | st.integers(1, 2**60),
    },
)


@given(examples)
@budget(deadline=None, max_examples=100)
def test_toml_and_back(values: dict[str, Any]) -> None:
    made = Example(**values)
    assert parse(Example, tomllib.loads(dump(dataclasses.asdict(made)))) == made
    tables = tomllib.loads(dump({"run": dataclasses.asdict(made), "method": {"word": made.word}}))
    assert parse(Example, tables["run"]) == made
    assert tables["method"] == {"word": made.word}


@given(st.one_of(text, st.integers(), st.floats(), st.booleans(), st.none(), st.lists(text | st.integers())))
@budget(deadline=None, max_examples=100)
def test_any_value_is_converted_or_refused(value: Any) -> None:
    for name, kind in get_type_hints(Example).items():
        try:
            converted = convert(name, value, kind)
        except SettingError:
            continue
        assert (
            convert(name, converted, kind) == converted or converted != converted
        )  # NaN is like nothing, not even itself


@pytest.mark.parametrize("name", methods.names())
def test_an_experiment_is_what_its_toml_says(name: str) -> None:
    experiment = Experiment.parse(name, {"data": 'npz:a "b"\\c.npz', "rotations": "0,90", "seed": "7"})
    assert Experiment.read(experiment.toml(), Path("settings.toml")) == experiment


def test_a_method_has_one_name() -> None:
    assert Experiment.parse("PeFLL", {}) == Experiment.parse("pefll", {})


@pytest.mark.parametrize("text", ["", "run = 3\nmethod = 4", "[run]\n[method]", "[run", "\n[run]\nmethod='pefll'"])
def test_settings_that_cannot_be_read(text: str) -> None:
    with pytest.raises(RunError, match=r"settings\.toml cannot be read as settings"):
        Experiment.read(text, Path("settings.toml"))


# what calls from Python take


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"round": 3}, "There is no setting 'round'; did you mean 'rounds'?"),
        ({"cohort": -1}, "--cohort must be at least 0; got -1."),
        (
            {"select": "best"},
            "There is no value for --select 'best'; there are: accuracy, own_classes, own_pooled, pooled.",
        ),
    ],
)
def test_a_plan_that_does_not_fit_is_one_sentence(plan: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        train.run(toys.method("fedavg"), toys.federation(), **plan)
    assert str(caught.value) == sentence


def test_an_engine_goes_by_its_name_and_a_device_by_either() -> None:
    method, federation = toys.method("fedavg"), toys.federation()
    assert engines.make("loop", method, federation, torch.device("cpu")).device == torch.device("cpu")
    assert engines.make("vector", method, (federation, federation), "cpu").device == torch.device("cpu")
    with pytest.raises(SettingError, match="--device must be cpu, cuda or auto; got 'meta'"):
        engines.pick_device(torch.device("meta"))
    engine = engines.make("loop", method, federation, "cpu")
    expected = train.run(method, federation, engine, rounds=2, cohort=2)
    found = train.run(method, [federation], "loop", device=torch.device("cpu"), rounds="2", cohort=np.int64(2))
    assert {**found, "seconds": 0} == {**expected, "seconds": 0}


def test_a_cohort_of_none_is_all_members() -> None:
    method, federation = toys.method("fedavg"), toys.federation()
    everybody, expected = (
        train.run(method, federation, "vector", rounds=2, cohort=cohort) for cohort in (0, federation.members)
    )
    assert {**everybody, "seconds": 0} == {**expected, "seconds": 0}
