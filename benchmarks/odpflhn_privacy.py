"""ODPFL-HN with private descriptors: accuracy of latecomers against how many examples they have (Figure 5).

LATECOMER_DATA=... python benchmarks/odpflhn_privacy.py [RUN] [--epsilons 10,1,0.1] [--sizes 10,30,100,300] [--draws 5]
                                                        [any setting of `latecomer run odpflhn`]

With the folder of a run, the encoder and hypernetwork of its best round serve; else one is trained first, in which
validators, strangers without labels themselves, choose the round. They are not among the latecomers, whom the curves
show. Only requests are private, so one training serves every epsilon; it must have had --pool mean and a --bound. First
it is tried whether descriptors matter at all: with a client's own, with the mean of all, and with another client's.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from common import where
from latecomer import tree
from latecomer.cli import flags
from latecomer.clients import Clients, Engine
from latecomer.data import Federation
from latecomer.evaluate import Scores
from latecomer.method import Method
from latecomer.methods.odpflhn import ODPFLHN
from latecomer.runs import host
from latecomer.runs.experiment import Experiment
from latecomer.runs.folder import Folder
from latecomer.runs.run import Run
from latecomer.runs.settings import Settings
from latecomer.train import Training
from latecomer.tree import Tree
from runs import restored

SETTING = {"data": "cifar10", "partition": "classes", "clients": "100", "unseen": "0.1", "unseen_labelled": "false"}
SETTING |= {"validators": "0.1"}
PRIVATE = {"pool": "mean", "bound": "1", "seeds": "3"}


def main() -> None:
    print(where())
    words = sys.argv[1:]
    path = words.pop(0) if words and not words[0].startswith("-") else ""
    chosen = {"epsilons": "10,1,0.1", "sizes": "10,30,100,300", "draws": "5"}
    for name in chosen:
        given, words = flags.pull(words, name)
        chosen[name] = given or chosen[name]
    epsilons = [float(word) for word in chosen["epsilons"].split(",")]
    if path:
        curves(Path(path), epsilons, [int(word) for word in chosen["sizes"].split(",")], int(chosen["draws"]))
        return
    given_settings = flags.given(words, Settings, ODPFLHN)
    with tempfile.TemporaryDirectory() as folder:
        values = SETTING | PRIVATE | {"out": folder, "name": "run"} | given_settings
        print({key: value for key, value in values.items() if key != "out"})
        experiment = Experiment.parse("odpflhn", values)
        host.prepare(experiment.settings)
        result = Run.begin(experiment).go(show)
        print(result)
        curves(Path(folder) / "run", epsilons, [int(word) for word in chosen["sizes"].split(",")], int(chosen["draws"]))


def show(training: Training, metrics: dict[str, Any] | None) -> None:
    if metrics is not None and metrics["round"] % (5 * training.plan.evaluate_every) == 0:
        validation = fmean(run["validation"] for run in metrics["runs"])
        print(f"{metrics['seconds']:7.1f} s  round {metrics['round']:5}  validation {validation:5.2f}", flush=True)


def curves(path: Path, epsilons: list[float], sizes: list[int], draws: int) -> None:
    """One row a size, one column an epsilon: mean accuracy of the latecomers, and its standard error over them."""
    folder = Folder.open(path)
    experiment = Experiment.read(folder.settings, path / "settings.toml")
    exchanged(asked_with(experiment, folder, 0.0, 0))
    if not experiment.own["bound"]:
        print("This run has no --bound, so nothing it sends can be private.")
        return
    print(f"{'examples':>9}" + "".join(f"{f'epsilon {epsilon:g}':>18}" for epsilon in epsilons) + f"{'no privacy':>18}")
    for size in sizes:
        cells = []
        for epsilon in [*epsilons, 0.0]:
            training = asked_with(experiment, folder, epsilon, size)
            cells.append(latecomers(training, draws if epsilon else 1))
        real = fmean(float(f.train.sizes[f.first_late :].float().mean()) for f in training.federations)
        print(f"{real:9.1f}" + "".join(f"{mean:11.2f} ± {error:4.2f}" for mean, error in cells), flush=True)


def asked_with(experiment: Experiment, folder: Folder, epsilon: float, size: int) -> Training:
    """The trained networks, and clients that have at most so many examples."""
    fewer = dataclasses.replace(experiment.settings, examples=size)
    return restored(Experiment(fewer, {**experiment.own, "epsilon": epsilon}), folder)


def exchanged(training: Training) -> None:
    """Accuracy of each group of clients, mean over seeds, with the right descriptor and with wrong ones."""
    method, engine = training.methods[0], training.engine
    assert isinstance(method, ODPFLHN)
    for group in ("members", "validators", "latecomers"):
        if not any(len(some(federation, group)) for federation in training.federations):
            continue
        found: dict[str, list[float]] = {"own": [], "mean": [], "another's": []}
        for run, (federation, best) in enumerate(zip(training.federations, training.best, strict=True)):
            assert best is not None
            ids, learned = some(federation, group), best.state["learned"]
            v = Clients(engine, ids, -1, run, scratch=1).run(method.request, shared={"encoder": learned["encoder"]})
            own = v.each["v"]
            for kind, given in zip(found, (own, own.mean(0).expand_as(own), own.roll(1, 0)), strict=True):
                params = method.hyper.generate(learned["hyper"], given)
                counts = Clients(engine, ids, -1, run, scratch=1).run(method.score, each={"params": params}).each
                found[kind].append(float(Scores(ids, counts).accuracy().nanmean()))
        print(f"{group}, by descriptor: " + ", ".join(f"{kind} {fmean(each):.2f}" for kind, each in found.items()))


def some(federation: Federation, group: str) -> torch.Tensor:
    """The ids of a group of clients."""
    ids, ends = torch.arange(len(federation)), (federation.members, federation.first_late)
    parts = ids.tensor_split(ends)
    return dict(zip(("members", "validators", "latecomers"), parts, strict=True))[group]


def latecomers(training: Training, draws: int) -> tuple[float, float]:
    """Accuracy over latecomers, seeds and draws of the noise; the standard error is over latecomers and seeds."""
    each: list[float] = []
    for run, (federation, best) in enumerate(zip(training.federations, training.best, strict=True)):
        assert best is not None
        ids = some(federation, "latecomers")
        found = [score(training.methods[0], training.engine, best.state, run, ids, draw) for draw in range(draws)]
        each += torch.stack(found).nanmean(0).tolist()
    return fmean(each), stdev(each) / math.sqrt(len(each))


def score(method: Method, engine: Engine, state: Tree, run: int, ids: torch.Tensor, draw: int) -> torch.Tensor:
    """As an evaluation does it, but in a round of its own, because in a simulation the noise follows from the round."""
    clients = Clients(engine, ids, -1 - draw, run_index=run, scratch=draw)
    sent = method.personalise(state, clients)
    again = Clients(engine, ids, -1 - draw, run_index=run, scratch=draw, held=clients.held)
    counts = again.run(method.score, shared=sent.shared, each=sent.each, recall=sent.recall).each
    return Scores(ids, tree.to(counts, torch.device("cpu"))).accuracy()


if __name__ == "__main__":
    main()
