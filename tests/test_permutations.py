"""Permuted labels: who calls what by which number, on every engine, and without a copy of an example."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import latecomer
import toys
from latecomer import federate, train
from latecomer.cli import main
from latecomer.data import Federation
from latecomer.data.federation import SPLITS, Rows
from latecomer.data.permute import Permutations
from latecomer.engines.home import Homes, PackedHome
from latecomer.errors import DataError, SettingError
from latecomer.handover.meet import Meeting, meet
from latecomer.study.finished import Finished

ASKED = {"partition": "iid", "clients": 30, "unseen": 0.2, "permutations": 3}
TURNED = torch.tensor([[0, 1, 2], [2, 0, 1]])  # the second calls class 0 2, 1 0 and 2 1


def three(**others: object) -> Federation:
    """Two members and a latecomer without labels, on six examples of three classes; all but the first permute."""
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 2, 0, 1, -1])
    rows = {"train": [[0, 1], [0, 2, 5], [1]], "val": [[3], [3], [3]], "test": [[4], [4], [4]]}
    kinds = Permutations(TURNED, torch.tensor([0, 1, 1], dtype=torch.int16))
    known = {"members": 2, "labelled": [True, True, False], "permutations": kinds} | others
    return Federation.from_arrays(x, y, **rows, **known)


def seen(federation: Federation, client: int, split: str = "train") -> list[int]:
    """The labels that a step of a client sees."""
    homes = Homes([federation], torch.device("cpu"), torch.float32)
    home = PackedHome(homes, homes.client_rows(0, torch.tensor([client]))[0], torch.tensor(0), {})
    batch = home.all(split)
    return batch.y[batch.real].tolist()


def test_a_client_sees_its_own_names_of_the_classes() -> None:
    federation = three()
    assert [seen(federation, 0, split) for split in SPLITS] == [[0, 1], [0], [1]]
    assert [seen(federation, 1, split) for split in SPLITS] == [[2, 1, -1], [2], [0]]
    assert [seen(federation, 2, split) for split in SPLITS] == [[-1], [-1], [0]]  # it has no labels, tests have
    assert federation.traits(0) | {"classes": "0:1 1:1", "permutation": 0} == federation.traits(0)
    assert federation.traits(1) | {"classes": "1:1 2:1", "permutation": 1} == federation.traits(1)


def test_federations_trained_together_keep_their_names() -> None:
    plain, other = three(permutations=None), three()
    homes = Homes([plain, other], torch.device("cpu"), torch.float32)
    rows = [homes.client_rows(run, torch.tensor([1]))[0] for run in (0, 1)]
    found = [PackedHome(homes, row, torch.tensor(0), {}).all().y[:2].tolist() for row in rows]
    assert found == [[0, 2], [2, 1]]


def test_without_permutations_nothing_is_said_of_them() -> None:
    plain = three(permutations=None)
    assert "permutation" not in plain.traits(0)
    assert plain.digest() != three().digest()
    assert (plain.fingerprints == three().fingerprints).tolist() == [True, False, False]
    for nobody in (0, 1):
        assert federate("digits", **ASKED | {"permutations": nobody}).permutations is None


def test_drawn_permutations_differ_and_more_of_them_are_the_same_and_some_more() -> None:
    few, many = (federate("digits", **ASKED | {"permutations": count}).permutations for count in (3, 9))
    assert few is not None
    assert many is not None
    assert torch.equal(few.table, many.table[:3])
    assert few.table[0].tolist() == list(range(10))
    assert len({tuple(row) for row in many.table.tolist()}) == 9
    assert {*few.kind.tolist()} == {0, 1, 2}
    other = federate("digits", **ASKED, seed=1).permutations
    assert other is not None
    assert not torch.equal(few.table, other.table)


def test_the_split_is_the_same_with_and_without() -> None:
    plain, permuted = (federate("digits", **ASKED | {"permutations": count}) for count in (0, 3))
    for split in SPLITS:
        assert torch.equal(plain.rows(split).index, permuted.rows(split).index)
    assert torch.equal(plain.examples.y, permuted.examples.y)


def test_latecomers_behind_members_keep_their_permutations() -> None:
    federation = three()
    late = federation.behind(5, 2)
    assert [late.traits(5)[name] for name in ("permutation", "classes")] == [1, "0:1"]


def test_a_dropped_client_takes_its_permutation_with_it() -> None:
    x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 2, 0])
    kinds = Permutations(TURNED, torch.tensor([0, 0, 1], dtype=torch.int16))
    left = Federation.from_arrays(x, y, train=[[0], [], [1]], test=[[2], [2], [3]], permutations=kinds)
    assert [left.traits(k)["permutation"] for k in (0, 1)] == [0, 1]


def by_hand(permuted: Federation) -> Federation:
    """Every client has copies of its examples, with its own labels on them."""
    x, y, rows = list[torch.Tensor](), list[torch.Tensor](), {split: list[np.ndarray]() for split in SPLITS}
    for client in range(len(permuted)):
        for split in SPLITS:
            index = permuted.rows(split)[client].long()
            rows[split].append(np.arange(len(index)) + sum(map(len, x)))
            x.append(permuted.examples.x[index])
            y.append(permuted.called(client, permuted.examples.y[index]))
    examples = replace(permuted.examples, x=torch.cat(x), y=torch.cat(y))
    return replace(permuted, examples=examples, permutations=None, **{k: Rows.of(some) for k, some in rows.items()})


@pytest.mark.parametrize(
    ("engine", "name"),
    [*((engine, "fedavgplus") for engine in toys.ENGINES), ("vector", "pefll"), ("vector", "knnper")],
)
def test_engines_agree_with_labels_that_were_permuted_by_hand(engine: str, name: str) -> None:
    """Also where labels are read by an encoder, and where they stand in a datastore."""
    random = torch.Generator().manual_seed(3)
    table = torch.stack([torch.arange(10), *(torch.randperm(10, generator=random) for _ in range(3))])
    first = toys.federation()
    permuted = replace(first, permutations=Permutations(table, torch.arange(len(first), dtype=torch.int16) % 4))
    scores = []
    for federation, which in ((permuted, engine), (by_hand(permuted), "vector")):
        method = toys.method(name)
        made = toys.engine(which, method, [federation])
        scores.append(train.run(method, federation, made, rounds=2, cohort=3)["unseen"])
    assert scores[0] == pytest.approx(scores[1])


BAD = {
    "one entry a client, 3 in all; found 1": Permutations(TURNED, torch.zeros(1, dtype=torch.int16)),
    "name each of the 3 classes once": Permutations(torch.tensor([[0, 0, 1]]), torch.zeros(3, dtype=torch.int16)),
    "permutations 0 to 1; found 2": Permutations(TURNED, torch.tensor([0, 1, 2], dtype=torch.int16)),
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_a_permutation_is_refused(message: str) -> None:
    with pytest.raises(DataError, match=message):
        three(permutations=BAD[message])


def test_senseless_permutations_are_refused() -> None:
    x, y = np.zeros((8, 3), np.float32), np.array([0, 1] * 4)
    with pytest.raises(SettingError, match="permutations is 3, but 2 classes have only 2"):
        federate((x, y), partition="iid", clients=2, permutations=3)
    text = np.random.default_rng(0).integers(0, 5, (40, 4)).astype(np.int8)
    with pytest.raises(SettingError, match="are characters"):
        federate((text, np.arange(40) % 5), partition="iid", clients=2, permutations=2)


def test_a_run_says_who_permutes_and_meets_others(tmp_path: Path) -> None:
    words = "run fedavgplus --data digits --partition iid --clients 12 --unseen 0.25 --permutations 2 --rounds 2"
    assert main([*words.split(), "--threads", "1", "--out", str(tmp_path), "--name", "a"]) == 0
    run = Finished.read(tmp_path / "a")
    assert {row["permutation"] for row in run.rows} == {0, 1}
    assert {kind[2] for kind in run.kinds.values()} == {0, 1}
    met = meet(latecomer.load(tmp_path / "a"), Meeting(fresh=False), permutations=40, clients=10).federations[0]
    assert met.permutations is not None
    assert int(met.permutations.kind.max()) > 1  # kinds that no member has
