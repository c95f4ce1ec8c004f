"""LEAF's JSON: what its scripts write, and every way in which a file can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.data import federate, load
from latecomer.errors import DataError, LatecomerError

Users = dict[str, dict[str, Any]]


def write(folder: Path, data: Users, name: str = "all_data_0.json", /, **changes: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"users": list(data), "num_samples": [len(one.get("y", ())) for one in data.values()], "user_data": data}
    content |= changes
    (folder / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def drawings(count: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    """Images, and how LEAF keeps them: 784 numbers from 0 to 1 each."""
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (count, 28, 28), np.uint8)
    return pixels, {"x": (pixels.reshape(count, 784) / 255).tolist(), "y": random.integers(0, 62, count).tolist()}


# what it reads


def test_train_and_test_folders(tmp_path: Path) -> None:
    anna, bert = drawings(6, 1), drawings(4, 2)
    late_anna, late_bert = drawings(2, 3), drawings(3, 4)
    write(tmp_path / "train", {"anna": anna[1]}, "all_data_0_train.json")
    write(tmp_path / "train", {"bert": bert[1]}, "all_data_1_train.json")
    write(tmp_path / "test", {"bert": late_bert[1], "anna": late_anna[1]})
    source = load(f"leaf:{tmp_path}")
    assert source.x_train.dtype == np.uint8
    assert np.array_equal(source.x_train, np.concatenate((anna[0], bert[0])))
    assert np.array_equal(source.x_test, np.concatenate((late_bert[0], late_anna[0])))
    assert source.y_train.tolist() == anna[1]["y"] + bert[1]["y"]
    federation = federate(source, partition="natural", clients=0, validation=0)
    assert sorted(federation.train.sizes.tolist()) == [4, 6]
    assert {(int(a), int(b)) for a, b in zip(federation.train.sizes, federation.test.sizes, strict=True)} == {
        (6, 2), (4, 3),
    }  # fmt: skip
    called = [federation.traits(client)["name"] for client in range(2)]
    assert dict(zip(called, federation.train.sizes.tolist(), strict=True)) == {"anna": 6, "bert": 4}


@pytest.mark.parametrize("inside", ["", "all_data", "data/all_data"])
def test_one_folder_gives_up_a_fifth_of_every_user(tmp_path: Path, inside: str) -> None:
    users = {f"f{k:04}": drawings(10 * (k + 1), k)[1] for k in range(3)}
    write(tmp_path / inside, users)
    source = load(f"leaf:{tmp_path}")
    assert source.client_test is not None
    assert np.bincount(source.client_test).tolist() == [2, 4, 6]
    federation = federate(source, partition="natural", clients=0)
    assert sorted(federation.traits(client)["name"] for client in range(3)) == ["f0000", "f0001", "f0002"]


def test_a_user_in_two_files_is_one_client(tmp_path: Path) -> None:
    write(tmp_path, {"anna": drawings(5, 0)[1]}, "all_data_0.json")
    write(tmp_path, {"bert": drawings(5, 1)[1], "anna": drawings(5, 2)[1]}, "all_data_1.json")
    source = load(f"leaf:{tmp_path}")
    assert source.client_train is not None
    assert np.bincount(source.client_train).tolist() == [8, 4]


def test_a_user_without_examples_is_no_client(tmp_path: Path) -> None:
    write(tmp_path, {"anna": drawings(5)[1], "bert": {"x": [], "y": []}})
    assert len(federate(f"leaf:{tmp_path}", partition="natural", clients=0)) == 1


def test_femnist_is_found_as_a_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATECOMER_DATA", str(tmp_path))
    pixels, data = drawings(10)
    write(tmp_path / "femnist" / "all_data", {"anna": data})
    source = load("femnist")
    assert (source.name, source.classes, source.x_train.shape) == ("femnist", 62, (8, 32, 32))
    assert source.x_train[:, 2:30, 2:30].sum() + source.x_test[:, 2:30, 2:30].sum() == pixels.astype(int).sum()


def test_text_is_read_too(tmp_path: Path) -> None:
    users = {"ROMEO": {"x": ["But soft", "ut soft,"] * 5, "y": [",", " "] * 5}}
    write(tmp_path / "train", users)
    write(tmp_path / "test", users)
    source = load(f"leaf:{tmp_path}")
    assert (source.x_train.shape, source.x_train.dtype, source.classes) == ((10, 8), np.int8, 100)
    assert federate(source, partition="natural", clients=0).examples.text


def test_other_numbers_are_vectors(tmp_path: Path) -> None:
    write(tmp_path, {"f_00000": {"x": [[0.5, -2.0, 3]] * 5, "y": [0, 1, 0, 1, 0]}})
    source = load(f"leaf:{tmp_path}")
    assert (source.x_train.shape, source.x_train.dtype) == ((4, 3), np.float32)


# what it refuses

FINE = drawings(2)[1]
BAD: dict[str, tuple[Users, dict[str, Any]]] = {
    "no list 'users' in": ({"anna": FINE}, {"users": None}),
    "no list 'users' in .*, where": ({"anna": FINE}, {"users": {"anna": 2}}),
    "no object 'user_data' in": ({"anna": FINE}, {"user_data": None}),
    "no object 'bert' in user_data in": ({"anna": FINE}, {"users": ["anna", "bert"]}),
    "no object 3 in user_data in": ({"anna": FINE}, {"users": [3]}),
    "no list 'y' in user 'anna'": ({"anna": {"x": FINE["x"]}}, {}),
    "no list 'x' in user 'anna'": ({"anna": {"y": [1]}}, {}),
    "user 'anna' has 2 examples in x, but 3 labels in y": ({"anna": FINE | {"y": [1, 2, 3]}}, {}),
    "not numbers, equally many each": ({"anna": {"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}}, {}),
    "are not numbers, equally many": ({"anna": {"x": [["a"], ["b"]], "y": [0, 1]}}, {}),
    "holds 4 values that are NaN": ({"anna": {"x": [[None]] * 5, "y": [0] * 5}}, {}),
    "pixels outside 0 to 1": ({"anna": {"x": [[7.0] * 784] * 2, "y": [0, 1]}}, {}),
    "hold pixels outside": ({"anna": {"x": [[float("nan")] * 784] * 2, "y": [0, 1]}}, {}),
    "values that are NaN or infinite": ({"anna": {"x": [[float("nan")]] * 9, "y": [0] * 9}}, {}),
    "labels of user 'anna' .* one for each": ({"anna": {"x": [[1.0]] * 2, "y": [[0], 1]}}, {}),
    "labels .* must be numbers": ({"anna": {"x": [[1.0]] * 2, "y": [0, {}]}}, {}),
    "labels that are not whole numbers": ({"anna": {"x": [[1.0]] * 9, "y": [0.5] * 9}}, {}),
    "differ in kind: uint8 .28, 28. and float32 .1.": ({"anna": FINE, "bert": {"x": [[1.0]], "y": [0]}}, {}),
    "texts of user 'anna' .* differ in length": ({"anna": {"x": ["ab", "abc"], "y": ["a", "b"]}}, {}),
    "differ in length, or are empty": ({"anna": {"x": ["", ""], "y": ["a", "b"]}}, {}),
    "labels of user 'anna' .* one character each": ({"anna": {"x": ["ab", "bc"], "y": ["a", 1]}}, {}),
    "must be one character each": ({"anna": {"x": ["ab", "bc"], "y": ["a", "ab"]}}, {}),
    "only printable ASCII": ({"anna": {"x": ["é"] * 9, "y": ["a"] * 9}}, {}),
    "holds no example of any user": ({"anna": {"x": [], "y": []}}, {}),
    "x_test in .* is empty": ({"anna": {"x": [[1.0]], "y": [0]}}, {}),
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_file_is_refused_in_one_sentence_that_names_it(tmp_path: Path, message: str) -> None:
    users, changes = BAD[message]
    write(tmp_path / "mine", users, **changes)
    with pytest.raises(DataError, match=message) as caught:
        load(f"leaf:{tmp_path / 'mine'}")
    assert "mine" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[1, 2", b"\xff\xfe\x00", b"[" * 100_000, b'"text"', b"[]", b"17"])
def test_what_is_not_json_or_not_leaf_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "all_data_0.json").write_bytes(content)
    with pytest.raises(DataError, match=r"all_data_0\.json"):
        load(f"leaf:{tmp_path}")


def test_halves_that_differ_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train", {"anna": FINE})
    write(tmp_path / "test", {"anna": {"x": [[1.0]], "y": [0]}})
    with pytest.raises(DataError, match="differ in kind"):
        load(f"leaf:{tmp_path}")


def test_an_empty_folder_is_told_from_a_full_one(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match="holds no JSON files in train/ and test/, in all_data/ or directly"):
            load(f"leaf:{place}")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "a"]), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(users=st.lists(st.just("a") | values, max_size=2), data=values, mine=values, x=values, y=values)
def test_any_json_loads_or_is_refused_but_never_crashes(
    users: Any, data: Any, mine: Any, x: Any, y: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    shapes = [
        data,
        {"a": mine},
        {"a": {"x": x, "y": y}},
        {"a": {"x": [x], "y": [y]}},
        {"a": {"x": [x] * 9, "y": [y] * 9}},
    ]
    for k, user_data in enumerate(shapes):
        write(folder / str(k), {}, users=users, user_data=user_data)
        try:
            source = load(f"leaf:{folder / str(k)}")
        except LatecomerError:
            continue
        assert len(source.x_train) == len(source.y_train)
