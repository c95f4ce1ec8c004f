"""A client that was never seen in training gets a model; without labels, where the method says that it can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import toys
from latecomer import methods
from latecomer.clients import Clients
from latecomer.errors import SettingError
from latecomer.evaluate import evaluate
from latecomer.method import Method, asked_in
from latecomer.runs.experiment import Experiment
from latecomer.sweep.lockstep import Lockstep
from latecomer.task import Home
from latecomer.tree import Tree

LATE = torch.arange(toys.MEMBERS, len(toys.TRAIN))


def with_probe(method: Method) -> Method:
    """The same method with one more step, which shows what a client's model says about its test examples."""

    @asked_in("personalise")
    def probe(self: Method, home: Home, **sent: Tree) -> Tree:
        batch = home.all("test")
        return {"logits": self.predict(home, batch.x, **sent)}

    kind = type(method)
    copy = object.__new__(type(kind.__name__, (kind,), {"probe": probe}))
    copy.__dict__.update(method.__dict__)
    return copy


def late_logits(name: str, engine: str, labelled: bool) -> tuple[Tensor, Any]:
    method = with_probe(toys.method(name))
    federation = toys.federation(labelled=(True,) * toys.MEMBERS + (labelled,) * len(LATE))
    made = toys.engine(engine, method, [federation])
    state, _ = toys.rounds(method, made, 2)
    clients = Clients(made, LATE, -1, scratch=1)
    sent = method.personalise(state, clients)
    replies = Clients(made, LATE, -1, scratch=1, held=clients.held).send(method.probe, sent)  # type: ignore[attr-defined]
    assert replies.heard.all(), "some logits are not finite"
    (scores,) = evaluate([method], [state], Lockstep(made), [LATE], number=2)
    return replies.each["logits"], scores


@pytest.mark.parametrize("engine", ["vector", "flower"])
def test_a_latecomer_gets_a_model(variant: str, engine: str) -> None:
    logits, scores = late_logits(variant, engine, labelled=True)
    assert logits.shape == (len(LATE), 5, 10)
    assert logits.std(-1).min() > 0, "a model that says the same of every class is none"
    assert scores.accuracy().isfinite().all()
    assert all(0 <= value <= 100 for value in scores.summary().values())
    federation = toys.federation()
    for k, client in enumerate(LATE.tolist()):
        own, truth = (federation.examples.y[rows[client].long()] for rows in (federation.train, federation.test))
        among_own = torch.full((10,), -torch.inf).index_fill(0, own.unique(), 0.0) + logits[k]
        expected = [(guess.argmax(-1) == truth).sum().item() for guess in (logits[k], among_own)]
        assert scores.counts["test"][k].tolist() == [expected[0], 5, expected[1]], "both scores are of the same logits"


@pytest.mark.parametrize("engine", ["vector", "flower"])
def test_a_latecomer_gets_a_model_without_labels(name: str, engine: str) -> None:
    """Or, where the method cannot do that, a sentence that says so before anything is trained."""
    if methods.get(name).needs_labels:
        experiment = Experiment.parse(name, {"clients": 20, "unseen": 0.2, "unseen_labelled": False})
        with pytest.raises(SettingError, match="needs a latecomer's labels"):
            experiment.method(experiment.federations())
        return
    logits, scores = late_logits(name, engine, labelled=False)
    assert logits.std(-1).min() > 0
    assert scores.accuracy().isfinite().all(), "test labels score, also where a client may not see its own"
    assert scores.accuracy("val").isnan().all(), "validation labels of the unlabelled stay hidden"


def test_one_latecomer_does_not_affect_another(variant: str) -> None:
    method = toys.method(variant, torch.float64)
    made = toys.engine("vector", method, [toys.federation()])
    state, _ = toys.rounds(method, made, 1)
    (together,) = evaluate([method], [state], Lockstep(made), [torch.arange(len(toys.TRAIN))], number=1)
    for number, client in enumerate(LATE.tolist(), start=2):
        (alone,) = evaluate([method], [state], Lockstep(made), [torch.tensor([client])], number=number)
        assert torch.equal(alone.counts["test"][0], together.counts["test"][client])
