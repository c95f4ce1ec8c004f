"""The packed federation: rows, weights, rotation, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from latecomer.data import Federation
from latecomer.data.rotate import turns
from latecomer.data.split import SPLITS
from latecomer.errors import DataError, UnknownName

X = np.arange(6 * 4, dtype=np.uint8).reshape(6, 2, 2)
Y = np.array([0, 1, 0, 1, 2, 1])


def build(**changes: Any) -> Federation:
    settings: dict[str, Any] = {"x": X, "y": Y, "train": [[0, 1], [2]], "test": [[3], [4]]} | changes
    return Federation.from_arrays(settings.pop("x"), settings.pop("y"), **settings)


def test_rows_point_into_one_tensor() -> None:
    federation = build(val=[[5], []])
    assert federation.examples.x.shape == (6, 2, 2, 1)
    assert federation.examples.shape == (1, 2, 2)
    assert [federation.train[k].tolist() for k in range(2)] == [[0, 1], [2]]
    assert [federation.val[k].tolist() for k in range(2)] == [[5], []]
    assert federation.examples.classes == 3
    assert federation.largest("train") == 2


def test_validators_are_counted_among_those_that_stay() -> None:
    rows = [[0], [1], [], [3], [4]]
    federation = build(train=rows, test=[[5], [5], [5], [], [5]], members=2, validators=2)
    assert (len(federation), federation.members, federation.validators, federation.first_late) == (3, 2, 0, 2)
    federation = build(train=rows, test=[[], [], [], [], [5]], members=2, validators=2, untested=True)
    assert [federation.traits(k)["role"] for k in range(4)] == ["member", "member", "validator", "latecomer"]
    assert (len(federation), federation.members, federation.validators, federation.first_late) == (4, 2, 1, 3)
    assert not federation.held_out(3)
    assert federation.held_out(4)
    assert len(build(train=rows, test=[[5]] * 4 + [[]], members=2, validators=2, untested=True)) == 3, "latecomers test"


@pytest.mark.parametrize("validators", [-1, 2])
def test_more_validators_than_clients_beside_the_members(validators: int) -> None:
    with pytest.raises(DataError, match=f"Of 2 clients 1 train; {validators} cannot be validators"):
        replace(build(members=1), validators=validators)


def test_images_are_not_copied() -> None:
    x = X.copy()
    federation = build(x=x)
    x[0, 0, 0] = 77
    assert int(federation.examples.x[0, 0, 0, 0]) == 77


def test_read_only_arrays_are_welcome() -> None:
    x = X.copy()
    x.flags.writeable = False
    assert len(build(x=x)) == 2


def test_rows_may_be_an_array() -> None:
    federation = build(train=np.array([[0], [1]]), val=np.array([[2], [3]]), test=np.array([[4], [5]]))
    assert federation.val[1].tolist() == [3]


def test_other_arrays_reach_the_model_as_they_are() -> None:
    federation = build(x=np.ones((6, 5), np.float32))
    assert federation.examples.shape == (5,)
    assert not federation.examples.images


def test_clients_without_examples_are_dropped_and_noted() -> None:
    federation = build(
        train=[[0], [], [2], [1]], test=[[3], [4], [], [5]], members=3, labelled=[True, True, True, False]
    )
    assert len(federation) == 2
    assert federation.members == 1
    assert federation.labelled.tolist() == [True, False]
    assert federation.notes == ("2 of 4 clients had no example to train or to test on and were dropped.",)


def test_only_labelled_training_examples_weigh() -> None:
    federation = build(y=np.array([0, -1, 0, 1, 2, 1]), train=[[0, 1, 2], [3], [1]], test=[[4], [4], [5]])
    assert federation.weight.tolist() == [2, 1, 0]
    hidden = build(train=[[0, 1], [2, 3, 4], [5]], test=[[3], [4], [0]], labelled=[True, False, True])
    assert hidden.weight.tolist() == [2, 0, 1]


def test_traits_say_what_a_client_has() -> None:
    federation = build(members=1, rotation=[0, 90], labelled=[True, False], budget=["S", "L"])
    assert federation.traits(1) == {
        "name": "",
        "seen": False,
        "role": "latecomer",
        "labelled": False,
        "rotation": 90,
        "budget": "L",
        "train_examples": 1,
        "val_examples": 0,
        "test_examples": 1,
        "classes": "0:1",
    }


def test_a_client_costs_less_than_64_bytes_beside_its_rows() -> None:
    count = 20_000
    rows = np.zeros((count, 1), np.int64)
    federation = build(train=rows, val=rows, test=rows)
    tensors = [federation.rows(split).start for split in SPLITS]
    tensors += [federation.labelled, federation.rotation, federation.weight]
    assert sum(tensor.nbytes for tensor in tensors) / count < 64
    assert all(federation.rows(split).index.nbytes == 4 * count for split in SPLITS)


BAD = {
    "names example 99; there are examples 0 to 5": {"train": [[0, 99], [1]]},
    "names example -1": {"test": [[3], [-1]]},
    "test has rows for 1 clients, train for 2": {"test": [[3]]},
    "val has rows for 3 clients, train for 2": {"val": [[], [], []]},
    "one label an example": {"y": Y[:5]},
    "not whole numbers, 0.5": {"y": Y + 0.5},
    "x holds <U1 values": {"x": np.array(list("abcdef"))},
    "1 values that are not finite": {"x": np.array([[1.0], [np.nan], [1], [1], [1], [1]])},
    "data set is empty": {"x": X[:0], "y": Y[:0], "train": [[]], "test": [[]]},
    r"Labels must lie in 0..1 .* found 2": {"classes": 2},
    "found -2": {"y": Y - 2},
    "None of the 2 training clients": {"train": [[], []]},
    "None of the 0 training clients": {"members": 0},
    "one entry a client, 2 in all; found 3": {"labelled": [True, False, True]},
    "one entry a client, 2 in all; found 1": {"rotation": [90]},
    "budget have one entry a client, 2 in all; found 3": {"budget": ["S", "M", "L"]},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_arrays_are_refused_in_one_sentence(message: str) -> None:
    with pytest.raises(DataError, match=message):
        build(**BAD[message])


def turned(image: torch.Tensor, angle: int) -> torch.Tensor:
    taps, shares = turns(tuple(image.shape), [angle])
    return (image.flatten()[taps[0]] * shares[0]).sum(0).reshape(image.shape)


@pytest.mark.parametrize("side", [1, 4, 5, 28])
def test_quarter_turns_are_those_of_rot90(side: int) -> None:
    image = torch.rand(side, side, generator=torch.Generator().manual_seed(side))
    for quarter in range(-4, 5):  # positive angles turn against the clock
        assert turned(image, 90 * quarter).equal(torch.rot90(image, quarter))
    assert turns((side, side), [0, 90, 180, 270])[0].shape == (4, 1, side * side)


def test_no_turn_is_the_identity_for_any_shape() -> None:
    image = torch.rand(3, 7)
    assert turned(image, 0).equal(image)
    assert turned(image, 180).equal(torch.rot90(image, 2))


def test_other_angles_blend_and_lose_the_corners() -> None:
    image = torch.ones(9, 9)
    tilted = turned(image, 45)
    assert float(tilted[4, 4]) == 1
    assert float(tilted[0, 0]) == 0
    assert float(tilted.min()) >= 0
    assert float(tilted.max()) <= 1 + 1e-6


def test_a_slope_is_turned_exactly() -> None:
    """Bilinear weights reproduce a slope: after 30 degrees its height is cos 30 r + sin 30 c about the centre."""
    slope = torch.arange(9.0)[:, None].expand(9, 9) - 4
    row, column = torch.meshgrid(torch.arange(-2.0, 3), torch.arange(-2.0, 3), indexing="ij")
    torch.testing.assert_close(turned(slope.contiguous(), 30)[2:7, 2:7], 3**0.5 / 2 * row + column / 2)


def test_a_budget_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownName, match="There is no budget 'XL'; there are: L, M, S"):
        build(budget=["S", "XL"])


def test_a_budget_is_part_of_the_fingerprint() -> None:
    """And only where somebody has an unusual one, so that older runs go on."""
    assert build(budget=["M", "M"]).digest() == build().digest() != build(budget=["M", "S"]).digest()
