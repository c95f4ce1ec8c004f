"""Partitions: nothing shared, nothing lost, the papers' sizes, and every request that makes no sense."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

os.environ["HF_HUB_OFFLINE"] = "1"  # before datasets is imported: no test touches the network

from latecomer.data import Federation, Source, federate, from_partitioner
from latecomer.data.pachinko import allocate
from latecomer.data.partitions import names
from latecomer.data.split import SPLITS, Split
from latecomer.errors import DataError, SettingError, UnknownName

COMPLETE = (
    "classes",
    "dirichlet",
    "hierarchical",
    "iid",
    "pachinko",
    "rotations",
)  # the partitions that use every example


def made_up(train: int = 600, test: int = 200, classes: int = 10, writers: int = 12, groups: int = 5) -> Source:
    """Every example's single pixel column tells which one it is; of 5 coarse classes, class 7 is in the third."""
    count = train + test
    x = np.zeros((count, 1, 4), np.uint8)
    x[:, 0] = np.arange(count)[:, None] >> np.array([0, 8, 16, 24]) & 255
    y, client = np.arange(count) % classes, np.arange(count) // 7 % writers
    return Source(
        "made-up", x[:train], y[:train], x[train:], y[train:], classes,
        client_train=client[:train], client_test=client[train:],
        coarse_train=y[:train] % groups, coarse_test=y[train:] % groups,
    )  # fmt: skip


SOURCE = made_up()
CIFAR = made_up(50_000, 10_000)  # as many examples and classes as CIFAR-10


def rows(federation: Federation) -> dict[str, list[list[int]]]:
    return {split: [federation.rows(split)[k].tolist() for k in range(len(federation))] for split in SPLITS}


def everything(federation: Federation) -> list[int]:
    return [example for split in SPLITS for example in federation.rows(split).index.tolist()]


def class_sets(federation: Federation, split: str = "train") -> list[set[int]]:
    return [set(federation.examples.y[federation.rows(split)[k].long()].tolist()) for k in range(len(federation))]


# properties of all partitions

LIMIT = {"hierarchical": 5}  # coarse classes

requests = st.fixed_dictionaries(
    {
        "partition": st.sampled_from(names()),
        "clients": st.integers(2, 12),
        "seed": st.integers(0, 2**40),
        "split": st.sampled_from(["pefll", "pfedhn"]),
        "over": st.sampled_from(["clients", "classes"]),
        "alpha": st.sampled_from([0.05, 0.3, 1.0, 100.0]),
        "fine_alpha": st.sampled_from([1e-3, 0.3, 10.0]),
        "validation": st.sampled_from([0.0, 0.1, 0.2, 0.5]),
        "classes_per_client": st.integers(0, 10),
    }
).map(lambda made: made | {"classes_per_client": min(made["classes_per_client"], LIMIT.get(made["partition"], 10))})


@settings(deadline=None, derandomize=True, max_examples=120)
@given(request=requests)
def test_no_example_belongs_to_two_clients_or_two_splits(request: dict[str, Any]) -> None:
    federation = federate(SOURCE, **request)
    owned = everything(federation)
    assert len(owned) == len(set(owned))
    if request["partition"] != "natural":
        assert max(federation.train.index.tolist() + federation.val.index.tolist()) < 600 <= min(federation.test.index)
    assert all(federation.train.sizes > 0)
    assert all(federation.test.sizes > 0)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(request=requests)
def test_the_seed_decides_everything(request: dict[str, Any]) -> None:
    first, second = federate(SOURCE, **request), federate(SOURCE, **request)
    other = federate(SOURCE, **request | {"seed": request["seed"] + 1})
    assert rows(first) == rows(second)
    assert rows(first) != rows(other)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(request=requests, partition=st.sampled_from(COMPLETE))
def test_nothing_is_lost_where_all_data_is_used(request: dict[str, Any], partition: str) -> None:
    request |= {"partition": partition, "split": "pefll", "classes_per_client": 5}
    federation = federate(SOURCE, **request)
    if not federation.notes:  # no client was dropped
        assert sorted(everything(federation)) == list(range(800))
    assert int(federation.val.sizes.sum()) <= round(600 * request["validation"])


@settings(deadline=None, derandomize=True, max_examples=40)
@given(request=requests, unseen=st.floats(0.1, 0.9), labelled=st.floats(0, 1), late=st.booleans())
def test_members_come_first_and_the_asked_share_is_labelled(
    request: dict[str, Any], unseen: float, labelled: float, late: bool
) -> None:
    request |= {"partition": "iid", "clients": 12}
    federation = federate(SOURCE, **request, unseen=unseen, labelled=labelled, unseen_labelled=late)
    members = federation.members
    assert members == 12 - round(unseen * 12)
    assert int(federation.labelled[:members].sum()) == round(labelled * members)
    assert federation.labelled[members:].tolist() == [late] * (12 - members)
    assert rows(federation) == rows(federate(SOURCE, **request))  # who is late or labelled does not deal anew


def test_several_seeds_share_the_examples() -> None:
    source = made_up()
    first, second = (federate(source, partition="iid", clients=4, seed=seed) for seed in (0, 1))
    assert rows(first) != rows(second)
    assert first.examples.x.data_ptr() == second.examples.x.data_ptr()
    assert first.examples.y.data_ptr() == second.examples.y.data_ptr()


def test_the_images_of_a_client_are_its_own() -> None:
    federation = federate(SOURCE, partition="dirichlet", clients=8)
    x = federation.examples.x[..., 0].long()  # [examples, 1, 4]
    assert (x[:, 0] * 256 ** torch.arange(4)).sum(1).equal(torch.arange(800))
    assert federation.examples.y.equal(torch.arange(800) % 10)


# k classes a client


@pytest.mark.parametrize(("clients", "sizes"), [(100, (400, 100, 100)), (500, (80, 20, 20)), (1000, (40, 10, 10))])
def test_the_split_of_pefll(clients: int, sizes: tuple[int, int, int]) -> None:
    federation = federate(CIFAR, partition="classes", clients=clients, unseen=0.1)
    assert [federation.rows(split).sizes.unique().tolist() for split in SPLITS] == [[size] for size in sizes]
    assert (len(federation), federation.members, federation.notes) == (clients, clients * 9 // 10, ())
    assert sorted(everything(federation)) == list(range(60_000))
    sets = class_sets(federation)
    assert all(len(owned) == 2 for owned in sets)
    assert all(set().union(*sets[k : k + 5]) == set(range(10)) for k in range(0, clients, 5))
    assert sets == class_sets(federation, "val") == class_sets(federation, "test")
    assert federation.examples.y[federation.val.index.long()].bincount().tolist() == [1000] * 10


@pytest.mark.parametrize(("clients", "average"), [(50, 727), (100, 380)])
def test_the_split_of_pfedhn(clients: int, average: int) -> None:
    """One of k n // C + 1 shares of a class stays unused: 40,000 * 10/11 / 50 = 727.3, 40,000 * 20/21 / 100 = 381.0."""
    split = {"partition": "classes", "split": "pfedhn", "clients": clients}
    federations = [federate(CIFAR, **split, seed=seed) for seed in range(12)]
    means = [float(federation.train.sizes.double().mean()) for federation in federations]
    assert abs(np.mean(means) - average) < 2
    federation = federations[0]
    assert all(len(owned) == 2 for owned in class_sets(federation))
    validation = federation.val.sizes / federation.train.sizes
    assert float((validation - 0.25).abs().max()) < 0.05  # the same shares, of an unstratified fifth
    used = torch.bincount(torch.tensor([c for owned in class_sets(federation) for c in owned]))
    assert int(used.max() - used.min()) <= 1
    spread = float(federation.train.sizes.double().std() / federation.train.sizes.double().mean())
    assert 0.04 < spread < 0.12  # U(.4, .6) has a relative spread of 0.115; two of them average to 0.08
    drawn = federation.examples.y[federation.val.index.long()].bincount()
    assert len(set(drawn.tolist())) > 1


@pytest.mark.parametrize(
    ("classes", "usual"), [(10, 2), (100, 10), (62, 6), (5, 2), (3, 2), (2, 2), (1, 1), (19, 4), (20, 2)]
)
def test_the_usual_number_of_classes(classes: int, usual: int) -> None:
    source = made_up(40 * classes, 40 * classes, classes)
    federation = federate(source, partition="classes", clients=20)
    assert {len(owned) for owned in class_sets(federation)} == {usual}
    told = [note for note in federation.notes if f"Every client has {usual} of the {classes} classes" in note]
    assert len(told) == (classes not in (10, 100)), "other numbers than the papers' are told"
    assert not any(
        "Every client has" in note
        for note in federate(source, partition="classes", clients=20, classes_per_client=usual).notes
    ), "what was asked for is not"


def test_classes_that_do_not_divide_evenly_are_still_distinct_and_balanced() -> None:
    federation = federate(SOURCE, partition="classes", clients=7, classes_per_client=3)
    sets = class_sets(federation)
    assert all(len(owned) == 3 for owned in sets)
    used = np.bincount([c for owned in sets for c in owned])
    assert used.max() - used.min() <= 1


def test_some_latecomers_have_classes_that_nobody_else_has_together() -> None:
    options = {"partition": "classes", "clients": 550, "unseen": 0.1, "validators": 0.1}
    sets = [frozenset(owned) for owned in class_sets(federate(CIFAR, **options, unlike=0.5))]
    others, unlike = {*sets[:-28]}, sets[-28:]
    assert all(len(owned) == 2 for owned in sets)
    assert len({*unlike}) == 5
    assert frozenset.union(*unlike) == {*range(10)}, "a block that covers all classes"
    assert len(others) == 40, "of 45 pairs all but these five"
    assert not others & {*unlike}
    usual = [frozenset(owned) for owned in class_sets(federate(CIFAR, **options))]
    assert len({*usual[:-55]}) == 45, "without it members leave nothing to be unlike"


# Dirichlet


@pytest.mark.parametrize("over", ["clients", "classes"])
def test_dirichlet_shares_are_those_of_all_splits(over: str) -> None:
    federation = federate(CIFAR, partition="dirichlet", clients=20, over=over, alpha=0.5)
    y = federation.examples.y
    counts = {
        split: torch.stack([y[federation.rows(split)[k].long()].bincount(minlength=10) for k in range(len(federation))])
        for split in SPLITS
    }
    assert float((counts["train"] / 4 - counts["val"]).abs().max()) < 2
    assert counts["val"].equal(counts["test"])  # 1,000 of every class in both


def test_small_alpha_makes_clients_unlike_each_other() -> None:
    def largest_share(over: str, alpha: float) -> float:
        federation = federate(CIFAR, partition="dirichlet", clients=30, over=over, alpha=alpha)
        y = federation.examples.y
        counts = [y[federation.train[k].long()].bincount(minlength=10) for k in range(len(federation))]
        return float(np.mean([int(count.max()) / int(count.sum()) for count in counts]))

    for over in ("clients", "classes"):
        assert largest_share(over, 0.1) > 0.5 > 0.2 > largest_share(over, 100.0)


@pytest.mark.parametrize("alpha", [1e-300, 1e-4, 1e8])
def test_extreme_alphas_lose_nothing(alpha: float) -> None:
    federation = federate(SOURCE, partition="dirichlet", clients=3, over="classes", alpha=alpha)
    assert len(everything(federation)) == 800 or federation.notes


# latecomers with an alpha of their own


def evenness(federation: Federation) -> np.ndarray[Any, Any]:
    """How even the classes of each client are: 1 where all are equally frequent."""
    y = federation.examples.y
    counts = np.stack([y[federation.train[k].long()].bincount(minlength=10).numpy() for k in range(len(federation))])
    shares = counts / counts.sum(1, keepdims=True)
    return -np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1)), 0).sum(1) / np.log(10)


@pytest.mark.parametrize("options", [{"partition": "dirichlet", "over": "classes"}, {"partition": "pachinko"}])
def test_latecomers_may_be_drawn_with_another_alpha(options: dict[str, Any]) -> None:
    for own, other in ((0.05, 100.0), (100.0, 0.05)):
        federation = federate(CIFAR, clients=60, unseen=0.2, alpha=own, unseen_alpha=other, **options)
        even = evenness(federation)
        members, late = even[: federation.members].mean(), even[federation.members :].mean()
        assert (late - members) * (other - own) > 0
        assert abs(late - members) > 0.3
        assert len(set(everything(federation))) == len(everything(federation))


@pytest.mark.parametrize("options", [{"partition": "dirichlet", "over": "classes"}, {"partition": "pachinko"}])
def test_the_members_alpha_given_again_changes_nothing(options: dict[str, Any]) -> None:
    options |= {"clients": 20, "unseen": 0.2, "alpha": 0.3}
    assert rows(federate(SOURCE, **options)) == rows(federate(SOURCE, **options, unseen_alpha=0.3))


def test_an_alpha_of_latecomers_needs_some_and_a_partition_that_draws_them() -> None:
    with pytest.raises(SettingError, match=r"unseen_alpha is 0\.5, but there are no latecomers"):
        federate(SOURCE, partition="pachinko", clients=10, unseen_alpha=0.5)
    for partition in ("classes", "natural", "iid", "dirichlet", "hierarchical"):
        with pytest.raises(SettingError, match="it needs a partition that draws the class shares of every client"):
            federate(SOURCE, partition=partition, clients=10, unseen=0.2, unseen_alpha=0.5)


# coarse classes

HUNDRED = made_up(50_000, 10_000, classes=100, groups=20)  # as many examples and classes as CIFAR-100


def one_by_one(
    stock: list[int], parent: list[int], alphas: list[float], beta: float, random: np.random.Generator
) -> list[list[int]]:
    """Pachinko allocation as Reddi et al. tell it: a draw, and only then the next one."""
    left, given = list(stock), [[0] * len(alphas) for _ in stock]
    each = sum(stock) // len(alphas)
    for client in random.permutation(len(alphas)):
        coarse = random.dirichlet([alphas[client]] * (max(parent) + 1))
        fine = [random.dirichlet([beta] * parent.count(group)) for group in range(max(parent) + 1)]
        for _ in range(each):
            groups = [
                group if any(n for n, p in zip(left, parent, strict=True) if p == group) else -1 for group in (0, 1)
            ]
            weights = np.array([coarse[group] if group >= 0 else 0.0 for group in groups])
            group = random.choice(2, p=weights / weights.sum())
            labels = [k for k, p in enumerate(parent) if p == group]
            weights = np.array([fine[group][k] if left[label] else 0.0 for k, label in enumerate(labels)])
            label = labels[random.choice(len(labels), p=weights / weights.sum())]
            left[label] -= 1
            given[label][client] += 1
    return given


def test_drawing_together_is_like_drawing_one_by_one() -> None:
    stock, parent, alphas = [2, 5, 4, 3, 6], [0, 0, 1, 1, 1], [0.3, 2.0]
    random = np.random.default_rng(0)
    few = [
        allocate(np.array(stock), np.array(parent), np.array(alphas), 0.8, random) for _ in range(1500)
    ]  # [draws, classes, clients]
    slow = [one_by_one(stock, parent, alphas, 0.8, random) for _ in range(1500)]
    for power in (1, 2):
        a, b = (np.array(draws, float) ** power for draws in (few, slow))
        error = np.sqrt((a.var(0) + b.var(0)) / len(a))
        assert (np.abs(a.mean(0) - b.mean(0)) < 4 * error).all()
    products = [
        np.einsum("nij,nkj->ik", np.array(draws, float), np.array(draws, float)) / 1500 for draws in (few, slow)
    ]
    assert np.abs(products[0] - products[1]).max() < 0.5, "classes of one parent go together alike"


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    stock=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    clients=st.integers(1, 6),
    alpha=st.sampled_from([1e-300, 0.01, 1.0, 1e6]),
    beta=st.sampled_from([1e-300, 0.01, 10.0]),
    seed=st.integers(0, 2**32),
)
def test_pachinko_gives_everything_away_in_equal_parts(
    stock: list[int], clients: int, alpha: float, beta: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    parent = np.unique(random.integers(0, 3, len(stock)), return_inverse=True)[1]
    given = allocate(np.array(stock), parent, np.full(clients, alpha), beta, random)
    assert given.sum(1).tolist() == stock
    assert given.min() >= 0
    assert given.sum(0).max() - given.sum(0).min() <= 1


def test_pachinko_clients_are_alike_in_size_and_unlike_in_classes() -> None:
    federation = federate(HUNDRED, partition="pachinko", clients=200, alpha=0.1, unseen=0.1)
    y = federation.examples.y
    sizes = sum(federation.rows(split).sizes for split in SPLITS)
    assert sorted(everything(federation)) == list(range(60_000))
    assert (
        270 < int(sizes.min()) <= int(sizes.max()) < 330
    )  # 300 each, less what rounding in every split takes or gives
    groups = [np.bincount(y[federation.train[k].long()].numpy() % 20, minlength=20) for k in range(180)]
    top = np.array([count.max() / count.sum() for count in groups])
    assert 0.4 < top.mean() < 0.8
    fine = y[federation.train[0].long()]
    main = fine[fine % 20 == int(groups[0].argmax())].bincount(minlength=100)
    assert int((main > 0).sum()) == 5, "fine_alpha 10 spreads a coarse class over its fine ones"


def test_hierarchical_clients_share_a_coarse_class() -> None:
    """pFedHN, section 5.5: every one of CIFAR-100's 20 coarse classes falls to five of 100 clients."""
    federation = federate(HUNDRED, partition="hierarchical", clients=100)
    assert [federation.rows(split).sizes.unique().tolist() for split in SPLITS] == [[400], [100], [100]]
    sets = class_sets(federation)
    assert all(len(owned) == 5 and len({label % 20 for label in owned}) == 1 for owned in sets)
    assert np.bincount([min(owned) % 20 for owned in sets]).tolist() == [5] * 20
    assert sorted(everything(federation)) == list(range(60_000))


def test_hierarchical_clients_may_have_several_coarse_classes() -> None:
    federation = federate(SOURCE, partition="hierarchical", clients=10, classes_per_client=3)
    assert all(len({label % 5 for label in owned}) == 3 and len(owned) == 6 for owned in class_sets(federation))
    with pytest.raises(SettingError, match="classes_per_client is 6, but 'made-up' has 5 coarse classes"):
        federate(SOURCE, partition="hierarchical", clients=10, classes_per_client=6)


@pytest.mark.parametrize("partition", ["hierarchical", "pachinko"])
def test_coarse_labels_may_be_text_and_cut_through_classes(partition: str) -> None:
    coarse = np.array(["left", "right"])[np.arange(800) % 3 % 2]  # every class is on both sides
    source = replace(SOURCE, coarse_train=coarse[:600], coarse_test=coarse[600:])
    federation = federate(source, partition=partition, clients=4)
    assert sorted(everything(federation)) == list(range(800))


@pytest.mark.parametrize("partition", ["hierarchical", "pachinko"])
def test_without_coarse_labels_they_are_refused(partition: str) -> None:
    for missing in ("coarse_train", "coarse_test"):
        with pytest.raises(DataError, match=f"'made-up' has no coarse labels, which the partition '{partition}' needs"):
            federate(replace(SOURCE, **{missing: None}), partition=partition, clients=4)


# as FLowDUP's paper splits

shared_out = {"split": "flowdup", "unseen_labelled": False}


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    request=requests,
    partition=st.sampled_from(["classes", "iid", "rotations"]),
    unseen=st.sampled_from([0.2, 0.5]),
    validators=st.sampled_from([0.0, 0.25]),
    examples=st.sampled_from([0, 7]),
)
def test_latecomers_share_the_test_examples_and_are_scored_on_all_they_have(
    request: dict[str, Any], partition: str, unseen: float, validators: float, examples: int
) -> None:
    request |= {"partition": partition, "clients": 12, "unseen": unseen, "validators": validators, "examples": examples}
    federation = federate(SOURCE, **request | {"classes_per_client": 5} | shared_out)
    own, members, late = rows(federation), federation.members, federation.first_late
    assert (len(federation), len(federation) - late, late - members) == (12, round(12 * unseen), round(12 * validators))
    assert own["train"][late:] == own["test"][late:]
    assert own["train"][members:late] == own["val"][members:late]
    assert not any(own["test"][:late])
    assert not any(own["val"][late:])
    assert max(max(row) for row in own["train"][:late] + own["val"][:members] if row) < 600
    assert min(min(row) for row in own["train"][late:]) >= 600
    everybodys = [example for row in own["train"] + own["val"][:members] for example in row]
    assert len(everybodys) == len(set(everybodys)), "and no example has two owners"
    if examples:
        assert int(federation.train.sizes.max()) <= examples
    elif not federation.notes:
        assert len(everybodys) == 800, "and none is lost"
    assert not federation.labelled[members:].any()
    assert federation.labelled[:members].all()


@pytest.mark.parametrize(("partition", "each"), [("classes", 2), ("iid", 10), ("rotations", 10)])
def test_the_split_of_flowdup(partition: str, each: int) -> None:
    """475 members, 25 validators and 100 latecomers with 100 images each."""
    federation = federate(
        CIFAR, partition=partition, clients=600, unseen=1 / 6, validators=25 / 600, validation=0.0, **shared_out
    )
    assert (len(federation), federation.members, federation.validators) == (600, 475, 25)
    assert federation.train.sizes.unique().tolist() == [100]
    assert federation.val.sizes.tolist() == [0] * 475 + [100] * 25 + [0] * 100
    assert federation.test.sizes.tolist() == [0] * 500 + [100] * 100
    assert {len(owned) for owned in class_sets(federation)} == {each}
    assert set().union(*class_sets(federation)[500:]) == set(range(10))
    assert federation.notes == ()


@pytest.mark.parametrize("clients", [0, 9])
@pytest.mark.parametrize("validators", [0.0, 0.25])
def test_natural_latecomers_are_described_by_and_scored_on_all_that_they_have(clients: int, validators: float) -> None:
    """Writers keep what was published as theirs, test examples included; members hold out validation data only."""
    federation = federate(
        SOURCE, partition="natural", clients=clients, unseen=0.25, validators=validators, seed=3, **shared_out
    )
    own, members, late = rows(federation), federation.members, federation.first_late
    count = clients or 12
    assert (len(federation), len(federation) - late, late - members) == (
        count, round(count * 0.25), round(count * validators),
    )  # fmt: skip
    writer = np.arange(800) // 7 % 12
    theirs = [set(np.flatnonzero(writer == k)) for k in range(12)]
    for client in range(len(federation)):
        train, val, test = (set(own[split][client]) for split in SPLITS)
        assert train | val in theirs, "one writer's examples, and all of them"
        if client < members:
            assert not test
            assert not train & val
            assert len(val) == pytest.approx(0.2 * len(train | val), abs=2)
        elif client < late:
            assert (val, test) == (train, set())
        else:
            assert (val, test) == (set(), train)
    assert len({min(row) for row in own["train"]}) == count, "and no two clients are one writer"
    assert not federation.labelled[members:].any()
    assert federation.notes == ()


@pytest.mark.parametrize("clients", [0, 9])
def test_natural_latecomers_are_nobodys_teachers_for_another_seed(clients: int) -> None:
    """They are scored on all that they have, so a search on another seed would train, and judge settings, by it."""
    asked = {"partition": "natural", "clients": clients, "unseen": 0.25, **shared_out}
    one, other = (federate(SOURCE, seed=seed, validators=0.25, **asked) for seed in (0, 1000))
    late = {example for client in range(one.first_late, len(one)) for example in rows(one)["test"][client]}
    assert late
    for split in ("train", "val"):
        assert not late & {example for client in rows(other)[split][: other.first_late] for example in client}
    assert rows(one)["train"][: one.members] != rows(other)["train"][: other.members], "members are drawn, as before"


def test_natural_latecomers_may_be_writers_of_the_test_examples_alone() -> None:
    strangers = replace(SOURCE, client_test=np.arange(200) // 20 + 100)
    federation = federate(strangers, partition="natural", clients=0, unseen=0.5, **shared_out)
    assert (len(federation), federation.members) == (22, 11)
    assert sorted({*everything(federation)}) == list(range(800))
    assert federation.notes == ()


def test_members_hold_out_what_validation_asks_for() -> None:
    federation = federate(CIFAR, partition="classes", clients=625, unseen=0.16, validators=0.04, **shared_out)
    assert (federation.members, federation.validators, len(federation)) == (500, 25, 625)
    assert federation.train.sizes[:500].float().mean() == pytest.approx(76, abs=1)  # of 95, less a fifth
    assert federation.val.sizes[:500].float().mean() == pytest.approx(19, abs=1)
    assert federation.train.sizes[500:525].float().mean() == pytest.approx(95, abs=1)


FLOWDUP = {"partition": "iid", "clients": 10, "unseen": 0.2} | shared_out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition": "dirichlet"}, r"one of the partitions classes, iid, natural, rotations, not of 'dirichlet'\."),
        ({"partition": "pachinko"}, r"not of 'pachinko'\."),
        ({"unseen": 0.0}, "scores latecomers only, and unseen is 0"),
        ({"unseen_labelled": True}, "they must not have labels; give --unseen-labelled false"),
        ({"validators": 0.9}, "validators is 0.9, which of 10 clients leaves no member"),
        ({"validators": 0.01}, "validators is 0.01, which of 10 clients leaves no validator"),
        ({"validators": -0.5}, "--validators must be at least 0 and at most 0.99; got -0.5"),
    ],
)
def test_a_split_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        federate(SOURCE, **FLOWDUP | changes)


def test_validators_stand_between_members_and_latecomers_in_every_partition() -> None:
    request = {"partition": "classes", "clients": 20}
    plain = federate(SOURCE, **request, unseen=0.2)
    federation = federate(SOURCE, **request, unseen=0.2, validators=0.1, labelled=0.5)
    assert (federation.members, federation.validators, federation.first_late) == (14, 2, 16)
    assert rows(federation) == rows(plain)
    assert int(federation.labelled[:14].sum()) == 7
    assert federation.labelled[14:].all()
    assert federation.digest() != plain.digest()
    assert not federate(SOURCE, **request, validators=0.1, unseen_labelled=False).labelled[18:].any()


# budgets


def test_budgets_fall_to_equal_groups_of_members_and_of_latecomers() -> None:
    federations = [
        federate(SOURCE, partition="iid", clients=32, unseen=0.25, budgets=("S", "M", "L"), seed=seed)
        for seed in (0, 0, 1)
    ]
    for federation in federations:
        assert sorted(federation.budget[:24].tolist()) == [0] * 8 + [1] * 8 + [2] * 8
        assert sorted(federation.budget[24:].bincount().tolist()) == [2, 3, 3]
    columns = [federation.budget.tolist() for federation in federations]
    assert columns[0] == columns[1] != columns[2]
    assert rows(federations[0]) == rows(federate(SOURCE, partition="iid", clients=32, unseen=0.25))


def test_a_size_named_twice_has_twice_the_clients() -> None:
    federation = federate(SOURCE, partition="iid", clients=30, budgets=("L", "S", "L"))
    assert federation.budget.bincount().tolist() == [10, 0, 20]
    assert set(federate(SOURCE, partition="iid", clients=4).budget.tolist()) == {1}


# iid and rotations


def test_iid_clients_are_equal() -> None:
    federation = federate(SOURCE, partition="iid", clients=40)
    assert [federation.rows(split).sizes.unique().tolist() for split in SPLITS] == [[12], [3], [5]]
    assert not federation.rotation.any()


def test_latecomers_may_turn_by_other_angles() -> None:
    options = {"partition": "rotations", "clients": 60, "unseen": 0.5}
    usual, other = federate(SOURCE, **options), federate(SOURCE, **options, unseen_rotations=(45, 90))
    late = other.first_late
    assert other.rotation[late:].unique().tolist() == [45, 90]
    assert other.rotation[:late].equal(usual.rotation[:late])
    with pytest.raises(SettingError, match="there are no latecomers"):
        federate(SOURCE, partition="rotations", clients=60, unseen_rotations=(45,))
    with pytest.raises(SettingError, match="the others turn nothing"):
        federate(SOURCE, partition="iid", clients=60, unseen=0.5, unseen_rotations=(45,))


def test_rotations_are_drawn_for_every_client() -> None:
    federation = federate(SOURCE, partition="rotations", clients=60)
    assert federation.rotation.unique().tolist() == [0, 90, 180, 270]
    assert rows(federation) == rows(federate(SOURCE, partition="iid", clients=60))


def test_any_partition_can_be_turned() -> None:
    federation = federate(SOURCE, partition="classes", clients=40, rotations=(0, 30))
    assert federation.rotation.unique().tolist() == [0, 30]


# natural clients


def test_natural_clients_keep_their_own_test_examples() -> None:
    federation = federate(SOURCE, partition="natural", clients=0, unseen=0.25)
    assert (len(federation), federation.members, federation.notes) == (12, 9, ())
    assert sorted(everything(federation)) == list(range(800))
    for k in range(12):
        mine = torch.cat([federation.rows(split)[k] for split in SPLITS]).long()
        assert len((mine // 7 % 12).unique()) == 1
        assert int(federation.test[k].min()) >= 600


def test_fewer_natural_clients_are_a_seeded_choice() -> None:
    chosen = [federate(SOURCE, partition="natural", clients=5, seed=seed) for seed in (0, 0, 1)]
    writers = [[int(federation.train[k][0]) // 7 % 12 for k in range(5)] for federation in chosen]
    assert writers[0] == writers[1] != writers[2]
    assert len(set(writers[0])) == 5


def test_a_test_set_by_others_gives_way_to_a_fifth_of_ones_own() -> None:
    strangers = replace(SOURCE, client_test=np.arange(200) // 50 + 100)
    federation = federate(strangers, partition="natural", clients=0)
    assert len(federation) == 16  # the strangers are clients too
    assert sorted(everything(federation)) == list(range(800))
    assert "a fifth of each client's own" in federation.notes[0]
    share = federation.test.sizes / sum(federation.rows(split).sizes for split in SPLITS)
    assert float((share - 0.2).abs().max()) < 0.02
    other = federate(strangers, partition="natural", clients=0, seed=1000)
    assert set(other.test.index.tolist()) == set(federation.test.index.tolist()), "no seed trains on another's tests"
    assert rows(other)["test"] != rows(federation)["test"], "though it deals the clients otherwise"


def test_a_nameless_test_set_is_left_alone() -> None:
    federation = federate(replace(SOURCE, client_test=None), partition="natural", clients=0)
    assert len(federation) == 12
    assert sorted(everything(federation)) == list(range(600))


def test_ids_may_be_text() -> None:
    def text(ids: Any) -> Any:
        return np.char.add("w", ids.astype(str))

    source = replace(SOURCE, client_train=text(SOURCE.client_train), client_test=text(SOURCE.client_test))
    assert len(federate(source, partition="natural", clients=0)) == 12


def test_natural_clients_keep_the_ids_of_their_source() -> None:
    """Also where some are dropped; and who is called what is not part of who owns what."""
    assert SOURCE.client_train is not None
    assert SOURCE.client_test is not None
    source = replace(SOURCE, client_train=SOURCE.client_train + 100, client_test=SOURCE.client_test + 100)
    federation = federate(source, partition="natural", clients=7, unseen=0.3)
    assert federation.names is not None
    both = np.concatenate((source.client_train, source.client_test))
    for client in range(len(federation)):
        owners = {int(both[row]) for row in federation.train[client].tolist() + federation.test[client].tolist()}
        assert federation.traits(client)["name"] == str(federation.names[client]) == str(owners.pop())
        assert not owners
    assert replace(federation, names=None).digest() == federation.digest()
    assert federate(SOURCE, partition="iid", clients=4).traits(0)["name"] == ""


def test_names_of_clients_without_examples_are_dropped_with_them() -> None:
    x, y = np.zeros((6, 2), np.float32), np.arange(6) % 2
    given = {"train": [[0], [], [1]], "test": [[2], [3], [4]]}
    federation = Federation.from_arrays(x, y, **given, names=["a", "b", "c"])
    assert [federation.traits(client)["name"] for client in range(2)] == ["a", "c"]
    with pytest.raises(DataError, match="names has one entry a client, 3 in all; found 2"):
        Federation.from_arrays(x, y, **given, names=["a", "b"])


# fewer examples, small clients


@pytest.mark.parametrize("partition", names())
def test_training_examples_are_capped_and_nothing_else(partition: str) -> None:
    whole = federate(SOURCE, partition=partition, clients=10, classes_per_client=4)
    capped = federate(SOURCE, partition=partition, clients=10, classes_per_client=4, examples=9)
    assert capped.train.sizes.equal(whole.train.sizes.clamp(max=9))
    assert rows(whole)["test"] == rows(capped)["test"]
    assert rows(whole)["val"] == rows(capped)["val"]
    assert all(set(few) <= set(all_) for few, all_ in zip(rows(capped)["train"], rows(whole)["train"], strict=True))


def test_clients_left_with_nothing_are_dropped_and_noted() -> None:
    federation = federate(made_up(60, 10), partition="iid", clients=30)
    assert len(federation) == 10
    assert "20 of 30 clients" in federation.notes[0]


def test_small_clients_may_have_no_validation_examples() -> None:
    federation = federate(made_up(60, 60), partition="iid", clients=30, validation=0.1)
    assert int(federation.val.sizes.min()) == 0
    assert len(federation) == 30


def test_a_name_will_do_for_a_source() -> None:
    assert len(federate("digits", partition="classes", clients=10)) == 10


def test_a_split_may_be_given_and_changed() -> None:
    split = Split(partition="iid", clients=8, unseen=0.25)
    wanted = federate(SOURCE, partition="iid", clients=8, unseen=0.5, seed=3)
    assert rows(federate(SOURCE, split, seed=3, unseen="0.5")) == rows(wanted)
    assert federate(SOURCE, split, unseen="0.5").members == wanted.members == 4
    assert federate(SOURCE, replace(split, split="pfedhn", partition="classes")).members == 6


def test_settings_may_come_in_any_sequence() -> None:
    options: dict[str, Any] = {"partition": "iid", "clients": np.int64(8)}
    expected = federate(SOURCE, **options, rotations=(0, 90), budgets=("S", "L"))
    for rotations, budgets in (([0, 90], ["S", "L"]), (range(0, 91, 90), "S,L"), (np.array([0, 90]), ("S", "L"))):
        found = federate(SOURCE, **options, rotations=rotations, budgets=budgets)
        assert found.rotation.equal(expected.rotation)
        assert found.budget.equal(expected.budget)


# requests that make no sense

BAD: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "no partition 'class'; did you mean 'classes'": (UnknownName, {"partition": "class"}),
    "no value for --split 'pfl'; did you mean 'pefll'": (UnknownName, {"split": "pfl"}),
    "no value for --over 'class'; did you mean 'classes'": (UnknownName, {"over": "class"}),
    "clients is 0; there must be at least one": (SettingError, {"clients": 0}),
    "--clients must be at least 0; got -1": (SettingError, {"clients": -1, "partition": "natural"}),
    "clients is 601, but 'made-up' has only 600 examples": (SettingError, {"clients": 601}),
    "clients is 13, but 'made-up' has 12 natural clients": (SettingError, {"clients": 13, "partition": "natural"}),
    "unseen is 0.01, which of 10 clients leaves no latecomer": (SettingError, {"unseen": 0.01}),
    "unseen is 0.99, which of 10 clients leaves no member": (SettingError, {"unseen": 0.99}),
    "--unseen must be at least 0 and at most 0.99; got -0.5": (SettingError, {"unseen": -0.5}),
    "--unseen must be .*; got nan": (SettingError, {"unseen": float("nan")}),
    "--labelled must be at least 0 and at most 1; got 1.5": (SettingError, {"labelled": 1.5}),
    "--labelled must be at least 0 and at most 1; got -0.1": (SettingError, {"labelled": -0.1}),
    "--alpha must be greater than 0; got 0": (SettingError, {"alpha": 0, "partition": "dirichlet"}),
    "--alpha must be greater than 0; got inf": (SettingError, {"alpha": float("inf"), "partition": "dirichlet"}),
    "--fine-alpha must be greater than 0; got 0": (SettingError, {"fine_alpha": 0, "partition": "pachinko"}),
    "--unseen-alpha must be at least 0; got nan": (
        SettingError,
        {"unseen_alpha": float("nan"), "unseen": 0.2, "partition": "dirichlet", "over": "classes"},
    ),
    "--unseen-alpha must be at least 0; got -1": (
        SettingError,
        {"unseen_alpha": -1, "unseen": 0.2, "partition": "pachinko"},
    ),
    "classes_per_client is 11; allowed is 0 .* to 10": (SettingError, {"classes_per_client": 11}),
    "--classes-per-client must be at least 0; got -1": (SettingError, {"classes_per_client": -1}),
    "--validation must be at least 0 and at most 0.9; got 1.0": (SettingError, {"validation": 1.0}),
    "--examples must be at least 0; got -1": (SettingError, {"examples": -1}),
    "seed is -1": (SettingError, {"seed": -1}),
    "budgets names 3 sizes for 2 training clients": (
        SettingError,
        {"budgets": ("S", "M", "L"), "clients": 4, "unseen": 0.5, "partition": "iid"},
    ),
    "There is no value for --budgets 'XL'": (SettingError, {"budgets": ("XL",)}),
    "--rotations must be a whole number; got 1.5": (SettingError, {"rotations": (0, 1.5)}),
    "--rotations must be at least -360 and at most 360; got 361": (SettingError, {"rotations": (0, 361)}),
    "Of 10 classes, 1 a client, none can be left": (
        SettingError,
        {"classes_per_client": 1, "clients": 20, "unseen": 0.2, "unlike": 1},
    ),
    "unlike is 0.5; it needs the partition 'classes'": (
        SettingError,
        {"partition": "iid", "unseen": 0.2, "unlike": 0.5},
    ),
    "unlike is 0.1; it needs .* so many latecomers that one": (SettingError, {"unseen": 0.2, "unlike": 0.1}),
    "There is no setting 'client'; did you mean 'clients'": (UnknownName, {"client": 3}),
}


@pytest.mark.parametrize("message", BAD)
def test_a_request_without_sense_is_refused_in_one_sentence(message: str) -> None:
    kind, changes = BAD[message]
    with pytest.raises(kind, match=message):
        federate(SOURCE, **{"partition": "classes", "clients": 10} | changes)


def test_latecomers_that_all_drop_out_are_missed() -> None:
    with pytest.raises(SettingError, match="None of the latecomers"):
        federate(SOURCE, partition="dirichlet", clients=100, alpha=1e-4, unseen=0.01)


def test_natural_needs_ids_and_classes_need_labels() -> None:
    with pytest.raises(DataError, match="'made-up' has no client ids"):
        federate(replace(SOURCE, client_train=None), partition="natural", clients=0)
    for partition in ("classes", "dirichlet", "hierarchical", "pachinko"):
        with pytest.raises(DataError, match="600 examples of 'made-up' have no label"):
            federate(replace(SOURCE, y_train=np.full(600, -1)), partition=partition, clients=4)
    assert not federate(replace(SOURCE, y_train=np.full(600, -1)), partition="iid", clients=4).weight.any()


def test_only_images_can_be_turned() -> None:
    source = replace(SOURCE, x_train=np.zeros((600, 3), np.float32), x_test=np.zeros((200, 3), np.float32))
    with pytest.raises(SettingError, match="rotations turn images"):
        federate(source, partition="rotations", clients=4)


# partitioners of flwr_datasets


def flower_data(count: int = 60) -> Any:
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((count, 2, 2), np.uint8)
    pixels[:] = np.arange(count)[:, None, None]
    return datasets.Dataset.from_dict(
        {"image": [image.fromarray(one) for one in pixels], "label": [k % 3 for k in range(count)]}
    )


def test_any_flower_partitioner_becomes_a_federation() -> None:
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    partitioner = partitioners.DirichletPartitioner(5, partition_by="label", alpha=5.0, min_partition_size=1, seed=1)
    partitioner.dataset = flower_data()
    federation = from_partitioner(partitioner, members=4)
    assert (len(federation), federation.members, federation.examples.classes) == (5, 4, 3)
    assert federation.examples.x.shape == (60, 2, 2, 1)
    assert federation.examples.x.dtype == torch.uint8
    assert sorted(everything(federation)) == list(range(60))
    for k in range(5):
        mine = torch.cat([federation.rows(split)[k] for split in SPLITS]).long()
        theirs = [int(np.asarray(picture)[0, 0]) for picture in partitioner.load_partition(k)["image"]]
        assert sorted(federation.examples.x[mine, 0, 0, 0].tolist()) == sorted(theirs)
        assert federation.examples.y[mine].equal(federation.examples.x[mine, 0, 0, 0].long() % 3)


def test_a_partitioners_split_is_seeded_and_of_the_asked_size() -> None:
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    partitioner = partitioners.IidPartitioner(3)
    partitioner.dataset = flower_data()
    federations = [from_partitioner(partitioner, test=0.25, validation=0.2, seed=seed) for seed in (0, 0, 1)]
    assert [federations[0].rows(split).sizes.tolist() for split in SPLITS] == [[12] * 3, [3] * 3, [5] * 3]
    assert rows(federations[0]) == rows(federations[1]) != rows(federations[2])


def test_a_partitioner_is_asked_for_sensible_shares() -> None:
    with pytest.raises(SettingError, match="test is 1"):
        from_partitioner(None, test=1.0)
