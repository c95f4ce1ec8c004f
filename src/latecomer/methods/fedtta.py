"""FedTTA: a common model, and a learned objective by which a client without labels adapts it.

Ye, Chen, Wang, Li, Gao: "UPFL", SDM 2024. A small network judges the model's logits; a client steps down its judgement.
Labelled members train model and judge together, so that the step does what labels would ask for.
"""

from dataclasses import dataclass

import torch

from .. import learn, tree
from ..method import Batch, Clients, Generator, Home, Method, Sending, Tensor, Tree, asked_in, made, setting
from ..nets.objective import LearnedLoss


@dataclass(frozen=True, kw_only=True)
class FedTTA(Method):
    lr: float = setting(0.01, "learning rate of the common model", above=0, sweepable=True)
    judge_lr: float = setting(0.01, "learning rate of the network that judges logits", above=0, sweepable=True)
    inner_lr: float = setting(0.01, "learning rate of a client that adapts the common model", above=0, sweepable=True)
    steps: int = setting(10, "local batches a round", low=1)
    batch: int = setting(25, "examples a batch", low=1)
    inner_steps: int = setting(1, "steps of adaptation on every batch in training", low=1)
    adapt_steps: int = setting(1, "steps of adaptation on all its data, of a client that wants its model", low=1)
    patience: int = setting(
        0, "FedTTA++: steps without less entropy after which adaptation stops, and goes back; 0: all steps", low=0
    )
    proxy: float = setting(0.0, "FedTTA-Prox: how strongly local predictions are held near the common model's", low=0)
    momentum: float = setting(0.9, "momentum of the judge, within a round", low=0, high=0.999, sweepable=True)
    weight_decay: float = setting(1e-4, "weight decay of model and judge, in adaptation too", low=0, sweepable=True)
    clip: float = setting(10.0, "largest gradient norm of model and judge; 0: no limit", low=0, sweepable=True)
    width: int = setting(32, "width of the judge", low=1)
    depth: int = setting(3, "hidden layers of the judge", low=1)

    needs_labels = False
    paper = {"rounds": 250, "cohort": 9}

    judge: LearnedLoss = made()

    def build(self) -> None:
        self.set(judge=LearnedLoss(self.task.classes, self.width, self.depth))

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, params: Tree, judge: Tree) -> Tree:
        def loss(parts: list[Tree], batch: Batch) -> Tensor:
            model, judge = parts
            total = self.task.loss(self.stepped(model, judge, batch), batch)  # through the steps, to both networks
            return total + self.proxy * self.gap(params, model, batch) if self.proxy else total

        outer = learn.SGD(self.lr, 0.0, self.weight_decay, self.clip, self.schedule)
        judges = learn.SGD(self.judge_lr, self.momentum, self.weight_decay, self.clip, self.schedule)
        begin = [learn.Part(outer.at(home.round), params), learn.Part(judges.at(home.round), judge)]
        model, judged = learn.jointly(loss, begin, home.batches(self.steps, self.batch))
        return {"params": tree.sub(model.params, params), "judge": tree.sub(judged.params, judge)}

    @asked_in("personalise")
    def adapt(self, home: Home, *, params: Tree, judge: Tree) -> Tree:
        own = kept = params
        least = self.task.entropy(params, home.all())
        waited = torch.zeros_like(least)
        for _ in range(self.adapt_steps):
            own = self.descended(home, own, judge)
            if not self.patience:
                kept = own
                continue
            entropy = self.task.entropy(own, home.all())
            better = (entropy < least) & (waited < self.patience)  # who has waited long enough has stopped
            kept, least = tree.where(better, own, kept), torch.where(better, entropy, least)
            waited = torch.where(better, 0.0, waited + 1)
        home.memory = {"params": kept}
        return {}

    def model(self, home: Home) -> Tree:  # type: ignore[override]
        return home.memory["params"]

    def memory(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def descended(self, home: Home, own: Tree, judge: Tree) -> Tree:
        """The model after one step down its judgement on all of the client's data."""
        batches = home.epochs(1, self.batch, "adapt")
        gradient = learn.mean_gradient(lambda model, batch: self.judgement(model, judge, batch), own, batches)
        inner = learn.SGD(self.inner_lr, 0.0, self.weight_decay, self.clip)
        return inner.step(own, gradient, {}, home.all().real.any())[0]

    def stepped(self, params: Tree, judge: Tree, batch: Batch) -> Tree:
        """The model after steps down its judgement on a batch, as a function that can be differentiated."""
        gradient = learn.flat_gradient(lambda model, batch: self.judgement(model, judge, batch), params)
        weights = tree.ravel(params)
        for _ in range(self.inner_steps):
            weights = weights - self.inner_lr * (gradient(weights, batch) + self.weight_decay * weights)
        return tree.unravel(weights, params)

    def judgement(self, params: Tree, judge: Tree, batch: Batch) -> Tensor:
        return self.judge.value(judge, self.task.logits(params, batch.x), batch.real)

    def gap(self, common: Tree, local: Tree, batch: Batch) -> Tensor:
        """The mean Kullback-Leibler divergence of the local predictions from the common model's."""
        sent, now = (torch.log_softmax(self.task.logits(params, batch.x), -1) for params in (common, local))
        return batch.mean(sent.exp() * (sent - now)).sum()

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator), "judge": self.judge.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return tree.add(state, clients.mean(self.fit, shared=state, by="examples"))

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        clients.run(self.adapt, shared=state)
        return Sending()
