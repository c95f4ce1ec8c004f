"""What a training refuses before it begins."""

from __future__ import annotations

import pytest

import toys
from latecomer import train
from latecomer.errors import DataError

LATE = len(toys.TRAIN) - toys.MEMBERS


def begin(name: str, members: bool, late: bool) -> dict[str, object]:
    """A round of a method on the toy federation, whose members and latecomers have labels or have none."""
    federation = toys.federation(labelled=(members,) * toys.MEMBERS + (late,) * LATE)
    method = toys.method(name)
    return train.run(method, federation, toys.engine("vector", method, [federation]), rounds=1, cohort=2)


@pytest.mark.parametrize("name", ["fedavg", "pefll"])
def test_members_without_labels_have_nothing_to_learn(name: str) -> None:
    with pytest.raises(DataError, match="None of the 7 training clients has a labelled example"):
        begin(name, members=False, late=True)


def test_latecomers_without_labels_are_refused_where_a_method_needs_them() -> None:
    with pytest.raises(DataError, match="FedPer needs a latecomer's labels, but none of the 3 latecomers has any"):
        begin("fedper", members=True, late=False)
    assert "unseen" in begin("fedavg", members=True, late=False), "FedAvg needs none"
