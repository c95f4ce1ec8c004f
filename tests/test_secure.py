"""Secure means: fixed point, shares, and the protocol, with clients that are lost at every stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import toys
from latecomer import train, tree
from latecomer.clients import Clients
from latecomer.engines import make
from latecomer.errors import ProtocolError, SettingError
from latecomer.faults import NAN, SLOW
from latecomer.processors import Processors
from latecomer.replies import By, Collector, Rules
from latecomer.runs.experiment import Experiment
from latecomer.secure import protocol
from latecomer.secure.fixed import LEVELS, Fixed, largest_cohort
from latecomer.secure.protocol import Client, Words, unmasked
from latecomer.secure.shares import PRIME, factors, join, split
from latecomer.secure.sizes import KEYS, SEALED, SECRET, SHARE, threshold
from latecomer.train import Plan, Training
from latecomer.tree import Tree

# fixed point


def test_numbers_are_rounded_to_the_nearest_multiple_and_clipped() -> None:
    fixed = Fixed(1.0)
    unit = fixed.resolution
    assert unit == 2.0**-23
    told = torch.tensor([0.4 * unit, 0.6 * unit, -0.6 * unit, 1.0, 5.0, -5.0])
    assert fixed.round({"a": told})["a"].tolist() == [0.0, unit, -unit, 1.0, 1.0, -1.0]
    assert (Fixed(1.5).limit, Fixed(2.0).limit, Fixed(0.3).limit) == (2.0, 2.0, 0.5)


def test_what_is_not_finite_stays_so() -> None:
    rounded = Fixed(8.0).round({"a": torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0])})["a"]
    assert rounded.isnan().tolist() == [True, True, True, False]


def test_whole_numbers_by_hand() -> None:
    fixed = Fixed(1.0)
    values = fixed.round({"a": torch.tensor([[0.5, -1.0]]), "b": torch.tensor(0.25)})
    assert fixed.whole(values, 3).tolist() == [3 * LEVELS // 2, -3 * LEVELS, 3 * LEVELS // 4, 3]
    sums, weight = fixed.sums(
        fixed.whole(values, 3) + fixed.whole(fixed.round({"a": torch.zeros(1, 2), "b": torch.ones(())}), 1)
    )
    assert weight == 4
    assert (sums / weight).tolist() == [0.375, -0.75, 0.4375]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.floats(-20, 20, width=32), min_size=3, max_size=3), st.integers(0, 10**7)), min_size=1
    )
)
def test_the_mean_is_that_of_the_clipped_numbers_to_half_the_resolution(clients: list[tuple[list[float], int]]) -> None:
    fixed = Fixed(8.0)
    total = sum(fixed.whole(fixed.round({"a": torch.tensor(values)}), weight) for values, weight in clients)
    assert isinstance(total, torch.Tensor)
    sums, weight = fixed.sums(total)
    mean = sums / max(weight, 1)
    assert weight == sum(weight for _, weight in clients)
    plain = sum(torch.tensor(values).double().clamp(-8, 8) * own for values, own in clients) / max(weight, 1)
    assert torch.as_tensor(mean - plain).abs().max() <= fixed.resolution / 2 * (1 + 1e-9)


def test_as_many_clients_as_a_word_holds() -> None:
    most = largest_cohort(10**7)
    assert most > 100_000
    assert most * LEVELS * 10**7 < 2**63 <= (most + 1) * LEVELS * 10**7


# shares


def test_shares_by_hand() -> None:
    """The line through (1, 8) and (2, 11) is 5 + 3 x."""
    assert join({1: (8).to_bytes(SHARE), 2: (11).to_bytes(SHARE)}, factors([1, 2])) == (5).to_bytes(SECRET)
    assert factors([1, 2]) == {1: 2, 2: PRIME - 1}


@settings(max_examples=50, deadline=None)
@given(st.data(), st.binary(min_size=SECRET, max_size=SECRET))
def test_any_threshold_shares_tell_the_secret_and_fewer_do_not(data: st.DataObject, secret: bytes) -> None:
    points = data.draw(st.lists(st.integers(1, 2**32), min_size=2, max_size=8, unique=True))
    enough = data.draw(st.integers(2, len(points)))
    shares = split(secret, points, enough)
    chosen = data.draw(st.permutations(points))[:enough]
    assert join(shares, factors(chosen)) == secret
    fewer = sum(int.from_bytes(shares[point]) * factor for point, factor in factors(chosen[:-1]).items())
    assert fewer % PRIME != int.from_bytes(secret)


def test_shares_of_nothing_are_refused() -> None:
    with pytest.raises(ProtocolError, match="do not belong together"):
        join({1: (PRIME - 1).to_bytes(SHARE)}, {1: 1})


# the protocol


def advertised(ids: Sequence[int]) -> tuple[dict[int, Client], dict[int, bytes]]:
    both = {client: Client.begin(client) for client in ids}
    return {client: state for client, (state, _) in both.items()}, {client: keys for client, (_, keys) in both.items()}


def carried_out(
    numbers: Mapping[int, Words], share: Sequence[int], mask: Sequence[int], unmask: Sequence[int]
) -> tuple[Words, dict[int, Words]]:
    """All four stages, each with those that are still there: the sum, and what the server saw in stage 3."""
    states, keys = advertised([*numbers])
    sealed, seen, shares = {}, {}, {}
    for client in share:
        states[client], sealed[client] = states[client].share(keys)
    for client in mask:
        states[client], seen[client] = states[client].mask(share, numbers[client])
    for client in unmask:
        boxes = {sender: sealed[sender][client] for sender in share}
        states[client], shares[client] = states[client].unmask(boxes, mask)
    total = np.zeros_like(next(iter(numbers.values())))
    for words in seen.values():
        total += words
    return unmasked(total, keys, share, mask, shares), seen


def vectors(ids: Sequence[int], size: int) -> dict[int, Words]:
    random = np.random.default_rng(0)
    return {client: random.integers(0, 2**64, size, dtype=np.uint64) for client in ids}


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_whoever_is_lost_the_sum_is_that_of_who_sent(data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 10**6), min_size=3, max_size=9, unique=True))
    left, stages = ids, []
    for _ in range(3):  # at every stage some are lost, in any order, and more than half of all stay
        left = data.draw(st.permutations(left))
        left = left[: data.draw(st.integers(threshold(len(ids)), len(left)))]
        stages.append(left)
    numbers = vectors(ids, 5)
    total, _ = carried_out(numbers, *stages)
    assert (total == sum(numbers[client] for client in stages[1])).all()


def test_masks_are_longer_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = vectors(range(4), 3 * 16 + 5)
    whole, _ = carried_out(numbers, [0, 1, 2, 3], [0, 1, 2], [0, 1, 2])
    monkeypatch.setattr(protocol, "PIECE", 16)
    pieces, _ = carried_out(numbers, [0, 1, 2, 3], [0, 1, 2], [0, 1, 2])
    assert (whole == pieces).all()
    assert (whole == numbers[0] + numbers[1] + numbers[2]).all()


def test_what_the_server_sees_of_one_client_is_uniform_and_new_every_time() -> None:
    """Of zeros: each of 256 bytes comes up as often as others, and no two masks have a word in common."""
    nothing = {client: np.zeros(2**15, np.uint64) for client in range(3)}
    _, seen = carried_out(nothing, *[[0, 1, 2]] * 3)
    _, again = carried_out(nothing, *[[0, 1, 2]] * 3)
    counts = np.bincount(np.frombuffer(seen[0].tobytes(), np.uint8), minlength=256)
    expected = 8 * 2**15 / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 8 * np.sqrt(2 * 255)  # chance: below one in a billion
    assert not (seen[0] == again[0]).any()
    assert not (seen[0] == seen[1]).any()


def test_below_the_threshold_nobody_masks_or_unmasks_and_nothing_is_recovered() -> None:
    states, keys = advertised(range(5))
    shared = {client: state.share(keys) for client, state in states.items()}
    with pytest.raises(ProtocolError, match="Only 2 of 5 clients are left; a secure mean takes 3"):
        shared[0][0].mask([0, 1], np.zeros(1, np.uint64))
    masked, words = shared[0][0].mask(range(5), np.zeros(1, np.uint64))
    boxes = {sender: sealed[0] for sender, (_, sealed) in shared.items()}
    with pytest.raises(ProtocolError, match="Only 2 of 5 clients are left"):
        masked.unmask(boxes, [0, 4])
    _, given_by_one = masked.unmask(boxes, range(5))
    with pytest.raises(ProtocolError, match="Only 1 of 5 clients are left"):
        unmasked(words, keys, range(5), range(5), {0: given_by_one})


def test_nobody_gives_both_shares_of_a_client() -> None:
    states, keys = advertised(range(4))
    shared = {client: state.share(keys) for client, state in states.items()}
    state, _ = shared[0][0].mask(range(4), np.zeros(1, np.uint64))
    boxes = {sender: sealed[0] for sender, (_, sealed) in shared.items()}
    state, _ = state.unmask(boxes, [0, 1, 2])  # of client 3, the share of its masking key
    with pytest.raises(ProtocolError, match="Client 0 gives shares away once"):
        state.unmask(boxes, [0, 1, 2, 3])  # of client 3, that of its seed


def test_no_stage_is_answered_twice_or_with_strangers() -> None:
    states, keys = advertised(range(3))
    with pytest.raises(ProtocolError, match="of 2 clients would hide too little"):
        states[0].share({client: keys[client] for client in (0, 1)})
    with pytest.raises(ProtocolError, match="different clients and itself"):
        states[0].share({1: keys[1], 2: keys[2], 3: Client.begin(3)[1]})
    with pytest.raises(ProtocolError, match="different clients and itself"):
        states[0].share(keys | {3: keys[2]})  # one client as two
    with pytest.raises(ProtocolError, match="different clients and itself"):
        states[0].share(keys | {-1: Client.begin(-1)[1]})  # the polynomial's value at zero
    with pytest.raises(ProtocolError, match="96 bytes"):
        states[0].share(keys | {3: b"short"})
    state, sealed = states[0].share(keys)
    with pytest.raises(ProtocolError, match="shares its secrets once"):
        state.share(keys)
    for senders in ([1, 2], [0, 1, 7], [0, 1, 1]):
        with pytest.raises(ProtocolError, match="with clients that it knows and with itself"):
            state.mask(senders, np.zeros(1, np.uint64))
    state, _ = state.mask([0, 1, 2], np.zeros(1, np.uint64))
    with pytest.raises(ProtocolError, match="masks its numbers once"):
        state.mask([0, 1, 2], np.ones(1, np.uint64))
    with pytest.raises(ProtocolError, match="needs what each sender has sealed"):
        state.unmask({0: sealed[0]}, [0, 1, 2])
    with pytest.raises(ProtocolError, match="cannot be opened"):
        state.unmask({0: sealed[0], 1: bytes(SEALED), 2: b""}, [0, 1, 2])


def test_a_sealed_box_is_for_one_client_from_one_client() -> None:
    states, keys = advertised(range(3))
    shared = {client: state.share(keys) for client, state in states.items()}
    state, _ = shared[0][0].mask(range(3), np.zeros(1, np.uint64))
    boxes = {sender: sealed[0] for sender, (_, sealed) in shared.items()}
    for wrong in (shared[1][1][2], shared[2][1][0], shared[0][1][1]):  # for another, from another, its own words back
        with pytest.raises(ProtocolError, match="cannot be opened"):
            state.unmask(boxes | {1: wrong}, range(3))


def test_keys_that_everybody_could_compute_with_are_refused() -> None:
    states, keys = advertised(range(3))
    with pytest.raises(ProtocolError, match="a key that is none"):
        states[0].share(keys | {3: bytes(32) + keys[1][1:33] + bytes(31) + b"1"})


@pytest.mark.parametrize("lost", [False, True])
def test_wrong_shares_are_noticed(lost: bool) -> None:
    states, keys = advertised(range(3))
    survivors = [0, 1] if lost else [0, 1, 2]
    shared = {client: state.share(keys) for client, state in states.items()}
    total, shares = np.zeros(1, np.uint64), {}
    for client in survivors:
        state, words = shared[client][0].mask(range(3), np.ones(1, np.uint64))
        total += words
        _, shares[client] = state.unmask({sender: sealed[client] for sender, (_, sealed) in shared.items()}, survivors)
    assert unmasked(total, keys, range(3), survivors, shares).tolist() == [len(survivors)]
    shares[0] = {**shares[0], 2: shares[1][2]}
    with pytest.raises(ProtocolError, match=r"do not add up to what it advertised|do not belong together"):
        unmasked(total, keys, range(3), survivors, shares)


def test_what_is_kept_between_messages_is_all_there_is() -> None:
    state, keys = Client.begin(7)
    assert len(keys) == KEYS
    assert replace(state) == Client(7, state.secrets)
    assert state.secrets[64:] not in keys  # a digest of the seed is advertised, not the seed


# in rounds

FIXED = Fixed(8.0)


def secured(engine: str, *, count: int = 3, **options: Any) -> tuple[Tree, list[dict[str, Any]]]:
    """FedAvg's state after some rounds under masks, and the ledger's lines, without seconds."""
    method, options = toys.method("fedavg", secure=FIXED), {"rules": Rules(secure=FIXED)} | options
    state, ledger = toys.rounds(method, toys.engine(engine, method, [toys.federation()]), count, **options)
    return state, [{key: value for key, value in one.line().items() if key != "seconds"} for one in ledger]


def mean_of(secure: Fixed | None, by: By, engine: str = "loop", **options: Any) -> Tree:
    """That of one exchange, in double precision, in which the plain mean is exact enough to compare with."""
    method = toys.method("fedavg", torch.float64, secure=secure)
    made = toys.engine(engine, method, [toys.federation(labelled=(True,) * 5 + (False,) * 5)])
    clients = Clients(made, torch.arange(toys.MEMBERS), 0, rules=Rules(secure=secure), **options)
    return clients.mean(method.fit, shared=toys.start(method), by=by)


@pytest.mark.parametrize("by", ["clients", "labelled", "examples"])
def test_a_secure_mean_is_the_plain_mean_to_half_the_resolution(by: By) -> None:
    assert 0 < toys.gap(mean_of(None, by), mean_of(FIXED, by)) <= FIXED.resolution / 2


def test_the_order_of_clients_does_not_matter_to_a_bit() -> None:
    method = toys.method("fedavg", secure=FIXED)
    engine, means = toys.engine("loop", method, [toys.federation()]), []
    for ids in (torch.arange(toys.MEMBERS), torch.arange(toys.MEMBERS).flip(0)):
        clients = Clients(engine, ids, 0, rules=Rules(secure=FIXED))
        means.append(clients.mean(method.fit, shared=toys.start(method), by="examples"))
    assert toys.same(*means)


def test_sums_that_are_gathered_in_parts_are_the_same_to_a_bit() -> None:
    """As workers of a cluster do."""
    rows = FIXED.round({"a": torch.randn(7, 5, generator=torch.Generator().manual_seed(0))})
    weight, heard = torch.arange(1.0, 8.0), torch.arange(7) != 4
    whole, added = (Collector("examples", rules=Rules(secure=FIXED)) for _ in range(2))
    whole.take(rows, weight, heard)
    for some in (slice(0, 3), slice(3, 7)):
        part = added.alike()
        part.take(tree.row(rows, some), weight[some], heard[some])
        added.add(part, torch.device("cpu"))
    asked = torch.ones(7, dtype=torch.bool)
    assert torch.equal(whole.heard(asked), added.heard(asked))
    assert toys.same(whole.mean(), added.mean())
    assert whole.up_each == added.up_each == 6 * 8


@pytest.mark.parametrize("engine", ["chunked", "loop"])
def test_engines_agree(engine: str) -> None:
    expected, lines = secured("vector")
    found, same_lines = secured(engine)
    assert toys.gap(expected, found) < 1e-5
    assert lines == same_lines


def test_whole_rounds_are_replayed_and_counted_alike() -> None:
    results = []
    for graphs in (True, False):
        method = toys.method("fedavg", secure=FIXED)
        engine = make("vector", method, toys.federation(), "cpu", graphs=graphs)
        training = Training(method, [toys.federation()], engine, Plan(rounds=6, cohort=5, evaluate_every=6))
        training.complete()
        results.append((training.states[0], training.sent))
    assert toys.gap(results[0][0], results[1][0]) < 1e-6
    assert results[0][1] == results[1][1]


def test_the_ledger_counts_keys_and_shares() -> None:
    """By hand, for 5 clients and 64 * 8 + 8 + 8 * 10 + 10 numbers."""
    _, (line,) = secured("loop", count=1)
    numbers = 610
    step = numbers * 4 + 5 * 8 + 8  # the model, whose shares came, and what a client counts for
    assert line["down"] == 5 * (5 * (8 + 96) + step + 5 * 94 + 5 * 8)
    assert line["up"] == 5 * (96 + 5 * 94 + (numbers + 1) * 8 + 5 * 33)


def losing(*clients: int) -> Callable[[torch.Tensor, int, str], torch.Tensor]:
    """Replies of these come too late."""
    return lambda ids, number, step: torch.isin(ids, torch.tensor(clients)) * SLOW


def test_lost_clients_are_survived_by_more_than_half() -> None:
    few = mean_of(FIXED, "examples", faults=losing(0, 1, 2))
    method = toys.method("fedavg", torch.float64)
    clients = Clients(
        toys.engine("loop", method, [toys.federation(labelled=(True,) * 5 + (False,) * 5)]), torch.arange(3, 7), 0
    )
    assert toys.gap(few, clients.mean(method.fit, shared=toys.start(method), by="examples")) <= FIXED.resolution / 2
    none = mean_of(FIXED, "examples", faults=losing(0, 1, 2, 3))  # four of seven
    assert toys.gap(none, tree.map(torch.zeros_like, none)) == 0


def test_with_too_few_nobody_is_heard_and_nothing_moves() -> None:
    state, (line,) = secured("vector", count=1, faults=losing(*range(toys.MEMBERS)))
    assert (line["asked"], line["answered"]) == (5, 0)
    assert toys.same(state, toys.start(toys.method("fedavg")))
    method = toys.method("fedavg", secure=FIXED)
    two = Clients(toys.engine("loop", method, [toys.federation()]), torch.tensor([1, 2]), 0, rules=Rules(secure=FIXED))
    mean = two.mean(method.fit, shared=toys.start(method))
    assert toys.gap(mean, tree.map(torch.zeros_like, mean)) == 0
    assert two.ledger[0].line()["answered"] == 0


def test_single_replies_cannot_be_asked_for() -> None:
    method = toys.method("fedavg", secure=FIXED)
    clients = Clients(toys.engine("loop", method, [toys.federation()]), toys.cohort(0), 0, rules=Rules(secure=FIXED))
    with pytest.raises(ProtocolError, match=r"come under masks: ask for their mean"):
        clients.run(method.fit, shared=toys.start(method))


def test_a_reply_that_is_not_finite_is_lost_and_no_more() -> None:
    _, (line,) = secured("vector", count=1, faults=lambda ids, number, step: (ids == toys.cohort(0)[0]) * NAN)
    assert line["answered"] == 4


def test_only_floating_point_numbers_are_masked() -> None:
    with pytest.raises(SettingError, match="'seen' of a reply is int64"):
        FIXED.round({"seen": torch.ones(2, dtype=torch.long)})
    half = torch.tensor([1.5, 6.0, -20.0], dtype=torch.float16)
    assert FIXED.round({"a": half})["a"].tolist() == [1.5, 6.0, -8.0]


@pytest.mark.parametrize("name", ["pefll", "pfedhn", "odpflhn", "fedprox", "fedu", "clusteredfl", "atp", "knnper"])
def test_methods_that_read_replies_one_by_one_are_refused(name: str) -> None:
    with pytest.raises(
        SettingError, match=r"--secure-mean shows means alone, but the server of \w+ reads the replies to"
    ):
        toys.method(name, secure=FIXED)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"average": "median"}, "--average median would have to see every reply"),
        ({"clip_update": 1.0}, "--secure-mean hides the size of a reply"),
        ({"faults": "drop=0.1,flip=0.1"}, "--faults flip spoils single replies"),
        ({"cohort": 2}, "--cohort of at least 3; got 2"),
    ],
)
def test_what_would_have_to_see_replies_is_refused(settings: dict[str, Any], sentence: str) -> None:
    method = toys.method("fedavg", secure=FIXED)
    with pytest.raises(SettingError, match=sentence):
        train.run(method, toys.federation(), "loop", **{"rounds": 1, "cohort": 3} | settings)


def test_a_server_that_must_clip_has_to_see_replies() -> None:
    method = toys.method("fedavg", secure=FIXED, processors=Processors.parse("clip=1,central=1"))
    with pytest.raises(SettingError, match="needs a server that clips every reply"):
        train.run(method, toys.federation(), "loop", rounds=1, cohort=3)


def test_a_run_has_the_settings() -> None:
    values = {"clients": 10, "rounds": 2, "cohort": 4, "secure_mean": True, "secure_range": 3.0, "engine": "vector"}
    training = Experiment.parse("fedavg", values | {"model": "mlp"}).training()
    assert training.methods[0].secure == Fixed(3.0)
    assert training.result(training.complete())["answered"] == 1
    with pytest.raises(SettingError, match="reads the replies to 'describe', 'fit' one by one"):
        Experiment.parse("pefll", values).training()
