"""Certificates: every theorem against a value worked out by hand on two parameters, and the command on small runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from console import Command
from latecomer import Experiment
from latecomer.clients import Clients
from latecomer.data import Federation, load
from latecomer.data.federation import Rows
from latecomer.engines.loop import Loop
from latecomer.errors import SettingError
from latecomer.handover.trained import Trained
from latecomer.methods.fedavg import FedAvg
from latecomer.methods.knnper import KnnPer
from latecomer.nets.net import Net
from latecomer.runs.run import Run
from latecomer.study.certify import THEOREMS, Certificate, Term, certify, flowdup, knnper, odpflhn, pefll
from latecomer.study.certify.posterior import Posterior, noisy, row_squares, squared_norm, typical_size
from latecomer.task import Task
from latecomer.tree import Tree

NEAR = 1e-6
MISLEADING = math.exp(-0.04)  # log(1 / it) = 0.04, so two draws cost sqrt(0.04 / 4) = 0.1


def named(terms: list[Term]) -> dict[str, float]:
    return {term.name: term.value for term in terms}


def test_pefll_by_hand() -> None:
    """|eta_h|^2 = 9, |eta_v|^2 = 12, |scalars|^2 = 4, sigma = 1/2, sigma-model = 2; n = 100, m = 50, delta = 0.04; two
    draws.

    KL of the networks  (9 + 12 + 4) / (2 * 1/4) = 50
    between             log(2 * 10 / 0.04) = log(500) = 6.2146080984: sqrt((50 + 6.2146080984) / 200) = 0.5301632206
    KL of the models    32 / (2 * 4) = 4 and 72 / (2 * 4) = 9
    within              log(8 * 5000 / 0.04) + 1 = log(1e6) + 1 = 14.8155105580:
                        sqrt(18.8155105580 / 10000) = 0.0433768493, sqrt(23.8155105580 / 10000) = 0.0488011379
                        on average 0.0460889936
    right-hand side     0.15 + 0.5301632206 + 0.0460889936 = 0.7262522142
    between, proven     log(4 * 10 / 0.04) = log(1000) = 6.9077552790: sqrt((50 + 6.9077552790) / 200) = 0.5334217622
    bound               0.15 + 0.5334217622 + 0.0460889936 + 2 * 0.1 for the draws = 0.9295107558
    """
    numbers = [0.1, 0.2], [32.0, 72.0], (9.0, 12.0, 4.0), 100, 50, (0.5, 2.0)
    found = named(pefll.terms(*numbers, (0.04, MISLEADING)))  # type: ignore[arg-type]
    assert found["KL of the networks"] == 50
    assert found["KL of the models"] == 6.5
    assert found["between clients"] == pytest.approx(0.5301632206, abs=NEAR)
    assert found["within clients"] == pytest.approx(0.0460889936, abs=NEAR)
    assert found["right-hand side"] == pytest.approx(0.7262522142, abs=NEAR)
    assert found["between, proven"] == pytest.approx(0.5334217622, abs=NEAR)
    assert found["bound"] == pytest.approx(0.9295107558, abs=NEAR)


def test_a_grid_of_spreads_has_its_price() -> None:
    """With delta = 0.16 shared by four choices, and the draws' share alike, all is as with 0.04 and one choice."""
    numbers = [0.1, 0.2], [8.0, 18.0], (9.0, 12.0, 4.0), 100, 50, (1.0, 1.0)
    one, four = (pefll.terms(*numbers, (0.04 * k, MISLEADING * k / 4), k) for k in (1, 4))  # type: ignore[arg-type]
    four_named, one_named = named(four), named(one)
    assert four_named["right-hand side"] == pytest.approx(one_named["right-hand side"], abs=1e-12)
    assert named(pefll.terms(*numbers, (0.04, 0.01), 4))["bound"] > named(pefll.terms(*numbers, (0.04, 0.01)))["bound"]  # type: ignore[arg-type]


def test_flowdup_by_hand() -> None:
    """|psi_h|^2 = 6.25, sigma = 1/2; psi_r in a plane, |psi_r|^2 = 0.02, sigma-prior = 0.1; sigma-model = 2; n = 90, of
    whom 30 have labels, m = 50, delta = 0.05; two draws.

    KL of the hypernetwork  6.25 / (2 * 1/4) = 12.5
    t                       3 log(30) sqrt(30 * 2/3) = 45.6318513017;  c_1 = log(2 t / 0.05) = 7.5094854203
    unlabelled              sqrt(2/3 * (12.5 + 7.5094854203) / 60) = 0.4715162943
    KL of psi_r             0.02 / (2 * 0.01) = 1
    KL of the models        n k alpha_r = 90 * 2 * 0.01 = 1.8: (30.2 + 1.8) / 8 = 4 and (70.2 + 1.8) / 8 = 9
    c_2                     log(8 * 4500 / 0.05) + 1 = log(720000) + 1 = 14.4870064910
    within                  sqrt(19.4870064910 / 9000) = 0.0465319562, sqrt(24.4870064910 / 9000) = 0.0521610822;
                            on average 0.0493465192
    right-hand side         0.15 + 0.4715162943 + 0.0493465192 = 0.6708628135; with 2 * 0.1 for the draws 0.8708628135
    """
    spreads, deltas = (0.5, 2.0, 0.1), (0.05, MISLEADING)
    found = named(flowdup.terms([0.1, 0.2], [30.2, 70.2], (6.25, 0.02), (30, 90), 50, 2, spreads, deltas))
    assert found["KL of the hypernetwork"] == 12.5
    assert found["KL of psi_r"] == pytest.approx(1)
    assert found["KL of the models"] == pytest.approx(6.5)
    assert found["unlabelled members"] == pytest.approx(0.4715162943, abs=NEAR)
    assert found["within clients"] == pytest.approx(0.0493465192, abs=NEAR)
    assert found["right-hand side"] == pytest.approx(0.6708628135, abs=NEAR)
    assert found["bound"] == pytest.approx(0.8708628135, abs=NEAR)


def test_flowdup_where_all_have_labels_pays_nothing_for_the_others() -> None:
    assert flowdup.unlabelled(1e9, 10, 10, 0.05) == 0


def test_the_constant_of_sampling_is_the_sum_where_few_have_labels() -> None:
    """One of two clients drawn, one of them wrong: whichever it is, n_L D = kl(0, 1/2) + kl(1, 1/2) = 2 log 2. So
    E exp(n_L D) is 4, while t(1, 2) is 0.

    Three of ten clients drawn: for K of ten wrong, each of the 120 threes is as likely, and one with k wrong has
    n_L D = 3 kl(k / 3, K / 10) + 7 kl((K - k) / 7, K / 10). The largest mean of exp(n_L D) is at K = 3."""
    assert flowdup.sampling(1, 2) == pytest.approx(4)

    def kl(q: float, p: float) -> float:
        return sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a)

    def expected(wrong: int) -> float:
        counts = [sum(client < wrong for client in drawn) for drawn in combinations(range(10), 3)]
        p = wrong / 10
        return fmean(math.exp(3 * kl(k / 3, p) + 7 * kl((wrong - k) / 7, p)) for k in counts)

    assert max(expected(wrong) for wrong in range(1, 10)) == pytest.approx(6.0401194207, abs=NEAR)
    assert flowdup.sampling(3, 10) == pytest.approx(6.0401194207, abs=NEAR)
    assert flowdup.sampling(30, 90) == pytest.approx(45.6318513017, abs=NEAR)


@pytest.mark.parametrize(("drawn", "clients"), [(1, 6), (2, 6), (3, 8), (7, 8)])
def test_errors_between_0_and_1_give_no_more_than_the_sum(drawn: int, clients: int) -> None:
    """What convexity says: E exp(n_L D) over the drawn, for any errors, is at most what it is for right or wrong."""

    def kl(q: float, p: float) -> float:
        return sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a > 1e-12)

    most, generator = flowdup.sampling(drawn, clients), np.random.default_rng(1)
    for concentration in (0.2, 1.0):
        errors, found = generator.beta(concentration, concentration, clients), []
        p = float(errors.mean())
        for some in combinations(errors, drawn):
            q, r = float(np.mean(some)), float((errors.sum() - np.sum(some)) / (clients - drawn))
            found.append(math.exp(drawn * kl(q, p) + (clients - drawn) * kl(r, p)))
        assert fmean(found) < most


def test_odpflhn_by_hand() -> None:
    """A hypernetwork of two weights and descriptors of one number.

    Without a Lipschitz constant, n = 6400, m = 100, delta = 0.05: log(160) = 5.0751738152, so n asks for
    16 sqrt(5.0751738152 / 6400) = 0.4505629, and m for 8 / sqrt(100) = 0.8, which is more: 0.1 + 0.8 + 0.05 = 0.95.

    With one: let delta = 8 / e^4 and 64 |w| L / epsilon = e^2 - 1 at epsilon = 0.5, so |w| L = (e^2 - 1) / 128. Then
    log(8 C / delta) = 2 * 2 + 4 = 8, and n = 256 * 8 / 0.25 = 8192 is just enough; m = 10,000 is above
    256 (8194 log(2 e^2 - 1) + 4) / (8192 * 0.25) = 2688. The bound is 0.1 + 0.5 + 0.05 = 0.65.

    Where m decides, n = 5000, m = 300, delta = 0.05, two weights, descriptors of three numbers, |w| L = 0.01: at
    epsilon = 1.3183499883, log(1 + 1.28 / epsilon) = 0.6785598588, and 256 (15002 * 0.6785598588 + 5.0751738152) / 5000
    is 521.4, which is 300 epsilon^2; n asks for 256 (2 * 0.3955 + 5.0752) / epsilon^2 = 864 clients only.
    """
    plain = named(odpflhn.terms(0.1, 0.05, 6400, 100, 0.05, 2, 1, 3.0, 0.0))
    assert plain["epsilon"] == pytest.approx(0.8, abs=NEAR)
    assert plain["bound"] == pytest.approx(0.95, abs=NEAR)
    assert odpflhn.epsilon(6400, 1e6, 0.05) == pytest.approx(0.4505629, abs=NEAR)
    lipschitz = (math.e**2 - 1) / 128 / 2.5
    found = named(odpflhn.terms(0.1, 0.05, 8192, 10_000, 8 / math.e**4, 2, 1, 2.5, lipschitz))
    assert found["log C(epsilon/32, H*)"] == pytest.approx(4, abs=NEAR)
    assert found["log C(epsilon/32, H^n)"] == pytest.approx(8194 * math.log(2 * math.e**2 - 1), abs=NEAR)
    assert found["floor"] == pytest.approx(16 * math.sqrt(4 / 8192), abs=NEAR)  # without covering numbers
    assert found["epsilon"] == pytest.approx(0.5, abs=NEAR)
    assert found["bound"] == pytest.approx(0.65, abs=NEAR)
    assert odpflhn.epsilon(5000, 300, 0.05, 2, 3, 0.01) == pytest.approx(1.3183499883, abs=NEAR)


def test_divergences_by_hand() -> None:
    """Members 0 and 1, latecomer 2. Models 0 and 1 disagree on 0, 1/2 and 1 of their examples, 0 and 2 on 1, 0 and 0, 1
    and 2 on 1, 1/2 and 1. Of the differences to the latecomer the largest are: member 0: 1, member 1: 1/2."""
    owner = torch.tensor([0, 0, 1, 1, 2, 2])
    predictions = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1], [1, 1, 0, 0, 0, 0]])
    assert odpflhn.divergence(predictions, owner, 2).tolist() == [[1.0], [0.5]]


def test_knnper_by_hand() -> None:
    """A model of two parameters, d = 2, on one feature; gamma = (0.01, 0.02), L(h*) = 0.02; two members:
    lambda = 1/2, n_m = 16, disc = 0.2, and lambda = 1/4, n_m = 64, disc = 0.4. So n = 80, c_2 = 0.24, c_5 = 0.48.

    sqrt(p) / n_m^(1/2)  1/4 and 1/8
    complexity           sqrt(2 / 80) sqrt(8 + log(40)) = sqrt(0.025 * 11.6888794541) = 0.5405756
    best model           (1.5 * 0.02 + 1.25 * 0.02) / 2 = 0.0275
    members differ       (2 * 0.5 * 0.2 + 2 * 0.75 * 0.4) / 2 = 0.4
    neighbours           (0.24 * 0.5 * 0.25 * 1.2 + 0.24 * 0.25 * 0.125 * 1.4) / 2 = 0.02325
    common model         4 (0.5 + 0.75) / 2 = 2.5 times the complexity
    in its features      0.48 (0.5 * 0.25 + 0.25 * 0.125) / 2 = 0.0375 times the complexity
    bound                0.45075 + 2.5375 * 0.54057560651 = 1.8224606015
    """
    members = [knnper.Member(0.5, 16, 0.2), knnper.Member(0.25, 64, 0.4)]
    found = named(knnper.terms(members, 1, 2, (0.01, 0.02), best=0.02))
    assert found["complexity"] == pytest.approx(0.5405756, abs=NEAR)
    assert found["neighbours"] == pytest.approx(0.02325, abs=NEAR)
    assert found["bound"] == pytest.approx(1.8224606, abs=NEAR)


def test_knnper_by_hand_on_three_features() -> None:
    """p = 3, d = 20, gamma = (0.05, 0.01), L(h*) = 0.02; two members: lambda = 1/2, n_m = 4096, disc = 0.2, and
    lambda = 1/4, n_m = 10000, disc = 0.4. So n = 14096, c_2 = max(0.12, 0.3) = 0.3, c_5 = 0.24, c_4 = 1.

    sqrt(p) / n_m^(1/4)  sqrt(3) / 8 = 0.2165063509 and sqrt(3) / 10 = 0.1732050808
    complexity           sqrt(20 / 14096) sqrt(1 + log(704.8)) = 0.1035542738; by 2^n 0.433
    neighbours           (0.3 * 0.5 * 0.2165063509 * 1.2 + 0.3 * 0.25 * 0.1732050808 * 1.4) / 2 = 0.0285788383
    floor                (0.3 * 0.5 * 0.2165063509 + 0.3 * 0.25 * 0.1732050808) / 2 = 0.0227331669
    common model         4 (0.5 + 0.75) / 2 = 2.5 times the complexity
    in its features      0.24 (0.5 * 0.2165063509 + 0.25 * 0.1732050808) / 2 = 0.0181865335 times the complexity
    bound                0.0275 + 0.4 + 0.0285788383 + 2.5181865335 * 0.1035542738 = 0.7168478161
    """
    members = [knnper.Member(0.5, 4096, 0.2), knnper.Member(0.25, 10_000, 0.4)]
    found = named(knnper.terms(members, 3, 20, (0.05, 0.01), best=0.02))
    assert found["complexity"] == pytest.approx(0.1035542738, abs=NEAR)
    assert found["neighbours"] == pytest.approx(0.0285788383, abs=NEAR)
    assert found["floor"] == pytest.approx(0.0227331669, abs=NEAR)
    assert found["bound"] == pytest.approx(0.7168478161, abs=NEAR)


def test_knnper_takes_the_lesser_bound_of_the_growth_function() -> None:
    """2^n, below as above n = d + 1, until Sauer's lemma gives less: more examples never make the term larger."""
    assert 4 * knnper.model_term(100, 1000) == pytest.approx(2 * (4 + math.sqrt(100 * math.log(2))) / 10)
    assert 4 * knnper.model_term(3000, 1000) == pytest.approx(2 * (4 + math.sqrt(3000 * math.log(2))) / math.sqrt(3000))
    assert knnper.model_term(1002, 1000) < knnper.model_term(1001, 1000)


def test_the_least_distance_of_different_labels_by_hand() -> None:
    """Member 0: (0, 0) and (0, 1) with label 0, (3, 4) with label 1: the least is sqrt(9 + 9). Member 1 is 10 away from
    them, with one label. All features lie in [0, 10], so gamma_1 is 10 / sqrt(18)."""
    x = np.array([[0.0, 0.0], [0.0, 1.0], [3.0, 4.0], [10.0, 0.0], [0.0, 90.0]], np.float32)
    rows, held = [[0, 1, 2], [3], [4]], [[0], [3], [4]]
    federation = Federation.from_arrays(x, np.array([0, 0, 1, 1, 0]), train=rows, val=held, test=held, members=2)
    task = Task(Net(lambda: nn.Linear(2, 2)), (2,), 2)
    method = KnnPer(task=task, clients=3, members=2)
    params = task.model.fresh(torch.Generator())
    found = knnper.measured(method, params, federation, lambda done, of: None)
    assert found == (2, pytest.approx(math.sqrt(18) / 10))
    assert knnper.closest(torch.tensor([[0.0], [3.0], [3.5]]), torch.tensor([0, 0, 1])) == pytest.approx(0.5)


def two_weights() -> Posterior:
    """Models of two weights, (a, -b) x for one x: client i gets (eta_h, i - 1) of an eta_h and an eta_v of one number.

    Client 0 has x = 1, 2 with labels 0, 1; client 1, x = -1 with label 1; client 2, a latecomer, x = 1 with label 0.
    """
    rows = [[0, 1], [2], [3]]
    x, y = np.array([[1.0], [2.0], [-1.0], [1.0]]), np.array([0, 1, 1, 0])
    federation = Federation.from_arrays(x, y, train=rows, val=rows, test=[[1], [2], [3]], members=2, classes=2)
    task = Task(Net(lambda: nn.Linear(1, 2, bias=False)), (1,), 2, torch.float64)
    scorer = FedAvg(task=task, clients=3, members=2)

    def models(networks: Tree, clients: Clients) -> tuple[Tree, Tensor]:
        first = networks["h"].expand(len(clients))
        made = {"weight": torch.stack([first, clients.ids.double() - networks["v"]], 1)[..., None]}
        return made, row_squares(made)

    networks = {"h": torch.tensor([3.0]).double(), "v": torch.tensor([1.0]).double()}
    describing, scoring = (
        Loop(scorer, [one], "cpu") for one in (federation, replace(federation, val=federation.train))
    )
    return Posterior(federation, networks, models, lambda made: made, describing, scoring, scorer)


def test_errors_and_distances_of_a_draw_by_hand() -> None:
    """Weights are (3, -1), (3, 0) and (3, 1): class 0 for x > 0, class 1 below. Client 0 gets one of its two training
    examples wrong, client 1 none: an error of (1/2 + 0) / 2. Of its one test example, x = 2, client 0 gets none right.
    Squares: 9 + 1 and 9 + 0. By Theorem 4.2, sigma = 1, delta = 0.05, m = 2 / (1/2 + 1) = 4/3:
    between   log(2 sqrt(2) / 0.05) = 4.0354530444: sqrt((10 / 2 + 4.0354530444) / 4) = 1.5029515165
    within    log(8 * 8/3 / 0.05) + 1 = 7.0560030682: sqrt((19 / 2 + 7.0560030682) / (16/3)) = 1.7618883549
    proven    with half of delta log(4 sqrt(2) / 0.05) = 4.7286002250: sqrt((5 + 4.7286002250) / 4) = 1.5595352052
    """
    posterior = two_weights()
    draw = posterior.drawn(0.0, 0.0, torch.Generator())
    assert (draw.train, draw.members, draw.latecomers, draw.squares) == (0.25, 0.5, 0.0, 19.0)
    size = typical_size(posterior.federation.weight[:2])
    found = named(pefll.terms([0.25] * 2, [19.0] * 2, (9.0, 1.0, 0.0), 2, size, (1.0, 1.0), (0.05, MISLEADING)))
    assert found["right-hand side"] == pytest.approx(0.25 + 1.5029515165 + 1.7618883549, abs=NEAR)
    assert found["bound"] == pytest.approx(0.25 + 1 + 1.5595352052 + 0.2, abs=NEAR)  # what is lost: 1 at most


def test_draws_are_normal_around_the_weights_and_of_a_seed() -> None:
    centre = {"w": torch.full((20_000,), 2.0)}
    one, two = (noisy(centre, 0.5, torch.Generator().manual_seed(4))["w"] for _ in range(2))
    assert torch.equal(one, two)
    assert float(one.mean()) == pytest.approx(2, abs=0.02)
    assert float(one.std()) == pytest.approx(0.5, abs=0.02)
    posterior = two_weights()
    for spreads in ((10.0, 0.0), (0.0, 10.0)):  # networks, and models around what they make
        wide = [posterior.drawn(*spreads, torch.Generator().manual_seed(k)) for k in range(8)]
        assert len({draw.train for draw in wide}) > 1
        assert len({draw.squares for draw in wide}) == (8 if spreads[0] else 1)  # of the centre, not of the draw


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}
    tiny: dict[str, Any] = {"data": "digits", "clients": 8, "unseen": 0.25, "rounds": 2, "cohort": 4, "engine": "loop"}
    own = {"pefll": {"steps": 2}, "flowdup": {"labelled": 0.5}}

    def run(name: str) -> Path:
        if name not in made:
            out = tmp_path_factory.mktemp(name)
            told = tiny | {"device": "cpu", "evaluate_every": 2, "name": "run", "out": str(out)} | own.get(name, {})
            assert Run.begin(Experiment.parse(name, told)).go() is not None
            made[name] = out / "run"
        return made[name]

    return run


@pytest.mark.parametrize("method", THEOREMS)
def test_a_certificate_of_a_run(method: str, runs: Callable[[str], Path], command: Command, tmp_path: Path) -> None:
    path = runs(method)
    draws = [] if method == "knnper" else ["--draws", 2]
    outcome = command("certify", path, *draws, "--device", "cpu", "-o", tmp_path)
    assert outcome.code == 0, outcome.err
    told = json.loads((tmp_path / "certificate.json").read_text())
    assert "vacuous" in outcome.out
    assert told["vacuous"]
    for term in told["terms"]:
        assert term["name"] in outcome.out
    assert "It assumes" in outcome.out
    assert told["about"]["method"] == method
    result, measured = json.loads((path / "result.json").read_text()), dict(told["risks"])
    plain = "wrong answers: " if method == "knnper" else ""
    late = measured.get("deployed: latecomers, test examples", measured.get(plain + "latecomers, test examples"))
    seen = measured.get("deployed: members, test examples", measured.get(plain + "members, test examples"))
    assert late == pytest.approx(1 - result["unseen"]["accuracy"] / 100, abs=1e-4)
    assert seen == pytest.approx(1 - result["seen"]["accuracy"] / 100, abs=1e-4)


def test_what_a_run_brings_into_the_theorem(runs: Callable[[str], Path]) -> None:
    """Norms, clients and examples, read from the checkpoint and the split beside the certificate."""
    path = runs("pefll")
    found, run = certify(path, {"draws": 2, "sigma": (0.1, 0.2), "device": "cpu"}), Trained.load(path)
    learned, federation, terms = run.states[0]["learned"], run.federations[0], named(found.terms)
    assert terms["|eta_h|^2"] == pytest.approx(squared_norm(learned["hyper"]))
    assert terms["|eta_v|^2"] == pytest.approx(squared_norm(learned["embed"]))
    sizes = [len(federation.train[k]) for k in range(federation.members)]
    assert (terms["n"], terms["m"]) == (len(sizes), pytest.approx(len(sizes) / sum(1 / size for size in sizes)))
    assert terms["delta"] == pytest.approx(0.025)
    assert terms["sigma"] == 0.2  # the better of the two: far from 0, a divergence is less
    assert found.bound == pytest.approx(terms["drawn part"] + terms["between, proven"] + terms["error of the draws"])
    labelled = named(certify(runs("flowdup"), {"draws": 2, "device": "cpu"}).terms)
    assert labelled["n_L"] == labelled["n"] / 2
    for method in ("pefll", "flowdup"):
        spreads = {"sigma": (0.1, 0.2, 0.3), "sigma_model": (0.1, 0.2), "draws": 2, "device": "cpu"}
        assert named(certify(runs(method), spreads).terms)["delta"] == pytest.approx(0.05 / 6)


def test_m_of_flowdup_counts_labels_where_a_member_has_any(tmp_path: Path) -> None:
    """Three of four labels are not known, and half of the members have none at all, so all of their examples count."""
    source, unknown = load("digits"), np.random.default_rng(0)
    y = np.where(unknown.random(len(source.y_train)) < 0.75, -1, source.y_train.astype(np.int64))
    arrays = {"x_train": source.x_train, "y_train": y, "x_test": source.x_test, "y_test": source.y_test}
    np.savez(tmp_path / "few.npz", **arrays)
    told = {"data": f"npz:{tmp_path / 'few.npz'}", "partition": "iid", "clients": 10, "labelled": 0.5, "rounds": 1}
    settings = told | {"cohort": 2, "device": "cpu", "engine": "loop", "out": str(tmp_path), "name": "run"}
    assert Run.begin(Experiment.parse("flowdup", settings)).go() is not None
    run, sizes = Trained.load(tmp_path / "run"), []
    federation = run.federations[0]
    for member in range(federation.members):
        labels = federation.examples.y[federation.train[member].long()].tolist()
        sizes.append(sum(label >= 0 for label in labels) if federation.labelled[member] else len(labels))
    terms = named(certify(run, {"draws": 2, "device": "cpu"}).terms)
    assert terms["n_L"] == 5
    assert terms["m"] == pytest.approx(len(sizes) / sum(1 / size for size in sizes))


def test_what_a_run_of_knnper_brings_into_the_theorem(runs: Callable[[str], Path]) -> None:
    """gamma_1 from the distances, the loss from the probabilities that members give the answers, client by client."""
    run = Trained.load(runs("knnper"))
    found = certify(run, {"device": "cpu"})
    terms, federation, method = named(found.terms), run.federations[0], cast(KnnPer, run.method)
    features, nearest = knnper.measured(method, run.states[0]["params"], federation, lambda done, of: None)
    assert (terms["p"], terms["gamma_1"]) == (features, pytest.approx(1 / nearest))
    assert found.floor == terms["floor"] <= terms["neighbours"]
    loop, lost = Loop(method, [federation], "cpu"), []
    for member in range(federation.members):
        home = loop.home(0, member, -1, 0)
        mine = home.all("test")
        likely = method.predict(home, mine.x, **run.states[0]).exp()  # kNN-Per's logits are logarithms
        lost.append(fmean(1 - float(likely[k, int(y)]) for k, y in enumerate(mine.y)))
    risks = dict(found.risks)
    assert risks["1 - p_y: members, test examples"] == pytest.approx(fmean(lost), abs=1e-5)
    for who in ("members, training", "members, test", "latecomers, test"):
        assert risks[f"wrong answers: {who} examples"] <= 2 * risks[f"1 - p_y: {who} examples"]


@pytest.mark.parametrize("method", THEOREMS)
def test_test_examples_enter_no_bound(method: str, runs: Callable[[str], Path]) -> None:
    """With training examples in the place of test examples the bound stays, and errors on both are the same."""
    run = Trained.load(runs(method))
    asked = {"device": "cpu"} | ({} if method == "knnper" else {"draws": 2})
    before = certify(run, asked)
    vars(run)["federations"] = [replace(one, test=one.train) for one in run.federations]
    after = certify(run, asked)
    assert (after.bound, after.terms) == (before.bound, before.terms)
    kind = "wrong answers: " if method == "knnper" else "deployed: "
    first, second = ({name.removeprefix(kind): risk for name, risk in one.risks} for one in (before, after))
    assert first["members, test examples"] != second["members, test examples"]
    assert first["members, training examples"] == second["members, training examples"]
    if method != "flowdup":  # whose members without labels have no training error
        assert second["members, test examples"] == pytest.approx(second["members, training examples"])
        assert second["true gap, members"] == pytest.approx(0, abs=1e-6)
    for who, gap in (("members, test", "true gap, members"), ("latecomers, test", "true gap, latecomers")):
        assert first[gap] == pytest.approx(first[f"{who} examples"] - first["members, training examples"])


def test_how_far_models_are_from_their_prior(runs: Callable[[str], Path]) -> None:
    """The KL of the models, client by client and without the certificate: of PeFLL |theta|^2 / 2; of FLowDUP the place
    that h makes of all of a member's examples, less psi_r, of members with labels and without."""
    run = Trained.load(runs("pefll"))
    clients = Clients(Loop(run.method, run.federations, "cpu"), torch.arange(run.federations[0].members), -1, scratch=0)
    models: Any = run.method.personalise(run.states[0], clients)
    terms = named(certify(run, {"draws": 2, "device": "cpu", "sigma": (1e-9,), "sigma_model": (1.0,)}).terms)
    assert terms["KL of the models"] == pytest.approx(squared_norm(models.each["params"]) / 2, rel=1e-6)

    run = Trained.load(runs("flowdup"))
    method: Any = run.method
    psi, federation, loop = run.states[0]["psi"], run.federations[0], Loop(run.method, run.federations, "cpu")
    psi["r"] += 0.5  # after two rounds it is hardly away from 0
    far = 0.0
    for client in range(federation.members):
        place = method.h(psi, loop.home(0, client, -1, 0).all())
        far += float((place - psi["r"]).double().square().sum())
    spreads = {"sigma": (1e-9,), "sigma_model": (1.0,), "sigma_prior": (2.0, 2.0)}
    terms = named(certify(run, {"draws": 2, "device": "cpu", **spreads}).terms)
    spread = federation.members * len(psi["r"]) * 4.0
    assert terms["KL of the models"] == pytest.approx((far + spread) / 2, rel=1e-6)
    assert terms["KL of psi_r"] == pytest.approx(float(psi["r"].double().square().sum()) / 8)
    assert terms["delta"] == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("method", "within", "parts"), [("pefll", "learned", ["hyper"]), ("flowdup", "psi", ["h1", "h2"])]
)
def test_a_prior_may_be_centred_where_training_began(
    method: str, within: str, parts: list[str], runs: Callable[[str], Path]
) -> None:
    """The initial weights follow from the seed alone; after two rounds the learned ones are near them, far from 0."""
    run = Trained.load(runs(method))
    start = run.method.init(torch.Generator().manual_seed(0))[within]
    far = sum(
        float((run.states[0][within][name][leaf] - start[name][leaf]).double().square().sum())
        for name in parts
        for leaf in start[name]
    )
    zero, begun = (
        named(certify(run, {"draws": 2, "prior": prior, "device": "cpu"}).terms) for prior in ("zero", "start")
    )
    name = "|eta_h|^2" if method == "pefll" else "|psi_h|^2"
    assert 0 < begun[name] < 0.05 * zero[name]
    assert begun[name] == pytest.approx(far)
    assert begun["bound"] < zero["bound"]
    if method == "pefll":  # the scalars begin at mean 0 and standard deviation 1
        standard = run.states[0]["standard"]
        scalars = float(standard["mean"]) ** 2 + math.log(standard["std"]) ** 2
        assert zero["|scalars|^2"] == begun["|scalars|^2"] == pytest.approx(scalars, rel=1e-6)
        networks = zero["|eta_h|^2"] + zero["|eta_v|^2"] + scalars
        assert zero["KL of the networks"] == pytest.approx(networks / (2 * 0.01**2))


def test_verdicts() -> None:
    made = Certificate("", [], 0.5, "", [], [])
    assert "not vacuous" in made.verdict
    assert not made.vacuous
    assert "is vacuous" in replace(made, bound=math.nan).verdict
    guess = replace(made, bound=5.0, floor=0.5)
    assert not guess.vacuous
    assert "an estimate" in guess.verdict
    assert "at least 0.5), but it is no certificate" in guess.verdict
    assert replace(guess, floor=1.5).vacuous
    assert "It is at least 1.5, so it is vacuous" in replace(guess, bound=0.7, floor=1.5).verdict


def with_settings(run: Trained, **settings: Any) -> Trained:
    """The same run with the same data, as if it had been told something else."""
    told = replace(run.experiment.settings, **settings)
    other = replace(run, experiment=replace(run.experiment, settings=told))
    vars(other)["federations"] = run.federations
    return other


def test_a_certificate_says_where_a_run_is_not_what_the_theorem_asks(runs: Callable[[str], Path]) -> None:
    def said(run: Trained, **asked: Any) -> str:
        return ". ".join(certify(run, {"device": "cpu", **asked}).assumes)

    two = {"draws": 2}
    run = Trained.load(runs("pefll"))
    for words in ("on purpose", "seeds", "--continue-from"):
        assert words not in said(run, **two, prior="start")
    other = with_settings(run, unlike=0.5, unseen_rotations=(45,), continue_from="elsewhere")
    assert "--unlike and --unseen-rotations made unlike members on purpose: the bound promises" in said(other, **two)
    assert "--continue-from" not in said(other, **two)
    assert "--continue-from, training began with others" in said(other, **two, prior="start")
    several = with_settings(replace(run, states=run.states * 3))
    assert "for one of the run's 3 seeds, if it was chosen (--server) before" in said(several, **two)
    assert "--unseen-alpha made" in said(with_settings(Trained.load(runs("flowdup")), unseen_alpha=5.0), **two)
    odpfl = said(with_settings(Trained.load(runs("odpflhn")), unlike=1.0, permutations=3), **two)
    assert "--unlike made" in odpfl
    assert "with --permutations it does not" in odpfl

    run = Trained.load(runs("knnper"))
    assert "Were the run as the theorem asks, which it is not" in certify(run, {"device": "cpu"}).holds
    assert "which join the datastore" in said(run)
    assert "began with another" not in said(run)
    assert "began with another" in said(with_settings(run, start="elsewhere"))
    small = replace(run, method=replace(cast(KnnPer, run.method), capacity=0.5, store_validation=False))
    assert "datastores are smaller" in said(small)
    assert "which join the datastore" not in said(small)


@pytest.mark.parametrize("method", THEOREMS)
def test_members_without_test_examples_have_no_gap(method: str, runs: Callable[[str], Path]) -> None:
    """As with --split flowdup, where all that is left is the latecomers'."""
    run = Trained.load(runs(method))
    (one,) = run.federations
    rows = [[] if client < one.members else one.test[client] for client in range(len(one))]
    vars(run)["federations"] = [replace(one, test=Rows.of(rows))]
    found = certify(run, {"device": "cpu"} | ({} if method == "knnper" else {"draws": 2}))
    assert "has no true gap of members beside it, for they have no test examples" in found.assumes
    names = [name for name, _ in found.risks]
    assert not any("members, test" in name or "gap, members" in name for name in names)
    assert any("gap, latecomers" in name for name in names)
    assert not any(math.isnan(risk) for _, risk in found.risks)


def test_what_cannot_be_certified_is_one_sentence(
    runs: Callable[[str], Path], command: Command, tmp_path: Path
) -> None:
    refused = command("certify", runs("fedavg"))
    assert refused.code == 2
    assert "no bound; there is one for pefll, flowdup, odpflhn, knnper" in refused.err
    assert command("certify").code == 2
    assert command("certify", tmp_path / "none").code == 2
    misspelt = command("certify", runs("pefll"), "--sigmas", 1)
    assert misspelt.code == 2
    assert "did you mean 'sigma'" in misspelt.err
    assert command("certify", runs("pefll"), "--delta", 0).code == 2
    assert "--sigma-prior" in command("certify", "flowdup", "--help").out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--sigma", 0], "--sigma must be greater than 0; got 0.0"),
        (["--sigma", "0.1,nan"], "--sigma must be greater than 0; got nan"),
        (["--sigma", ""], "--sigma needs a number"),
        (["--sigma-model", ","], "--sigma-model needs a number"),
        (["--delta", 1], "--delta must be at least 1e-100 and below 1; got 1.0"),
        (["--delta", 5e-324], "--delta must be at least 1e-100"),
        (["--delta-draws", "nan"], "--delta-draws must be at least 1e-100"),
        (["--delta", 0.9, "--delta-draws", 0.1], "are 1 or more together"),
        (["--draws", 0], "--draws must be at least 2; got 0"),
        (["--draws", 2, "--device", "tpu"], "--device must be cpu, cuda or auto; got 'tpu'"),
        (["--server", 7], "has no seed 7"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    words: list[Any], sentence: str, runs: Callable[[str], Path], command: Command, tmp_path: Path
) -> None:
    refused = command("certify", runs("pefll"), "-o", tmp_path, *words)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert sentence in refused.err
    assert not (tmp_path / "certificate.json").exists()


@pytest.mark.parametrize("sigma", [1e-320, 1e-200, 1e200, 1e308])
def test_spreads_beyond_all_reason_are_vacuous(sigma: float, runs: Callable[[str], Path]) -> None:
    """Their squares are 0, or more than any number; what comes of them is infinite, and said so."""
    asked = {"draws": 2, "device": "cpu"}
    for name in ("sigma", "sigma_model", "sigma_prior"):
        assert certify(runs("flowdup"), {**asked, name: (sigma,)}).vacuous
    assert certify(runs("pefll"), {**asked, "sigma": (sigma,)}).vacuous


def test_bounds_of_odpflhn_at_the_ends_of_their_range(runs: Callable[[str], Path]) -> None:
    asked = {"draws": 2, "device": "cpu"}
    assert certify(runs("odpflhn"), {**asked, "delta": 1e-100, "lipschitz": 1e100}).vacuous
    with pytest.raises(SettingError, match="--lipschitz must be at least 0 and at most 1e\\+100"):
        certify(runs("odpflhn"), {**asked, "lipschitz": 1e308})
