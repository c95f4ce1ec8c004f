"""Sources: every way to come by examples, and every way it can go wrong."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

os.environ["HF_HUB_OFFLINE"] = "1"  # before datasets is imported: no test touches the network

from latecomer.data import Source, federate, load, npz
from latecomer.data.arrays import free_memory, hold_out
from latecomer.data.sources import names
from latecomer.errors import DataError, LatecomerError, UnknownName


def arrays(**changes: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "x_train": random.integers(0, 256, (20, 4, 4), np.uint8),
        "y_train": np.arange(20) % 5,
        "x_test": random.integers(0, 256, (10, 4, 4), np.uint8),
        "y_test": np.arange(10) % 5,
    } | changes


def save(folder: Path, name: str = "mine", **changes: Any) -> str:
    content = {key: array for key, array in arrays(**changes).items() if array is not None}
    np.savez(folder / f"{name}.npz", **content)
    return f"npz:{folder / f'{name}.npz'}"


# the embedded digits


def test_digits_are_bundled_and_split_by_class() -> None:
    source = load("digits")
    assert source.x_train.dtype == np.uint8
    assert source.x_train.shape[1:] == (8, 8)
    assert len(source.y_train) + len(source.y_test) == 1797
    assert (source.x_train.min(), source.x_train.max()) == (0, 255)
    share = np.bincount(source.y_test) / (np.bincount(source.y_train) + np.bincount(source.y_test))
    assert np.abs(share - 0.2).max() < 0.005
    assert np.array_equal(source.y_test, load("digits").y_test)


def test_names_are_listed_without_importing_anything_heavy() -> None:
    code = (
        "import sys, latecomer.data.sources as s; assert 'digits' in s.names();"
        "sys.exit(bool({'datasets', 'sklearn', 'flwr_datasets'} & set(sys.modules)))"
    )
    folder = Path(__file__).parent.parent / "src"
    environment = os.environ | {"PYTHONPATH": str(folder)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
    assert {"cifar10", "cifar100", "mnist", "fashion-mnist", "femnist", "digits"} <= set(names())


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(UnknownName, match=r"did you mean 'npz:mine\.npz'"):
        load("mine.npz")
    with pytest.raises(UnknownName, match="hf:ID_OR_FOLDER"):
        load("zzz")


# files


def test_a_path_leads_to_a_file_or_a_folder(tmp_path: Path) -> None:
    assert np.array_equal(load(Path(save(tmp_path).removeprefix("npz:"))).x_train, arrays()["x_train"])
    with pytest.raises(DataError, match=r"There is no file '.*nowhere\.npz'"):
        load(tmp_path / "nowhere.npz")
    (tmp_path / "leaf").mkdir()
    text = (
        '{"users": ["a"], "user_data": {"a": {"x": [[0.5, 2], [1, 3], [1, 4], [1, 5], [1, 6]], "y": [0, 1, 0, 1, 0]}}}'
    )
    (tmp_path / "leaf" / "all.json").write_text(text)
    assert len(load(tmp_path / "leaf").y_train) == 4
    place = stored(tmp_path, train={"x": [[0.5, k] for k in range(10)], "y": [0, 1] * 5})
    assert len(load(Path(place.removeprefix("hf:"))).y_train) == 8


def test_arrays_are_a_source_too() -> None:
    source = load(arrays(client_train=["a", "b"] * 10, client_test=["a", "b"] * 5))
    assert load(source) is source
    assert (source.name, source.classes, len(source.y_train), len(source.y_test)) == ("arrays", 5, 20, 10)
    federation = federate(arrays(), partition="iid", clients=4)
    assert len(federation.examples.y) == 30
    x, y = np.random.default_rng(0).normal(size=(50, 3)), [0, 1, 2, 3, 4] * 10
    pair = load((x, y))
    assert np.bincount(pair.y_test).tolist() == [2] * 5
    assert np.array_equal(pair.y_test, load([torch.tensor(x), torch.tensor(y)]).y_test)
    assert (pair.x_train.dtype, pair.x_train.shape) == (np.float32, (40, 3))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"x_train": [[1.0]]}, "the arrays lacks y_train, x_test, y_test"),
        (arrays(y_train=np.arange(20) / 2), "y_train in the arrays holds labels that are not whole numbers"),
        ((np.ones((4, 2)), [0, 1, 0]), r"one label for each; x has shape \(4, 2\), y \(3,\)"),
        ((np.ones((0, 2)), []), "There must be examples"),
        ((np.ones((4, 2)), list("abcd")), "labels that are not whole numbers"),
        (([1], [2], [3]), "a pair, the examples and their labels, or by name in a dict; got 3"),
    ],
)
def test_arrays_that_do_not_fit_are_one_sentence(data: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        load(data)


def test_an_npz_of_ones_own(tmp_path: Path) -> None:
    source = load(save(tmp_path, client_train=np.array(list("ab") * 10), client_test=np.array(list("ab") * 5)))
    assert isinstance(source, Source)
    assert (source.name, source.classes, source.mean) == ("mine", 5, ())
    assert np.array_equal(source.x_train, arrays()["x_train"])
    assert source.client_train is not None
    assert source.client_train[1] == "b"


@pytest.mark.parametrize(
    ("given", "becomes"), [("float64", "float32"), ("float16", "float32"), ("int16", "int64"), (">i4", "int64")]
)
def test_other_numbers_become_what_torch_expects(tmp_path: Path, given: str, becomes: str) -> None:
    source = load(save(tmp_path, x_train=np.ones((20, 3), given), x_test=np.ones((10, 3), given)))
    assert source.x_train.dtype == source.x_test.dtype == becomes


def test_unknown_labels_are_minus_one(tmp_path: Path) -> None:
    assert load(save(tmp_path, y_train=np.full(20, -1))).classes == 5


BAD: dict[str, dict[str, Any]] = {
    "lacks x_test, y_test; it holds x_train, y_train": {"x_test": None, "y_test": None},
    "x_train has 19 entries, but y_train has 20": {"x_train": np.zeros((19, 4, 4), np.uint8)},
    "client_train has 3 entries, but y_train has 20": {"client_train": np.zeros(3)},
    "coarse_test has 3 entries, but y_test has 10": {"coarse_test": np.zeros(3)},
    r"y_train in .* has shape \(20, 1\)": {"y_train": np.zeros((20, 1), int)},
    "x_test in .* is empty": {"x_test": np.zeros((0, 4, 4), np.uint8)},
    r"x_train and x_test differ: uint8 \[4, 4\] and uint8 \[5, 5\]": {"x_test": np.zeros((10, 5, 5), np.uint8)},
    r"x_train and x_test differ: uint8 .* and float32": {"x_test": np.zeros((10, 4, 4))},
    "x_train in .* holds <U1 values; they must be numbers": {"x_train": np.array(["a"] * 20)},
    r"uint8 of shape \(20, 7\)": {"x_train": np.zeros((20, 7), np.uint8)},
    "the channels come first": {"x_train": np.zeros((20, 3, 32, 32), np.uint8)},
    "x_train in .* holds 2 values that are NaN": {"x_train": np.array([np.nan, np.inf] + [0.0] * 18)},
    "not whole numbers .float64, 0.5": {"y_train": np.arange(20) + 0.5},
    "y_test in .* not whole numbers .float64, nan": {"y_test": np.full(10, np.nan)},
    "not whole numbers .<U1, a": {"y_train": np.array(["a"] * 20)},
    "the label -2; labels are numbered 0 to": {"y_train": np.arange(20) - 2},
    "the label 1000000000": {"y_train": np.full(20, 10**9)},
    "y_train in .* holds labels from 0 to 18446744073709551615": {"y_train": np.array([0, 2**64 - 1] * 10, np.uint64)},
    "y_test in .* out of range": {"y_test": np.full(10, -1e30)},
    r"x_train in .* has shape \(20, 0, 0\): there is nothing in an example": {
        "x_train": np.zeros((20, 0, 0), np.uint8),
        "x_test": np.zeros((10, 0, 0), np.uint8),
    },
    "lacks x_train, y_train, x_test, y_test; it holds images, labels": {
        **dict.fromkeys(("x_train", "y_train", "x_test", "y_test")),
        "images": np.zeros(3),
        "labels": np.zeros(3),
    },
    "no example with a label": {"y_train": np.full(20, -1), "y_test": np.full(10, -1)},
    "Object arrays cannot be loaded": {"y_train": np.array([{}] * 20)},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_file_is_refused_in_one_sentence_that_names_it(tmp_path: Path, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load(save(tmp_path, **BAD[message]))
    assert "mine.npz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DataError, match=r"no file 'nowhere\.npz'"):
        load("npz:nowhere.npz")


def test_a_single_array_is_not_an_npz(tmp_path: Path) -> None:
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"one\.npz' holds a single array"):
        load(f"npz:{tmp_path / 'one.npz'}")


def test_a_file_that_is_no_zip_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.npz").write_text("x_train,y_train\n1,2\n")
    with pytest.raises(DataError, match=r"mine\.npz' cannot be read as an \.npz: it is no zip archive\.$"):
        load(f"npz:{tmp_path / 'mine.npz'}")


def test_what_nobody_reads_is_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = save(tmp_path, photographs=np.zeros(1000), x=np.zeros(3), text=np.array(["a"]))
    opened: list[str] = []
    whole = zipfile.ZipFile.open
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda self, name, *rest: opened.append(name) or whole(self, name))
    load(place)
    assert sorted(map(str, opened)) == ["x_test.npy", "x_train.npy", "y_test.npy", "y_train.npy"]


def test_more_than_the_memory_holds_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = save(tmp_path, photographs=np.zeros(10**5))
    monkeypatch.setattr(npz, "free_memory", lambda: 2000)
    load(place)  # what is not read needs no memory
    monkeypatch.setattr(npz, "free_memory", lambda: 1000)
    with pytest.raises(DataError, match=r"The arrays of .*mine\.npz' take 0\.0 GB, and 0\.0 GB of memory are free"):
        load(place)


def test_an_array_that_claims_absurd_sizes_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
        for name in arrays():
            archive.writestr(f"{name}.npy", header.getvalue())
    with pytest.raises(DataError, match=r"mine\.npz' cannot be read as an \.npz"):
        load(f"npz:{tmp_path / 'mine.npz'}")


def test_free_memory_is_a_plausible_number() -> None:
    assert 2**20 < free_memory() < 2**50


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "evil.npz").write_bytes(b"\x80\x04cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(DataError, match=r"evil\.npz' cannot be read as an \.npz"):
        load(f"npz:{tmp_path / 'evil.npz'}")


def compressed() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays())
    return buffer.getvalue()


@settings(deadline=None, derandomize=True, max_examples=200)
@given(data=st.data())
def test_a_damaged_file_loads_or_is_refused_but_never_crashes(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = bytearray(compressed())
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        loaded = load(f"npz:{path}")
    except LatecomerError:
        return
    assert len(loaded.x_train) == len(loaded.y_train)


@pytest.mark.parametrize("header", [b"(((", b"{1: 1, 'a': 2}"])
def test_a_header_over_which_numpy_stumbles_is_refused(header: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        for name in arrays():
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00\x76\x00" + header.ljust(117) + b"\n")
    with pytest.raises(DataError, match="cut short or damaged"):
        load(f"npz:{tmp_path / 'odd.npz'}")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.npz").write_bytes(compressed()[:-100])
    with pytest.raises(DataError, match="cut short or damaged"):
        load(f"npz:{tmp_path / 'cut.npz'}")


# named sets


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LATECOMER_DATA", str(tmp_path))
    return tmp_path


def test_a_named_set_is_found_in_the_folder(folder: Path) -> None:
    images = {"x_train": np.zeros((20, 4, 4, 3), np.uint8), "x_test": np.zeros((10, 4, 4, 3), np.uint8)}
    save(folder, "cifar10", **images)
    save(folder, "cifar100", **images, coarse_train=np.zeros(20, int), coarse_test=np.zeros(10, int))
    ten, hundred = load("cifar10"), load("cifar100")
    assert (ten.classes, ten.mean, ten.std) == (10, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert (hundred.classes, hundred.mean[0], hundred.std[0]) == (100, 0.5071, 0.2673)
    assert hundred.coarse_train is not None


def test_femnist_is_padded_with_zeros_and_not_normalised(folder: Path) -> None:
    x = np.full((20, 28, 28), 255, np.uint8)
    save(folder, "femnist", x_train=x, x_test=x[:10], client_train=np.arange(20) % 2, client_test=np.arange(10) % 2)
    source = load("femnist")
    assert source.x_train.shape == (20, 32, 32)
    assert source.x_test.shape == (10, 32, 32)
    assert int(source.x_train.sum()) == 255 * 20 * 28 * 28
    assert source.x_train[0, 2, 2] == 255
    assert not source.x_train[0, :2].any()
    assert (source.classes, source.mean) == (62, ())


def test_omniglot_numbers_characters_within_their_alphabet(folder: Path) -> None:
    character = np.repeat(np.arange(5), 20)
    alphabet = np.array([0, 0, 0, 1, 1])[character].astype(np.uint8)
    np.savez(folder / "omniglot.npz", x=np.zeros((100, 2, 2), np.uint8), alphabet=alphabet, character=character)
    source = load("omniglot")
    assert source.client_test is not None
    assert sorted(set(zip(source.client_test.tolist(), source.y_test.tolist(), strict=True))) == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1),
    ]  # fmt: skip
    assert len(source.y_test) == 15


def test_omniglot_with_wild_numbers_is_refused_or_counted(folder: Path) -> None:
    x, character = np.zeros((40, 2, 2), np.uint8), np.repeat(np.arange(2), 20)
    np.savez(folder / "omniglot.npz", x=x, alphabet=np.full(40, 2**50), character=character)
    assert load("omniglot").classes == 55, "alphabets may have any number"
    np.savez(folder / "omniglot.npz", x=x, alphabet=np.zeros(40), character=np.full(40, np.nan))
    with pytest.raises(DataError, match=r"character in .* not whole numbers"):
        load("omniglot")
    np.savez(folder / "omniglot.npz", x=x, alphabet=np.zeros(39), character=character)
    with pytest.raises(DataError, match="x, alphabet and character differ in length"):
        load("omniglot")


def test_a_named_set_must_have_its_channels_and_classes(folder: Path) -> None:
    save(folder, "cifar10")
    with pytest.raises(DataError, match=r"uint8 \[4, 4\]; cifar10 consists of images with 3 channels"):
        load("cifar10")
    save(folder, "mnist", y_train=np.full(20, 10))
    with pytest.raises(DataError, match="the label 10; labels are numbered 0 to 9"):
        load("mnist")


def test_what_is_nowhere_is_told_with_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    advice = r"set LATECOMER_DATA to a folder that holds mnist\.npz, or pip install 'latecomer\[hub\]'"
    with pytest.raises(DataError, match=rf"there is no .*mnist\.npz, and ylecun/mnist .* {advice}"):
        load("mnist")
    monkeypatch.delenv("LATECOMER_DATA")
    with pytest.raises(DataError, match="LATECOMER_DATA is not set"):
        load("omniglot")
    with pytest.raises(LatecomerError, match=r"latecomer\[hub\]"):
        load("hf:some/set")


def test_offline_the_hub_fails_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.delenv("LATECOMER_DATA", raising=False)
    with pytest.raises(DataError, match=r"flwrlabs/femnist could not be had .*OfflineMode.* set LATECOMER_DATA"):
        load("femnist")
    with pytest.raises(DataError, match="'no/such' cannot be loaded"):
        load("hf:no/such")


# Hugging Face folders


def pictures(count: int, mode: str = "RGB", side: int = 6) -> list[Any]:
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(count)
    return [image.fromarray(random.integers(0, 256, (side, side, 3), np.uint8)).convert(mode) for _ in range(count)]


def stored(folder: Path, **splits: dict[str, Any]) -> str:
    """Saves one or more splits as `save_to_disk` does; columns of pictures become Image features."""
    datasets = pytest.importorskip("datasets")
    tables = {name: datasets.Dataset.from_dict(columns) for name, columns in splits.items()}
    whole = datasets.DatasetDict(tables) if len(tables) > 1 else next(iter(tables.values()))
    whole.save_to_disk(str(folder / "set"))
    return f"hf:{folder / 'set'}"


def test_train_and_test_of_a_saved_folder(tmp_path: Path) -> None:
    train, test = pictures(12), pictures(6)
    place = stored(
        tmp_path,
        train={"img": train, "label": [k % 3 for k in range(12)], "writer_id": ["a", "b"] * 6},
        test={"img": test, "label": [k % 3 for k in range(6)], "writer_id": ["a", "b"] * 3},
    )
    source = load(place)
    assert np.array_equal(source.x_train, np.stack([np.asarray(picture) for picture in train]))
    assert np.array_equal(source.x_test[5], np.asarray(test[5]))
    assert source.y_test.tolist() == [0, 1, 2, 0, 1, 2]
    assert source.client_train is not None
    assert source.client_train.tolist()[:2] == ["a", "b"]


def test_a_single_split_gives_up_a_fifth(tmp_path: Path) -> None:
    place = stored(tmp_path, train={"image": pictures(20, "L"), "character": [k % 2 for k in range(20)]})
    source = load(place)
    assert (len(source.x_train), len(source.x_test)) == (16, 4)
    assert source.x_train.shape[1:] == (6, 6)
    assert np.array_equal(source.y_test, load(place).y_test)


def test_text_labels_are_numbered_alike_in_both_splits(tmp_path: Path) -> None:
    place = stored(
        tmp_path,
        train={"image": pictures(4), "label": ["dog", "cat", "dog", "cat"]},
        test={"image": pictures(2), "label": ["emu", "dog"]},
    )
    source = load(place)
    assert (source.y_train.tolist(), source.y_test.tolist(), source.classes) == ([1, 0, 1, 0], [2, 1], 3)


def test_class_names_and_arrays_instead_of_pictures(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "x": datasets.Array2D((3, 3), "uint8"),
            "fine_label": datasets.ClassLabel(7),
            "coarse_label": datasets.Value("int64"),
        }
    )
    x = np.arange(90, dtype=np.uint8).reshape(10, 3, 3)
    columns = {"x": list(x), "fine_label": [0, 1] * 5, "coarse_label": [0] * 10}
    datasets.Dataset.from_dict(columns, features).save_to_disk(str(tmp_path / "set"))
    source = load(f"hf:{tmp_path / 'set'}")
    assert (source.classes, source.x_train.dtype, source.x_train.shape) == (7, np.uint8, (8, 3, 3))
    assert source.coarse_test is not None
    everything = np.concatenate((source.x_train, source.x_test)).reshape(10, -1)
    assert np.array_equal(everything[everything[:, 0].argsort()], x.reshape(10, -1))


def test_lists_of_numbers_are_examples_too(tmp_path: Path) -> None:
    source = load(stored(tmp_path, train={"x": [[0.5, k] for k in range(10)], "y": [0, 1] * 5}))
    assert (source.x_train.dtype, source.x_train.shape) == (np.float32, (8, 2))


BAD_FOLDERS: dict[str, dict[str, dict[str, Any]]] = {
    "no column of images": {"train": {"text": ["a"], "label": [0]}},
    "no column of labels": {"train": {"x": [[1.0]], "weight": [0]}},
    "must be called train": {"a": {"x": [[1.0]], "y": [0]}, "b": {"x": [[1.0]], "y": [0]}},
    "differ in shape": {"train": {"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}},
}


@pytest.mark.parametrize("message", BAD_FOLDERS)
def test_a_folder_that_does_not_fit_is_refused(tmp_path: Path, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(stored(tmp_path, **BAD_FOLDERS[message]))


def test_pictures_of_two_sizes_are_refused(tmp_path: Path) -> None:
    images = pictures(3) + pictures(1, side=7)
    with pytest.raises(DataError, match=r"differ in shape .* resize"):
        load(stored(tmp_path, train={"image": images, "label": [0, 1, 0, 1]}))


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    place = stored(tmp_path, train={"x": [[1.0]] * 5, "y": [0] * 5})
    next((tmp_path / "set").glob("*.arrow")).write_bytes(b"nonsense")
    with pytest.raises(DataError, match="cannot be loaded with the datasets library"):
        load(place)


# holding out


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    share=st.floats(0, 0.95),
    seed=st.integers(0, 2**32),
)
def test_every_group_gives_up_its_share(sizes: list[int], share: float, seed: int) -> None:
    groups = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    labels = np.random.default_rng(seed + 1).integers(0, 3, len(groups))
    held = hold_out(groups, labels, share, np.random.default_rng(seed))
    for group, size in enumerate(sizes):
        mine = held[groups == group]
        assert mine.sum() == np.floor(size * share + 0.5)
        for label in range(3):
            of_label = held[(groups == group) & (labels == label)]
            assert abs(of_label.sum() - share * len(of_label)) <= 2  # spread over the labels, up to the two ends


def test_small_groups_do_not_all_give_up_the_same_label() -> None:
    groups, labels = np.repeat(np.arange(200), 5), np.tile(np.arange(5), 200)
    held = hold_out(groups, labels, 0.2, np.random.default_rng(0))
    assert np.bincount(labels[held]).min() > 20
