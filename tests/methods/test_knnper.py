"""kNN-Per on two clients, by hand. The model is one linear layer, so its features are the inputs themselves."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from byhand import descend, flat, linear_task, tensor

from console import Command
from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.engines import make
from latecomer.engines.home import Homes, PackedHome
from latecomer.errors import SettingError
from latecomer.method import Method
from latecomer.methods.knnper import KnnPer
from latecomer.nets.neighbours import Datastore, best, held, nearest
from latecomer.ops.shuffle import lot
from latecomer.runs.experiment import Experiment
from latecomer.schedule import Schedule

# Client 0 trains on the first three and validates on the next two; client 1 has one example and is a latecomer.
X = [[0.0], [1.0], [4.0], [0.2], [3.8], [2.0], [9.0]]
Y = [0, 0, 1, 0, 1, 1, 0]
FEDERATION = Federation.from_arrays(
    np.array(X), np.array(Y), train=[[0, 1, 2], [5]], val=[[3, 4], []], test=[[3, 4], [6]], members=1, classes=2
)
RULES = ("fifo", "concatenate", "fixed")
WRONG = {"weight": tensor([[1.0], [-1.0]]), "bias": tensor([-2.0, 2.0])}  # thinks that large inputs are of class 0


def build(**settings: object) -> KnnPer:
    return KnnPer(task=linear_task(1), clients=2, members=1, **settings)


def home(client: int, federation: Federation = FEDERATION) -> PackedHome:
    homes = Homes([federation], torch.device("cpu"), torch.float64)
    return PackedHome(homes, homes.client_rows(0, torch.tensor([client]))[0], torch.tensor(0), {})


def test_a_round_is_fedavgs() -> None:
    method = build(lr=0.1, epochs=2, batch=3)
    start = np.array([0.3, -0.2, 0.1, 0.5])
    state = {"params": {"weight": tensor(start[:2].reshape(2, 1)), "bias": tensor(start[2:])}}
    after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([0]), 0))
    assert flat(after["params"]) == pytest.approx(descend(start, X[:3], Y[:3], 2, 0.1, decay=5e-4), abs=1e-12)


def vote(store: Datastore, query: float, count: int, sigma: float, **options: str) -> object:
    return store.votes(tensor([[query]]), (count,), (sigma,), **options)[0, 0].numpy()


def test_the_vote_of_two_neighbours() -> None:
    """For a query at 2 the two nearest of 0, 1 and 4 are 1 (distance 1, class 0) and one of 0 and 4 (distance 2)."""
    store = Datastore(tensor(X[:3]), torch.tensor(Y[:3]), torch.ones(3, dtype=torch.bool), 2)
    far = np.exp(-1 / 0.5)  # one further away than the nearest, on a scale of one half
    assert vote(store, 2.5, 2, 0.5) == pytest.approx([0.5, 0.5])  # 1 and 4 are equally far: a vote each
    assert vote(store, 0.0, 2, 0.5) == pytest.approx([1.0, 0.0])
    assert vote(store, 3.0, 2, 0.5) == pytest.approx([far / (1 + far), 1 / (1 + far)])  # 4 at distance 1, 1 at 2
    far = np.exp(-(4 - 1) / (1 * 0.5))  # the squares of the distances, over one feature
    assert vote(store, 3.0, 2, 0.5, kernel="squared") == pytest.approx([far / (1 + far), 1 / (1 + far)])


def test_of_equally_near_examples_the_first_votes() -> None:
    """1 (class 0) and 4 (class 1) are equally far from 2.5, and so is a second 1 whose class is 1."""
    keys, known = tensor([[1.0], [4.0], [1.0]]), torch.ones(3, dtype=torch.bool)
    assert vote(Datastore(keys, torch.tensor([0, 1, 1]), known, 2), 2.5, 1, 1.0) == pytest.approx([1.0, 0.0])
    assert vote(Datastore(keys, torch.tensor([1, 0, 0]), known, 2), 2.5, 1, 1.0) == pytest.approx([0.0, 1.0])
    assert vote(Datastore(keys, torch.tensor([0, 1, 1]), known, 2), 2.5, 2, 1.0) == pytest.approx([0.5, 0.5])
    assert nearest(tensor([[3.0, 1.0, 3.0, 2.0, 3.0]]), 3).tolist() == [[True, True, False, True, False]]


def test_unknown_examples_do_not_vote_and_few_are_enough() -> None:
    store = Datastore(tensor(X[:3]), torch.tensor(Y[:3]), torch.tensor([False, True, False]), 2)
    assert vote(store, 100.0, 10, 1.0).tolist() == [1.0, 0.0]
    nobody = Datastore(tensor(X[:3]), torch.tensor(Y[:3]), torch.zeros(3, dtype=torch.bool), 2)
    assert vote(nobody, 1.0, 2, 1.0).tolist() == [0.0, 0.0]


def test_validation_data_choose_the_blend() -> None:
    """The model is wrong about both validation examples, the vote right about both.

    At 0.2 the model gives class 0 the probability 1 / (1 + exp(3.6)) = 0.0266 and the vote all of it, at 3.8 likewise
    for class 1: a blend b is right where b + (1 - b) 0.0266 > 1/2, so from 0.487 on. Of 0.3 and 0.5 it must be 0.5; of
    0.5 and 1, both right, it is 1, which finds the labels likelier, in whatever order they come.
    """
    likely = 1 / (1 + np.exp(3.6))
    for blends, wanted in (((0.0, 0.3, 0.5), 0.5), ((0.0, 0.5, 1.0), 1.0), ((1.0, 0.5, 0.0), 1.0)):
        method = build(neighbours=(1,), blends=blends)
        blend = method.chosen(home(0), WRONG, joined=False)["blend"]
        assert blend.item() == wanted
        found = method.predict(home(0), tensor([[0.2]]), params=WRONG)[0].exp().numpy()
        assert found == pytest.approx([wanted + (1 - wanted) * likely, (1 - wanted) * (1 - likely)], abs=1e-9)


def test_more_right_outweighs_likelier() -> None:
    """At 0 the model knows class 0 for sure; at 1 it is a little wrong, and the vote a little right.

    Alone, the model finds the labels likelier: 0.99 and 0.45, in the mean 0.72, against the vote's 0.51 twice. But the
    vote gets both right.
    """
    weight = np.log(0.99 / 0.01) - np.log(0.45 / 0.55)  # the model's score for class 0 falls by so much from 0 to 1
    model = {"weight": tensor([[-weight], [0.0]]), "bias": tensor([np.log(0.99 / 0.01), 0.0])}
    clients = Federation.from_arrays(
        np.array([[0.0], [1.0]]), np.array([0, 0]), train=[[0, 1]], val=[[0, 1]], test=[[0]], classes=2
    )
    shares = tensor([[[0.51, 0.49], [0.51, 0.49]]])
    held_out = home(0, clients).all("val")
    blend, _ = best(shares, linear_task(1).logits(model, held_out.x), held_out, (0.0, 1.0))
    assert blend.item() == 1.0


def test_validation_data_choose_k_and_sigma() -> None:
    """The nearest example to 0.05 is of the wrong class; two of three are right, if all three count about the same.

    At sigma 0.01 the nearest (distance 0.05) outweighs the others (0.25 and 0.35); at 10 the three weigh alike. So of
    k = 1 and 3 and sigma = 0.01 and 10 only the last pair is right.
    """
    clients = Federation.from_arrays(
        np.array([[0.0], [0.3], [-0.3], [0.05]]), np.array([1, 0, 0, 0]), train=[[0, 1, 2]], val=[[3]], test=[[3]]
    )
    method = build(neighbours=(1, 3), sigma=(0.01, 10.0), blends=(1.0,))
    mine = home(0, clients)
    kind = method.chosen(mine, WRONG, joined=False)["kind"]
    assert kind.tolist() == [3]
    weight = np.exp(-np.array([0.05, 0.25, 0.35]) / 10)
    found = method.predict_held_out(mine, "val", tensor([[0.05]]), params=WRONG)[0].exp().numpy()
    assert found == pytest.approx([weight[1:].sum() / weight.sum(), weight[0] / weight.sum()])
    for engine in ("vector", "loop", "flower"):
        asked = Clients(make(engine, method, [clients], "cpu"), torch.tensor([0]), -1)
        told = asked.run(method.score, shared={"params": WRONG}).each["report"]
        assert {name: value.tolist() for name, value in told.items()} == {
            "blend": [1.0],
            "neighbours": [3.0],
            "sigma": [10.0],
        }


def test_what_a_client_reports() -> None:
    """The blend that counts is 0 where nobody can vote; prototypes all vote, so there is neither k nor sigma."""
    bare = Federation.from_arrays(
        np.array(X), np.array(Y), train=[[0, 1, 2]], val=[[3, 4]], test=[[3]], labelled=[False], classes=2
    )
    method = build(blends=(0.5, 1.0))
    assert method.report(home(0), params=WRONG)["blend"].item() == 1.0
    assert method.report(home(0, bare), params=WRONG)["blend"].item() == 0.0
    assert build(prototypes=1, prototype_steps=1).report(home(0), params=WRONG).keys() == {"blend"}
    assert Method.report(method, home(0), params=WRONG) == {}, "others have nothing to say"


def test_validation_examples_join_the_datastore_once_a_client_has_chosen() -> None:
    """At 2.45 the nearest training example is 1 (class 0), 1.45 away; validation example 3.8 (class 1) is nearer."""
    query, second = tensor([[2.45]]), pytest.approx([0.0, 1.0], abs=1e-9)
    first = pytest.approx([1.0, 0.0], abs=1e-9)
    method = build(neighbours=(1,), blends=(1.0,))
    assert method.predict(home(0), query, params=WRONG)[0].exp().numpy() == second
    assert method.predict_held_out(home(0), "test", query, params=WRONG)[0].exp().numpy() == second
    assert method.predict_held_out(home(0), "val", query, params=WRONG)[0].exp().numpy() == first
    without = build(neighbours=(1,), blends=(1.0,), store_validation=False)
    assert without.predict(home(0), query, params=WRONG)[0].exp().numpy() == first


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_validation_examples_do_not_vote_for_themselves(engine: str) -> None:
    """0.1 is of class 1, its neighbour of class 0: the validation score, which selects rounds, must say so."""
    odd = Federation.from_arrays(
        np.array([[0.0], [0.1], [0.1]]), np.array([0, 1, 1]), train=[[0]], val=[[1]], test=[[2]], classes=2
    )
    method = build(neighbours=(1,), blends=(1.0,))
    counts = Clients(make(engine, method, [odd], "cpu"), torch.tensor([0]), -1).run(
        method.score, shared={"params": WRONG}
    )
    assert {split: counts.each[split][0].tolist() for split in ("val", "test")} == {
        "val": [0.0, 1.0, 0.0],
        "test": [1.0, 1.0, 0.0],  # class 1 is not its own: it has no training example of it
    }


def test_capacity_keeps_a_random_share_of_the_validation_examples() -> None:
    count = 40
    x, y = np.arange(count)[:, None] * 1.0, np.arange(count) // 20  # sorted by class
    many = Federation.from_arrays(x, y, train=[[0, 39]], val=[[*range(count)]], test=[[0]], classes=2)
    kept = build(capacity=0.5).store(home(0, many), WRONG, "val").known
    assert int(kept.sum()) == 20
    assert 4 < int(kept[:20].sum()) < 16, "of both classes"


def test_the_run_is_the_papers_on_cifar() -> None:
    """200 rounds with full participation, and rates that fall to a tenth at round 100 and again at 150."""
    training = Experiment.parse("knnper", {"clients": "12", "unseen": "0.25"}).training()
    assert (training.plan.rounds, training.plan.cohort, training.plan.select) == (200, 9, "accuracy")
    assert training.methods[0].schedule == Schedule("step", 200)
    assert training.cohorts(0, 0).tolist() == list(range(9))
    assert (training.methods[0].batch, training.methods[0].epochs) == (128, 1)  # type: ignore[attr-defined]


def test_without_validation_examples_or_labels_the_model_stands_alone() -> None:
    method = build()
    expected = [[1 / (1 + np.exp(3.6)), 1 - 1 / (1 + np.exp(3.6))]]
    assert method.predict(home(1), tensor([[0.2]]), params=WRONG).exp().numpy() == pytest.approx(np.array(expected))
    bare = Federation.from_arrays(
        np.array(X), np.array(Y), train=[[0, 1, 2]], val=[[3, 4]], test=[[3]], labelled=[False], classes=2
    )
    assert method.predict(home(0, bare), tensor([[0.2]]), params=WRONG).exp().numpy() == pytest.approx(
        np.array(expected)
    )


def test_capacity_keeps_a_share() -> None:
    for capacity, kept in ((1.0, 3), (0.5, 2), (0.3, 1)):
        store = build(capacity=capacity).store(home(0), WRONG)
        assert int(store.known.sum()) == kept


# weak and strong clients


def test_weak_clients_keep_less() -> None:
    """Who is weak is drawn by lot, which client and server both know; the rest keep what --capacity says."""
    rows = [[0, 1, 2]] * 40
    crowd = Federation.from_arrays(np.array(X), np.array(Y), train=rows, test=[[3]] * 40, classes=2, seed=3)
    method = build(capacity=1.0, weak=0.5, weak_capacity=0.3)
    weak = (lot(3, torch.arange(40), "weak") < 0.5).tolist()
    assert 10 < sum(weak) < 30
    kept = [int(method.store(home(client, crowd), WRONG).known.sum()) for client in range(40)]
    assert kept == [1 if one else 3 for one in weak]
    alone = build(weak=1.0, weak_capacity=0.0, blends=(1.0,)).predict(home(0), tensor([[0.2]]), params=WRONG)
    assert alone[0].exp().numpy() == pytest.approx([1 / (1 + np.exp(3.6)), 1 - 1 / (1 + np.exp(3.6))])


# arriving data


def places(rule: str, now: int, most: int = 10) -> list[int]:
    one = torch.tensor
    return held(rule, torch.arange(10), one(4.0), one(float(now)), one(float(most))).nonzero()[:, 0].tolist()


def test_what_the_three_rules_hold() -> None:
    """Four examples at first; then 4, 5 and 6 have come; then with room for three only."""
    assert [places(rule, 4) for rule in RULES] == [[0, 1, 2, 3]] * 3
    assert [places(rule, 7) for rule in RULES] == [[3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3]]
    assert [places(rule, 7, most=3) for rule in RULES] == [[4, 5, 6], [0, 1, 2], [0, 1, 2]]


def test_the_rules_are_what_happens_step_by_step() -> None:
    for most in range(1, 11):
        queue, pile = deque(range(4), maxlen=min(4, most)), list(range(min(4, most)))
        for new in range(4, 10):
            queue.append(new)
            pile += [new] if len(pile) < most else []
            assert places("concatenate", new + 1, most) == pile
            assert places("fifo", new + 1, most) == sorted(queue)
            assert places("fixed", new + 1, most) == list(range(min(4, most)))


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
def test_a_shift_seen_by_three_rules(engine: str) -> None:
    """What was class 0 at 0 and 1 becomes class 1; the test example, at 0.2, is of class 1 now.

    At half time all datastores hold the old two. At the end FIFO holds the new two; concatenate has both, and of
    equally near examples the older votes; a fixed datastore has the old ones.
    """
    x, y = np.array([[0.0], [1.0], [0.0], [1.0], [0.2]]), np.array([0, 0, 1, 1, 1])
    stream = Federation.from_arrays(x, y, train=[[0, 1, 2, 3]] * 2, test=[[4]] * 2, classes=2)
    found = {}
    for rule in RULES:
        method = build(datastore=rule, neighbours=(1,), blends=(1.0,))
        made = make(engine, method, [stream], "cpu")
        for now in (0.5, 0.75, 1.0):
            time = {"first": torch.tensor([0.5, 0.5]), "now": torch.tensor([now, 0.5])}
            Clients(made, torch.arange(2), -2).run(method.arrive, each=time)
            replies = Clients(made, torch.arange(2), -1).run(method.score, shared={"params": WRONG})
            found[rule, now] = replies.each["test"][:, 0].tolist()
    assert found["fifo", 0.5] == found["concatenate", 0.5] == found["fixed", 0.5] == [0.0, 0.0]
    assert found["fifo", 0.75] == [1.0, 0.0], "it holds 1 (old) and 0 (new); the other client's clock stands still"
    assert found["fifo", 1.0] == [1.0, 0.0]
    assert found["concatenate", 1.0] == found["fixed", 1.0] == [0.0, 0.0]


# notes


def test_k_above_a_datastore_is_lowered_and_said() -> None:
    loop = make("loop", build(), [FEDERATION], "cpu")
    assert build(neighbours=(1,)).review([FEDERATION], loop) == []
    (note,) = build(neighbours=(1, 2)).review([FEDERATION], loop)
    assert note.startswith("1 of 2 clients keep fewer than 2 examples, the smallest 1; there --neighbours is lowered")
    (note,) = build(neighbours=(2,), capacity=0.3).review([FEDERATION], loop)
    assert note.startswith("2 of 2 clients keep fewer than 2 examples, the smallest 1")
    (note,) = build(neighbours=(3,), datastore="fifo").review([FEDERATION], loop)
    assert note.startswith("1 of 2 clients keep fewer than 3 examples, the smallest 2"), "half of 3, rounded; half of 1"
    assert build(neighbours=(99,), prototypes=1).review([FEDERATION], loop) == [], "prototypes all vote"


def test_faiss_is_refused_where_it_cannot_run() -> None:
    method = build(search="faiss")
    with pytest.raises(SettingError, match="--search faiss searches for one client at a time"):
        method.review([FEDERATION], make("vector", method, [FEDERATION], "cpu"))
    assert method.review([FEDERATION], make("loop", method, [FEDERATION], "cpu"))


def test_a_run_says_what_it_lowers_and_both_searches_end_alike(command: Command, tmp_path: Path) -> None:
    words = ["run", "knnper", "--clients", 12, "--unseen", 0.25, "--rounds", 2, "--cohort", 3, "--batch", 8]
    words += ["--capacity", 0.05, "--sigma", "0.5,5", "--engine", "loop", "--out", tmp_path]
    results = []
    for search in ("torch", "faiss"):
        done = command(*words, "--search", search, "--name", search)
        assert done.code == 0, done.err
        assert done.err.count("Note: 12 of 12 clients keep fewer than 10 examples, the smallest") == 1
        results.append(json.loads((tmp_path / search / "result.json").read_text()))
    assert [results[0][group] for group in ("seen", "unseen")] == [results[1][group] for group in ("seen", "unseen")]


def test_no_value_is_no_choice() -> None:
    for name in ("neighbours", "sigma", "blends"):
        with pytest.raises(SettingError, match=f"--{name} needs at least one value."):
            build(**{name: ()})
