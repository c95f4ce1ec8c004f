"""A server that chooses all weights tries to tell two data sets apart that differ in one example.

From thousands of replies with secret noise it bounds the true epsilon from below, over events "the score of a reply is
above a threshold", "below it" and "the reply is not finite". Score and event are chosen on one half of the replies and
counted on the other (Clopper and Pearson's limits, 95 % for all counts together). No bound may exceed the promise, and
mechanisms that are broken on purpose must be found out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import scipy.stats
import torch
from flwr.app import Message
from torch import Tensor
from torch.func import vmap

import letters
import toys
from latecomer.data import Federation
from latecomer.engines.flower.app import client_app
from latecomer.engines.flower.grid import LocalGrid
from latecomer.engines.flower.wire import unpack
from latecomer.engines.home import Homes, PackedHome, entropy
from latecomer.methods.odpflhn import ODPFLHN
from latecomer.tree import Tree

EPSILON, DELTA, BOUND, EXAMPLES, WIDTH = 1.0, 1e-3, 2.0, 20, 12
UNIT = math.sqrt(WIDTH) / BOUND  # what a mean is multiplied by before psi
DRAWS = 6000  # of replies to each data set


def data(replaced: bool) -> Federation:
    """The worst case: one example lights a unit of its own, or another, as brightly."""
    pixels = torch.zeros(EXAMPLES, 8, 8, dtype=torch.uint8)
    pixels[:, 0, 2] = 255
    pixels[7, 0, :3] = torch.tensor([0, 255, 0] if replaced else [255, 0, 0])
    rows = [list(range(EXAMPLES))]
    return Federation.from_arrays(pixels.numpy(), [0] * EXAMPLES, train=rows, val=[[0]], test=[[0]], members=1)


NEIGHBOURS = data(False), data(True)


def method(**settings: Any) -> ODPFLHN:
    fixed = {"epsilon": EPSILON, "delta": DELTA, "pool": "mean", "bound": BOUND, "width": WIDTH, "descriptor": 3}
    return ODPFLHN(task=toys.task(), clients=1, members=1, encoder="dense", **fixed | settings)


def weights(seed: int = 0) -> Tree:
    """Where pixel 0 lights unit 0, pixel 1 unit 1, beyond any bound, and psi reads the difference of the two."""
    made = method().describer.fresh(torch.Generator().manual_seed(seed))
    made["phi"] = {"1.weight": 1e6 * torch.eye(WIDTH, 64), "1.bias": torch.zeros(WIDTH)}
    made["psi"]["0.weight"][0] = torch.eye(WIDTH)[0] - torch.eye(WIDTH)[1]
    return made


def scaled(where: str, name: str, factor: float, add: float = 0.0) -> Callable[[], Tree]:
    def made() -> Tree:
        found = weights()
        found[where][name] = found[where][name] * factor + add
        return found

    return made


def drawn_at_random() -> Tree:
    return method().describer.fresh(torch.Generator().manual_seed(3))


def one_pixel() -> Tree:
    """Saturates on one pixel: infinite for one data set, large for the other."""
    made = weights()
    made["phi"]["1.weight"] = torch.zeros(WIDTH, 64).index_fill(1, torch.tensor([1]), 3e38)
    made["phi"]["1.bias"] = torch.full((WIDTH,), 3e38)
    made["psi"]["0.weight"][0] = 1.0
    return made


def large_bias() -> Tree:
    """At 2^23 single precision knows whole numbers only: what lies on either side of a half would move by one."""
    made = weights()
    made["psi"] = {"0.weight": torch.zeros(3, WIDTH), "0.bias": torch.full((3,), 2.0**23)}
    made["psi"]["0.weight"][0, :3] = torch.tensor([0.68, -0.68, 0.5 / (BOUND * (1 - 1 / EXAMPLES))]) / UNIT
    return made


STRATEGIES: dict[str, Callable[[], Tree]] = {
    "plain": weights,
    "drawn at random": drawn_at_random,
    "psi, bias 2^23": large_bias,
    "psi, denormal": scaled("psi", "0.weight", 1e-44),
    "psi, 1e30": scaled("psi", "0.weight", 1e30),
    "psi, 3e38": scaled("psi", "0.weight", 3e38),
    "psi, NaN": scaled("psi", "0.weight", math.nan),
    "phi, 1e38": scaled("phi", "1.weight", 1e32),
    "phi, overflow": scaled("phi", "1.weight", 1e36),
    "phi, denormal": scaled("phi", "1.weight", 1e-50),
    "phi, one pixel": one_pixel,
    "phi, NaN": scaled("phi", "1.weight", math.nan),
    "phi, NaN bias": scaled("phi", "1.bias", math.nan),
}


def replies(asked: ODPFLHN, encoder: Tree, federation: Federation, draws: int = DRAWS) -> Tensor:
    """What a client sends, with noise from the operating system, as its app does it but all at once."""
    homes = Homes([federation], torch.device("cpu"), torch.float32)
    card = homes.client_rows(0, torch.tensor([0]))[0]

    def one(words: Tensor) -> Tensor:
        return asked.request(
            PackedHome(homes, card, torch.tensor(0), {}, lambda count: words[:count]), encoder=encoder
        )["v"]

    found: Tensor = vmap(one)(entropy(draws * 2 * WIDTH).view(draws, -1))
    return found


# what an attacker learns from them


def scores(first: Tensor, second: Tensor, some: slice) -> tuple[Tensor, Tensor]:
    """Every reply as a number, along the line between both means; infinite where the reply is not finite."""
    finite = [rows[some][rows[some].isfinite().all(-1)].double() for rows in (first, second)]
    centres = [rows.mean(0) if len(rows) else torch.zeros(first.shape[1]).double() for rows in finite]
    every = torch.cat([*finite, torch.zeros(1, first.shape[1])])  # there may be none
    spread = every.std(0, correction=0).clamp(min=1e-300)
    line = (centres[0] - centres[1]) / spread
    made = [
        torch.where(rows.isfinite().all(-1), (rows.double() / spread).nan_to_num() @ line, torch.inf)
        for rows in (first, second)
    ]
    return made[0], made[1]


def events(score: Tensor, threshold: float) -> list[Tensor]:
    """Symbols: above, not above, not finite; and each of the first two with those that are not finite."""
    odd = score.isinf()
    above = score > threshold
    return [above & ~odd, ~above & ~odd, odd, above | odd, ~above | odd]


def least_epsilon(first: Tensor, second: Tensor, delta: float = DELTA) -> float:
    """A lower bound of the epsilon, in either direction, which holds with 95 % confidence."""
    half = len(first) // 2
    a, b = scores(first, second, slice(half))
    finite = torch.cat([a[:half], b[:half]])
    finite = finite[finite.isfinite()]
    places = finite.quantile(torch.linspace(0.002, 0.998, 60).double()).unique().tolist() if len(finite) else [0.0]
    bounds = []
    for one, other in ((a, b), (b, a)):
        tries = [(limit(x[:half], y[:half], delta), t, k) for t in places for k, (x, y) in each(one, other, t)]
        _, threshold, kind = max(tries)
        x, y = dict(each(one, other, threshold))[kind]
        bounds.append(limit(x[half:], y[half:], delta))
    return max(bounds)


def each(one: Tensor, other: Tensor, threshold: float) -> list[tuple[int, tuple[Tensor, Tensor]]]:
    return list(enumerate(zip(events(one, threshold), events(other, threshold), strict=True)))


def limit(event: Tensor, same_event: Tensor, delta: float, doubt: float = 0.05) -> float:
    """From how often an event happened with either data set: the epsilon that P <= e^epsilon Q + delta takes at least.

    Both directions are tried and P and Q are each bounded: a quarter of the doubt for everyone.
    """
    many, few, of = int(event.sum()), int(same_event.sum()), len(event)
    low = scipy.stats.beta.ppf(doubt / 4, many, of - many + 1) if many else 0.0
    high = scipy.stats.beta.ppf(1 - doubt / 4, few + 1, of - few) if few < of else 1.0
    return math.log((low - delta) / high) if low > delta else -math.inf


# the promise, and mechanisms that break it


def attack(asked: ODPFLHN, strategy: str) -> float:
    encoder = STRATEGIES[strategy]()
    first, second = (replies(asked, encoder, federation) for federation in NEIGHBOURS)
    return least_epsilon(first, second)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_server_learns_more_than_was_promised(strategy: str) -> None:
    assert attack(method(), strategy) <= EPSILON


def test_nor_by_parts_or_deeper_networks() -> None:
    assert attack(method(describe_by=7), "plain") <= EPSILON
    deep = method(after=1)
    encoder = weights() | {"psi": deep.describer.fresh(torch.Generator().manual_seed(0))["psi"]}
    assert least_epsilon(*(replies(deep, encoder, federation) for federation in NEIGHBOURS)) <= EPSILON


@pytest.mark.parametrize("strategy", ["plain", "psi, 1e30", "phi, 1e38", "phi, one pixel"])
def test_with_too_little_noise_the_attack_succeeds(strategy: str) -> None:
    asked = method()
    asked.set(noise=asked.noise / 8)
    assert attack(asked, strategy) > 2 * EPSILON


def test_a_large_bias_before_the_noise_would_tell_too_much() -> None:
    """Were noise added to what psi makes, as the bound alone would allow."""
    asked, encoder = method(), large_bias()
    clear = [asked.describer.of(_home(federation), encoder).double() for federation in NEIGHBOURS]
    noise = asked.noise / EXAMPLES * torch.randn(2, DRAWS, 3, dtype=torch.float64)
    assert UNIT * torch.linalg.matrix_norm(encoder["psi"]["0.weight"], 2).item() < 1.01
    assert least_epsilon(clear[0] + noise[0], clear[1] + noise[1]) > 2 * EPSILON


def test_replies_that_are_not_finite_are_seen() -> None:
    """A leak by that symbol alone."""
    first, second = torch.zeros(2000, 3), torch.zeros(2000, 3)
    first[::2, 1] = math.nan
    assert least_epsilon(first, second) > 3
    assert least_epsilon(second, first) > 3
    assert least_epsilon(first, first) < 0.2


def _home(federation: Federation) -> PackedHome:
    homes = Homes([federation], torch.device("cpu"), torch.float32)
    return PackedHome(homes, homes.client_rows(0, torch.tensor([0]))[0], torch.tensor(0), {})


# through the app


def asked_by_messages(asked: ODPFLHN, encoder: Tree, federation: Federation, count: int) -> Tensor:
    grid = LocalGrid(client_app(asked, [federation]))
    sent = {"encoder": encoder}  # in a round each: it answers once
    contents = [letters.request(asked, "request", sent, -1 - k, client=0) for k in range(count)]
    messages = [Message(one, dst_node_id=grid.node(0, 0), message_type="query.request") for one in contents]
    return torch.stack([unpack(reply.content["body"])["v"] for reply in grid.send_and_receive(messages)])


@pytest.mark.parametrize("strategy", ["plain", "psi, bias 2^23"])
def test_a_real_client_keeps_the_promise_too(strategy: str) -> None:
    encoder = STRATEGIES[strategy]()
    first, second = (asked_by_messages(method(), encoder, federation, 60) for federation in NEIGHBOURS)
    assert least_epsilon(first, second) <= EPSILON
    broken = method()
    broken.set(noise=broken.noise / 100)
    first, second = (asked_by_messages(broken, weights(), federation, 60) for federation in NEIGHBOURS)
    assert least_epsilon(first, second) > EPSILON
