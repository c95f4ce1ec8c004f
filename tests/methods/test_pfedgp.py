"""pFedGP by hand: Gaussian processes on a few points, a tree of three classes, a round of two clients."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import gpbyhand
import numpy as np
import pytest
import torch
from byhand import shortening, tensor
from torch import Tensor, nn

import toys
from latecomer import tree
from latecomer.clients import Clients
from latecomer.data import Federation
from latecomer.engines import make
from latecomer.engines.home import Homes, PackedHome
from latecomer.errors import ModelError
from latecomer.methods.pfedgp import PFedGP
from latecomer.nets.classtree import grow
from latecomer.nets.gp import TERMS, Kernel, Posterior, gibbs, polya_gamma, positive
from latecomer.nets.gptree import GPTree, Labelled
from latecomer.nets.net import Net
from latecomer.task import Task

KERNEL = Kernel(gpbyhand.SCALE, gpbyhand.LENGTH, gpbyhand.JITTER)
POINTS = np.array([[1.0, 0.2], [0.4, 1.0], [-0.5, 1.0], [1.0, 1.0], [-1.0, 0.1], [0.3, -2.0]])
NEW = np.array([[0.5, 0.5], [-1.0, 1.0]])


def noise(size: int, purpose: str) -> Tensor:
    """Normals by NumPy, named by their purpose."""
    return tensor(np.random.default_rng(zlib.crc32(purpose.encode())).normal(size=size))


def drawn(level: int, draws: int, steps: int, count: int, source: Any = noise, prefix: str = "") -> list[Any]:
    """For one level [terms + 2, draws, examples], for the beginning and every step; drawn example by example."""
    size = (TERMS + 2) * draws * count
    found = [source(size, f"{prefix}level {level} step {step}") for step in range(steps + 1)]
    return [numbers.double().numpy().reshape(count, TERMS + 2, draws).transpose(1, 2, 0) for numbers in found]


# Gaussian processes


def test_the_posterior_on_three_points() -> None:
    z, kappa, omega = POINTS[:3], np.array([0.5, -0.5, 0.5]), np.array([0.2, 0.1, 0.3])
    everybody = torch.ones(3, dtype=torch.bool)
    covariance = KERNEL.within(tensor(z), torch.zeros(3, dtype=torch.long), everybody)
    assert covariance.numpy() == pytest.approx(gpbyhand.kernel(z, z) + 1e-3 * np.eye(3))
    posterior = Posterior.of(covariance, tensor(kappa), tensor(omega[None]))
    mean, variance = posterior.latent(KERNEL(tensor(NEW), tensor(z)), 8 + 1e-3, everybody[:, None])
    expected = gpbyhand.latent(z, kappa, omega, NEW)
    assert mean[0, :, 0].numpy() == pytest.approx(expected[0])
    assert variance[0, :, 0].numpy() == pytest.approx(expected[1])


def test_two_nodes_and_padding_at_once_are_two_nodes_alone() -> None:
    """Examples 0, 2 and 3 are at node 0, examples 1 and 4 at node 1, and 5 takes no part."""
    kappa, omega = np.array([0.5, -0.5, -0.5, 0.5, 0.5, 0.0]), np.array([[0.2, 0.1, 0.3, 0.25, 0.15, 0.2]])
    node, active = torch.tensor([0, 1, 0, 0, 1, 0]), torch.arange(6) < 5
    posterior = Posterior.of(KERNEL.within(tensor(POINTS), node, active), tensor(kappa), tensor(omega))
    member = (node[:, None] == torch.arange(2)) & active[:, None]
    mean, variance = posterior.latent(KERNEL(tensor(NEW), tensor(POINTS)), 8 + 1e-3, member)
    unlikely = posterior.unlikelihood()
    for which, rows in enumerate(([0, 2, 3], [1, 4])):
        expected = gpbyhand.latent(POINTS[rows], kappa[rows], omega[0, rows], NEW)
        assert mean[0, :, which].numpy() == pytest.approx(expected[0])
        assert variance[0, :, which].numpy() == pytest.approx(expected[1])
        alone = gpbyhand.Node(np.zeros(6), rows, [], 0)
        alone.kappa = kappa[rows]
        likelihood = alone.unlikelihood(POINTS, [omega[0, rows]]) * len(rows)
        assert float(unlikely[rows].sum()) == pytest.approx(likelihood)


@pytest.mark.parametrize("tilt", [0.0, 0.7, -3.0, 12.0])
def test_polya_gamma_variables_have_the_moments_of_the_distribution(tilt: float) -> None:
    c = abs(tilt) or 1e-3
    mean = np.tanh(c / 2) / (2 * c)
    variance = (np.sinh(c) - c) / (4 * c**3 * np.cosh(c / 2) ** 2)
    normals = noise(TERMS * 200_000, "moments").reshape(TERMS, -1)
    found = polya_gamma(torch.full((200_000,), tilt, dtype=torch.double), normals)
    assert float(found.min()) > 0
    assert float(found.mean()) == pytest.approx(mean, rel=0.01)
    assert float(found.var()) == pytest.approx(variance, rel=0.03)


def test_gibbs_sampling_reaches_the_posterior() -> None:
    """One example, prior variance 2: the mean of f under N(f; 0, 2) sigmoid(f), by a fine sum.

    Given omega, f is normal with variance 1 / (1/2 + omega) and kappa times that for a mean.
    """
    at = np.linspace(-12, 12, 20001)
    density = np.exp(-(at**2) / 4) / (1 + np.exp(-at))
    expected = (at * density).sum() / density.sum()
    omega = gibbs(tensor([[2.0]]), tensor([0.5]), draws=40_000, steps=15, noise=noise)
    assert float((0.5 / (0.5 + omega)).mean()) == pytest.approx(expected, abs=0.02)


def test_probabilities_of_a_latent_value() -> None:
    mean, variance = tensor([0.3, -2.0, 5.0]), tensor([1.5, 4.0, 8.0])
    for k in range(3):
        m, v = float(mean[k]), float(variance[k])
        wanted = gpbyhand.fine_mean_over(gpbyhand.sigmoid, m, v)
        assert float(positive(mean, variance, of_log=False)[k]) == pytest.approx(wanted, abs=2e-4)
        wanted = np.exp(gpbyhand.fine_mean_over(lambda f: -np.log1p(np.exp(-f)), m, v))
        assert float(positive(mean, variance, of_log=True)[k]) == pytest.approx(wanted, abs=2e-4)


# the tree


def paths(prototypes: Sequence[float], present: Sequence[int]) -> dict[int, str]:
    """Where every present class goes, level by level: L, R, or a dot where nothing is left to decide."""
    here = torch.zeros(len(prototypes), dtype=torch.bool)
    here[list(present)] = True
    levels = grow(tensor(prototypes)[:, None], here)
    return {
        c: "".join("." if not level.parts[c] else "R" if level.right[c] else "L" for level in levels) for c in present
    }


def test_similar_classes_part_late() -> None:
    """0 and 1 against 10 and 11, of five classes: three levels, of which two suffice."""
    assert paths([0.0, 10.0, 1.0, 99.0, 11.0], [0, 1, 2, 4]) == {0: "LL.", 2: "LR.", 1: "RL.", 4: "RR."}


def test_a_lone_class_parts_first() -> None:
    assert paths([0.0, 30.0, 1.0, 3.0, 99.0], [0, 1, 2, 3]) == {1: "R..", 0: "LLL", 2: "LLR", 3: "LR."}


def test_no_side_gets_more_classes_than_the_levels_below_can_part() -> None:
    """2-means would part the last from the other seven, and two levels part four classes."""
    found = paths([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0], range(8))
    assert len(set(found.values())) == 8
    assert [found[c][0] for c in range(8)] == ["L"] * 4 + ["R"] * 4


def test_one_class_or_none_leaves_nothing_to_decide() -> None:
    assert paths([0.0, 1.0, 2.0], [1]) == {1: ".."}
    assert paths([0.0, 1.0, 2.0], []) == {}


def test_every_tree_parts_every_class() -> None:
    random = np.random.default_rng(0)
    for classes in (2, 3, 7, 10, 33):
        for _ in range(20):
            present = random.permutation(classes)[: random.integers(1, classes + 1)]
            found = paths(random.normal(size=classes), sorted(present.tolist()))
            assert len({path.rstrip(".") for path in found.values()}) == len(present)


# the classifier

Y = [2, 0, 2, 1, 2, 0]  # of three classes; the last example is padding
TREE = GPTree(KERNEL, 3, steps=2, of_log=False)
ROOT, BELOW = gpbyhand.Node(Y, range(5), [0, 1], 0), gpbyhand.Node(Y, [1, 3], [0], 1)


def three_classes() -> Labelled:
    """Class 2 lies apart from 0 and 1, so the tree parts it first; what the padding says must not matter."""
    z = tensor([[-2.0, 0.1], [1.0, 0.2], [-2.0, 0.5], [1.0, 0.8], [-1.5, 0.3], [7.0, 7.0]])
    return Labelled(z, torch.tensor(Y), torch.arange(6) < 5)


@pytest.mark.parametrize("of_log", [False, True])
def test_probabilities_of_classes(of_log: bool) -> None:
    mine = three_classes()
    tree = GPTree(KERNEL, 3, steps=2, of_log=of_log)
    assert [level.right.tolist() for level in tree.grow(mine)] == [[False, False, True], [False, True, False]]
    found = tree.log_probability(tree.fit(mine, 3, noise), tensor(NEW)).exp().numpy()
    z = mine.z.numpy()
    first, second = (
        node.left(z, node.draw(z, lambda level: drawn(level, 3, 2, 6)), NEW, of_log) for node in (ROOT, BELOW)
    )
    expected = np.stack([first * second, first * (1 - second), 1 - first], 1)
    assert found == pytest.approx(expected, rel=1e-9)
    assert found.sum(1) == pytest.approx([1, 1])


def test_padding_changes_nothing() -> None:
    mine = three_classes()
    longer = Labelled(torch.cat([mine.z, torch.ones(3, 2)]), torch.cat([mine.y, torch.arange(3)]), torch.arange(9) < 5)
    source = home(0).noise
    for loss in (
        lambda mine: TREE.log_probability(TREE.fit(mine, 3, source), tensor(NEW)),
        lambda mine: TREE.predictive_loss(mine, 0.5, 3, source),
        lambda mine: TREE.marginal_loss(mine, 3, source),
    ):
        assert loss(longer).numpy() == pytest.approx(loss(mine).numpy(), rel=1e-9)


def test_a_class_that_a_client_lacks_is_out_of_the_question() -> None:
    mine = Labelled(tensor(POINTS), torch.tensor([0, 2, 0, 2, 2, 0]), torch.ones(6, dtype=torch.bool))
    found = TREE.log_probability(TREE.fit(mine, 3, noise), tensor(NEW)).exp()
    assert found[:, 1].tolist() == pytest.approx([1e-12] * 2)
    assert (found[:, 0] + found[:, 2]).tolist() == pytest.approx([1, 1])
    alone = Labelled(mine.z, mine.y, torch.tensor([True, False, True, False, False, False]))
    assert TREE.log_probability(TREE.fit(alone, 3, noise), tensor(NEW)).exp()[:, 0].tolist() == [1, 1]
    nobody = Labelled(mine.z, mine.y, torch.zeros(6, dtype=torch.bool))
    assert TREE.log_probability(TREE.fit(nobody, 3, noise), tensor(NEW)).exp().flatten().tolist() == pytest.approx(
        [1e-12] * 6
    )


def test_holding_out_a_share_of_every_class() -> None:
    y = torch.tensor([1, 0, 1, 1, 2, 1, 1, 0, 0])
    mine = Labelled(torch.arange(9.0)[:, None], y, torch.tensor([True] * 8 + [False]))
    rest, held = mine.apart(0.5, 3)
    assert rest.z[rest.known, 0].tolist() == [3, 4, 5, 6, 7]  # half of five is two, of one is none
    assert held.z[held.known, 0].tolist() == [0, 1, 2]
    assert len(held.y) == 4


def test_the_marginal_likelihood() -> None:
    mine = three_classes()
    z = mine.z.numpy()
    expected = sum(node.unlikelihood(z, node.draw(z, lambda level: drawn(level, 3, 2, 6))) for node in (ROOT, BELOW))
    assert float(TREE.marginal_loss(mine, 3, noise)) == pytest.approx(expected)


# the method

X = [[1.0, 0.0], [0.8, 0.5], [0.2, 1.0], [0.0, 1.5], [1.0, 1.0], [2.0, 0.1], [1.5, 0.5], [0.1, 1.0], [-1.0, 0.2]]
LABELS = [0, 0, 1, 1, 1, 1, 1, 0, 0]
ROWS = [[0, 1, 2, 3], [5, 6, 7, 8]]
FEDERATION = Federation.from_arrays(
    np.array(X), np.array(LABELS), train=[*ROWS, [4, 0]], val=[[4]] * 3, test=[[4]] * 3, members=2, classes=2
)
START = np.array([0.6, -0.2, 0.1, 0.7, -0.4, 0.3, 0.2, -0.1, 0.05])  # a layer of two inputs and three outputs
SETTINGS: dict[str, Any] = {"lr": 0.3, "momentum": 0.0, "weight_decay": 0.01, "embedding": 3, "draws": 2}


def build(**settings: Any) -> tuple[PFedGP, dict[str, Any]]:
    task = Task(Net(lambda: nn.Linear(2, 2)), (2,), 2, torch.float64)
    method = PFedGP(task=task, clients=3, members=2, gibbs_steps=1, **SETTINGS | settings)
    return method, {"params": {"weight": tensor(START[:6].reshape(3, 2)), "bias": tensor(START[6:])}}


def home(client: int) -> PackedHome:
    homes = Homes([FEDERATION], torch.device("cpu"), torch.float64)
    return PackedHome(homes, homes.client_rows(0, torch.tensor([client]))[0], torch.tensor(0), {})


def embed(theta: Any, x: Any) -> Any:
    return np.array(x) @ theta[:6].reshape(3, 2).T + theta[6:]


def order(client: int) -> tuple[Any, Any]:
    """A client's examples in the order of its first step."""
    (batch,) = home(client).batches(1, 4, "examples 0")
    return batch.x.numpy(), batch.y.numpy()


def predictive(client: int) -> Any:
    """The loss of a step as a function of the weights: of each class's two examples the first is held out."""
    x, y = order(client)
    held = np.array([list(y).index(0), list(y).index(1)])
    kept = np.array([k for k in range(4) if k not in held])
    count = 4  # two of four are held out, and two more rows of padding make room for a class of one example
    node = gpbyhand.Node(y[kept], [0, 1], [0], 0)
    source = home(client).noise
    omega = node.draw(embed(START, x[kept]), lambda level: drawn(level, 2, 1, count, source, "step 0 "))

    def loss(theta: Any) -> float:
        left = node.left(embed(theta, x[kept]), omega, embed(theta, x[np.sort(held)]))
        return float(-np.log(np.where(y[np.sort(held)] == 0, left, 1 - left)).mean())

    return loss


def marginal(client: int) -> Any:
    x, y = order(client)
    node = gpbyhand.Node(y, range(4), [0], 0)
    source = home(client).noise
    omega = node.draw(embed(START, x), lambda level: drawn(level, 2, 1, 4, source, "step 0 "))
    return lambda theta: node.unlikelihood(embed(theta, x), omega)


@pytest.mark.parametrize("engine", ["vector", "loop", "flower"])
@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_a_round_is_the_mean_of_one_step_of_each(engine: str, clip: float) -> None:
    method, state = build(clip=clip)
    after = method.round(state, Clients(make(engine, method, [FEDERATION], "cpu"), torch.tensor([0, 1]), 0))
    slopes = [gpbyhand.slope(predictive(client), START) for client in (0, 1)]
    changes = [-0.3 * (slope * shortening(slope, clip) + 0.01 * START) for slope in slopes]
    found = np.concatenate([after["params"]["weight"].numpy().ravel(), after["params"]["bias"].numpy()])
    assert found == pytest.approx(START + np.mean(changes, 0), abs=1e-8)
    assert np.abs(changes).max() > 1e-3


def test_a_round_by_the_marginal_likelihood() -> None:
    method, state = build(objective="marginal", clip=0.0)
    after = method.round(state, Clients(make("vector", method, [FEDERATION], "cpu"), torch.tensor([0, 1]), 0))
    changes = [-0.3 * (gpbyhand.slope(marginal(client), START) + 0.01 * START) for client in (0, 1)]
    found = np.concatenate([after["params"]["weight"].numpy().ravel(), after["params"]["bias"].numpy()])
    assert found == pytest.approx(START + np.mean(changes, 0), abs=1e-8)


def test_a_second_step_draws_anew() -> None:
    """Were it the first step once more, from where that one ended, two steps would be the same as that."""
    (once, state), (twice, _) = build(steps=1), build(steps=2)
    first, both = (method.fit(home(0), params=state["params"]) for method in (once, twice))
    again = once.fit(home(0), params=tree.add(state["params"], first))
    assert toys.gap(both, first) > 1e-3
    assert toys.gap(both, tree.add(first, again)) > 1e-3


def test_a_latecomer_predicts_from_its_own_two_examples() -> None:
    """Both are its whole data store: one of each class."""
    method, state = build(predict_draws=3)
    assert method.personalise(state, Clients(None, torch.tensor([2]), -1)).shared is state  # type: ignore[arg-type]
    found = method.predict(home(2), tensor([[0.3, 0.9]]), params=state["params"]).exp().numpy()
    mine = home(2).all()
    rows = [k for k in range(4) if mine.real[k]]
    assert rows == [0, 1]
    node = gpbyhand.Node(mine.y.numpy(), rows, [0], 0)
    z = embed(START, mine.x.numpy())
    omega = node.draw(z, lambda level: drawn(level, 3, 1, 4, home(2).noise, "predict "))
    left = node.left(z, omega, embed(START, [[0.3, 0.9]]))
    assert found[0] == pytest.approx([left[0], 1 - left[0]], rel=1e-9)


def test_the_network_ends_in_an_embedding() -> None:
    method, _ = build(embedding=5)
    params = method.init(torch.Generator().manual_seed(0))["params"]
    assert {name: tuple(value.shape) for name, value in params.items()} == {"weight": (5, 2), "bias": (5,)}


def test_a_model_without_a_linear_end_is_refused() -> None:
    task = Task(Net(lambda: nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))), (2,), 2)
    with pytest.raises(ModelError, match="last layer is linear; this one's is LayerNorm"):
        PFedGP(task=task, clients=3, members=2)
