"""ODPFL-HN: an encoder describes a client by its examples without labels, a hypernetwork makes its model of that.

Amosy, Eyal, Chechik, WACV 2024. The encoder travels down, the descriptor back, the model down; no label is needed.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from .. import learn, optim, privacy, rounds, tree
from ..method import Clients, Generator, Home, Sending, Tensor, TrainsByPasses, Tree, asked_in, made, setting
from ..nets import sets
from ..nets.hyper import Hypernetwork


@dataclass(frozen=True, kw_only=True)
class ODPFLHN(TrainsByPasses):
    lr: float = setting(5e-3, "local learning rate", above=0, sweepable=True)
    momentum: float = setting(0.9, "local momentum, within a round", low=0, high=0.999, sweepable=True)
    weight_decay: float = setting(5e-5, "local weight decay", low=0, sweepable=True)
    clip: float = setting(50.0, "largest gradient norm, local and on the server; 0: no limit", low=0, sweepable=True)
    server: Literal["adam", "sgd"] = setting("adam", "what the server descends by; sgd wants ten times the rates")
    server_lr: float = setting(1e-3, "learning rate of the hypernetwork", above=0, sweepable=True)
    encoder_lr: float = setting(1e-3, "end to end: learning rate of the encoder", above=0, sweepable=True)
    embedding_lr: float = setting(1e-2, "two phases: learning rate of the members' embeddings", above=0, sweepable=True)
    imitate_lr: float = setting(
        1e-2, "two phases: learning rate of the encoder, by sgd on the client", above=0, sweepable=True
    )
    server_momentum: float = setting(0.9, "momentum on the server, of sgd", low=0, high=0.999, sweepable=True)
    server_decay: float = setting(1e-3, "weight decay on the server, of sgd", low=0, sweepable=True)
    training: Literal["end-to-end", "two-phases"] = setting("end-to-end", "how encoder and hypernetwork are trained")
    first_phase: int = setting(400, "two phases: rounds until the encoder is frozen and fine-tuning begins", low=0)
    encoder_steps: int = setting(5, "two phases: local steps a round that fit the encoder to the embedding", low=1)
    describe_by: int = setting(0, "a descriptor is the mean over random parts of so many examples; 0: of all", low=0)
    encoder: Literal["auto", "lenet", "dense"] = setting("auto", "sees an example; auto: lenet from 16 pixels on")
    width: int = setting(200, "units that are pooled over a client's examples", low=2)
    pool: sets.Pool = setting("mean-max", "one half of the units by mean and the other by maximum, or all by mean")
    after: int = setting(0, "hidden layers between pooling and descriptor", low=0)
    descriptor: int = setting(0, "size of a descriptor; 0: a quarter of the number of clients", low=0)
    hidden: int = setting(100, "width of the hypernetwork", low=1)
    depth: int = setting(3, "hidden layers of the hypernetwork after its first", low=0)
    epsilon: float = setting(0.0, "privacy of the descriptor a client sends to get a model; 0: none", low=0)
    delta: float = setting(1e-5, "probability that this privacy fails", above=0, high=0.999)
    bound: float = setting(0.0, "largest norm of an example's features (B); 0: no limit; privacy needs one", low=0)
    epsilon_budget: float = setting(0.0, "largest epsilon of all answers of a client together; 0: no limit", low=0)

    paper = {"split": "pfedhn", "cohort": 9, "rounds": 500}
    needs_labels = False

    describer: sets.SetEncoder = made()
    hyper: Hypernetwork = made()
    optimiser: optim.Parts = made()
    noise: float = made()

    def build(self) -> None:
        size = self.descriptor or max(2, self.clients // 4)
        phi, psi = sets.features(self.encoder, self.task, self.width), sets.layers(self.width, size, self.after)
        describer = sets.SetEncoder(phi, psi, self.pool, self.bound)
        self.set(describer=describer, hyper=Hypernetwork(size, self.task.model.shapes, self.hidden, self.depth))
        rates = {"hyper": self.server_lr, "encoder": self.encoder_lr, "embedding": self.embedding_lr}
        rule = (self.server_momentum, self.server_decay, self.clip, self.schedule)
        self.set(optimiser=optim.parts(self.server, rates, *rule))
        self.set(opening={"first_phase": "of the first phase"} if self.training == "two-phases" else {})
        self.set(noise=0.0 if (one := self.release("request")) is None else one.sigma * describer.sensitivity)

    # on the client

    @asked_in("round")
    def describe(self, home: Home, *, encoder: Tree) -> Tree:
        return {"v": self.describer.of(home, encoder, self.describe_by)}

    @asked_in("personalise")
    def request(self, home: Home, *, encoder: Tree) -> Tree:
        if not self.noise:
            return self.describe(home, encoder=encoder)
        mean, count = self.describer.mean(home, encoder, self.describe_by), home.all().real.sum().clamp(min=1)
        noisy = mean + self.noise / count * home.noise(len(mean), "request", torch.float64)
        return {"v": self.describer.describe(encoder, noisy.float())}  # then psi, of any weights; see docs/adr/0015

    @asked_in("round", answers="change")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    @asked_in("round", answers="averaged")
    def backprop(self, home: Home, *, encoder: Tree, dv: Tensor) -> Tree:
        _, pull = learn.pullback(lambda weights: self.describe(home, encoder=weights)["v"], encoder)
        return {"encoder": pull(dv)[0]}

    @asked_in("round", answers="change")
    def fit_and_imitate(self, home: Home, *, params: Tree, encoder: Tree, embedding: Tensor) -> Tree:
        steps, part = self.encoder_steps, self.describe_by
        batches = home.batches(steps, part, "imitate") if part else [home.all()] * steps
        imitate = learn.SGD(self.imitate_lr, clip=self.clip, schedule=self.schedule).at(home.round)
        change = imitate.change(lambda w, some: (self.describer(w, some) - embedding).square().sum(), encoder, batches)
        return {"params": self.fit(home, params=params), "encoder": change}

    def model(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        return params

    # on the server

    def init(self, generator: Generator) -> Tree:
        learned: Tree = {"hyper": self.hyper.fresh(generator), "encoder": self.describer.fresh(generator)}
        if self.training == "two-phases":
            learned["embedding"] = torch.randn(self.members, self.describer.size, generator=generator)
        return {"ids": torch.arange(self.members), "learned": learned, "optimiser": self.optimiser.init(learned)}

    def carry_over(self, state: Tree, fresh: Tree, origin: Tensor) -> Tree:
        return rounds.embeddings_of(origin, self.optimiser, state, fresh)

    def round(self, state: Tree, clients: Clients) -> Tree:
        first = self.training == "two-phases" and clients.round < self.first_phase
        learned, gradient = (self.embed if first else self.learn)(state, clients)
        learned, optimiser = self.optimiser.at(clients.round).step(learned, gradient, state["optimiser"])
        return state | {"learned": learned, "optimiser": optimiser}

    def learn(self, state: Tree, clients: Clients) -> tuple[Tree, Tree]:
        """End to end; and the second of two phases, in which the encoder stays as it is."""
        learned = state["learned"]
        described = clients.run(self.describe, shared={"encoder": learned["encoder"]})
        update, pull = rounds.fitted(clients, self.fit, self.hyper.generate, learned["hyper"], described.each["v"])
        dh, dv = pull(update.each)
        gradient = {"hyper": tree.scale(dh, 1 / update.labelled)}
        if self.training == "end-to-end":
            gradient |= clients.mean(self.backprop, each={"dv": dv}, recall=["encoder"], by="labelled")
        return learned, gradient

    def embed(self, state: Tree, clients: Clients) -> tuple[Tree, Tree]:
        """The first of two phases: embeddings and hypernetwork as in pFedHN, and an encoder that foretells them."""
        learned, rows = state["learned"], torch.searchsorted(state["ids"], clients.index)
        step, known = self.fit_and_imitate, tree.without(learned, ["encoder"])
        sent = {"shared": {"encoder": learned["encoder"]}, "each": {"embedding": learned["embedding"][rows]}}
        update, pull = rounds.fitted(
            clients, step, lambda own: self.hyper.generate(own["hyper"], own["embedding"][rows]), known, **sent
        )
        (gradient,) = pull(update.each["params"])
        encoder = tree.add(learned["encoder"], update.mean("labelled")["encoder"])
        return learned | {"encoder": encoder}, tree.scale(gradient, 1 / update.labelled)

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        v = self.described(state, clients)
        return Sending(each={"params": self.hyper.generate(state["learned"]["hyper"], v)})

    def described(self, state: Tree, clients: Clients) -> Tensor:
        return clients.run(self.request, shared={"encoder": state["learned"]["encoder"]}).each["v"]

    def release(self, step: str) -> privacy.Release | None:
        promise = (self.epsilon, self.delta, self.epsilon_budget)
        return privacy.Release.gaussian(*promise) if step == "request" and self.epsilon else None
