"""Text: windows of what each role says, and the character that follows."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.data import Source, federate, load
from latecomer.data.text import CHARACTERS, WINDOW, encode, read_roles
from latecomer.errors import DataError, SettingError

LINE = "Now is the winter of our discontent made glorious summer by this sun of York;"  # 77 characters


def said(numbers: Any) -> str:
    return "".join(CHARACTERS[number] for number in np.asarray(numbers).ravel())


def roles(**texts: str) -> dict[str, Any]:
    return {"text": np.array(list(texts.values())), "role": np.array(list(texts))}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LATECOMER_DATA", str(tmp_path))
    return tmp_path


def save(folder: Path, **changes: Any) -> None:
    lines = [f"{LINE} {k}" for k in range(10)]
    np.savez(
        folder / "shakespeare.npz",
        **roles(gloucester="\n".join(lines), page="Short.\nVery.", queen="\n".join(lines[:5] * 2)) | changes,
    )


@settings(deadline=None, derandomize=True, max_examples=50)
@given(text=st.text(alphabet=string.printable))
def test_characters_can_be_told_from_their_numbers(text: str) -> None:
    assert said(encode(text, "here")) == text


@pytest.mark.parametrize("character", ["é", "\x00", "\x7f", "\u2026", "\U0001f4a9", "\ud800"])
def test_other_characters_are_refused(character: str) -> None:
    with pytest.raises(DataError, match=r"here holds the character .*; only printable ASCII") as caught:
        encode(f"To be{character}", "here")
    assert str(caught.value).isascii()


def test_windows_of_a_role_and_what_follows_them() -> None:
    text = "\n".join(f"{LINE} {k}" for k in range(10))
    table = read_roles(roles(gloucester=text), "here")
    first, last = " ".join(text.split("\n")[:8]), " ".join(text.split("\n")[8:])
    for half, whole in (("train", first), ("test", last)):
        x, y = table[f"x_{half}"], table[f"y_{half}"]
        assert x.shape == (len(whole) - WINDOW, WINDOW)
        assert x.dtype == np.int8
        for k in (0, 1, len(x) - 1):
            assert said(x[k]) == whole[k : k + WINDOW]
            assert said(y[k]) == whole[k + WINDOW]


def test_no_test_line_is_ever_trained_on() -> None:
    text = "\n".join(letter * 200 for letter in "abcdefghij")
    table = read_roles(roles(somebody=text), "here")
    assert set(said(table["x_train"]) + said(table["y_train"])) == set("abcdefgh ")
    assert set(said(table["x_test"]) + said(table["y_test"])) == set("ij ")


def test_spaces_in_a_row_count_as_one() -> None:
    spaced = "\n".join([f"  {LINE}   and"] * 10)
    assert "  " not in said(read_roles(roles(somebody=spaced), "here")["x_train"][0])


def test_shakespeare_by_role(folder: Path) -> None:
    save(folder)
    source = load("shakespeare")
    assert isinstance(source, Source)
    assert (source.name, source.classes) == ("shakespeare", 100)
    federation = federate(source, partition="natural", clients=0)
    assert len(federation) == 2, "the page says too little for a window"
    assert federation.examples.text
    assert federation.notes == ()
    assert int(federation.test.index.min()) >= len(source.y_train)
    assert source.client_train is not None
    assert source.client_test is not None
    assert set(source.client_train) == set(source.client_test) == {0, 2}
    assert {federation.traits(client)["name"] for client in range(2)} == {"gloucester", "queen"}


def test_fewer_windows(folder: Path) -> None:
    save(folder)
    every, some = load("shakespeare"), load("shakespeare:7")
    assert every.client_train is not None
    first = every.client_train == every.client_train[0]
    assert np.array_equal(some.x_train[: len(every.x_train[first][::7])], every.x_train[first][::7])
    assert len(some.x_train) < len(every.x_train) / 6


@pytest.mark.parametrize("step", ["0", "-1", "1.5", "two", "²"])
def test_a_step_is_a_whole_number(step: str) -> None:
    with pytest.raises(SettingError, match=f"a window every '{step}' characters; that is a whole number above 0"):
        load(f"shakespeare:{step}")


BAD: dict[str, dict[str, Any]] = {
    "text and role must hold one text each": {"role": np.array(["a"])},
    "must hold one text each for every role": {"role": np.arange(3)},
    "No role in .* has more than 80 characters": {"text": np.array(["a", "b", "c"])},
    "holds the character '.xe9'": {"text": np.array([f"{LINE}é\n" * 9] * 3)},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_text_is_refused_in_one_sentence(folder: Path, message: str) -> None:
    save(folder, **BAD[message])
    with pytest.raises(DataError, match=message) as caught:
        load("shakespeare")
    assert "shakespeare.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_text_is_taken_as_any_other(folder: Path) -> None:
    x = np.zeros((4, 80), np.int8)
    np.savez(folder / "shakespeare.npz", x_train=x, y_train=np.arange(4), x_test=x, y_test=np.arange(4))
    assert load("shakespeare").x_train.dtype == np.int8
    with pytest.raises(DataError, match="holds no text and role, of which to make a window every 3 characters"):
        load("shakespeare:3")


def test_without_a_file_the_advice_names_it(folder: Path) -> None:
    with pytest.raises(DataError, match=r"'shakespeare' was not found: there is no .*shakespeare\.npz"):
        load("shakespeare:3")
