"""kNN-Per: one model for all, and at every client a vote of its own nearest examples. Marfoq et al., ICML 2022.

Algorithm 1. The model is trained by FedAvg, or comes from another run (`--start`). A client keeps the features of its
own examples; to predict, it blends the model's probabilities with a vote of the nearest. Only the model travels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch

from .. import rounds
from ..clients import Engine
from ..data.federation import Federation
from ..errors import SettingError
from ..method import Clients, Generator, Home, Sending, Tensor, TrainsByPasses, Tree, asked_in, setting
from ..nets.neighbours import Datastore, Kernel, Rule, Search, best, check_search, drawn, held, listed, lowered, room
from ..nets.prototypes import ProtoNN, Vote
from ..ops.shuffle import lot


@dataclass(frozen=True, kw_only=True)
class KnnPer(TrainsByPasses):
    lr: float = setting(0.03, "local learning rate", above=0, sweepable=True)
    batch: int = setting(128, "examples a batch", low=1)
    weight_decay: float = setting(5e-4, "local weight decay", low=0, sweepable=True)
    neighbours: tuple[int, ...] = setting((10,), "nearest examples that vote (k); of several a client chooses", low=1)
    sigma: tuple[float, ...] = setting(
        (1.0,), "scale of distances: the smaller, the more the nearest count; of several a client chooses", above=0
    )
    blends: tuple[float, ...] = setting(
        (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0), "weights of the vote (lambda) that a client tries", low=0, high=1
    )
    store_validation: bool = setting(
        True, "validation examples join the datastore once a client has chosen (not where data arrive in time)"
    )
    kernel: Kernel = setting("distance", "votes weigh exp(-distance / sigma), or as in the authors' code by its square")
    capacity: float = setting(1.0, "share of its examples that a client keeps", above=0, high=1, sweepable=True)
    weak: float = setting(0.0, "share of the clients that are weak, drawn at random", low=0, high=1, sweepable=True)
    weak_capacity: float = setting(0.1, "a weak client's capacity; 0: no datastore", low=0, high=1, sweepable=True)
    datastore: Rule = setting("all", "what it holds: all examples, or as they arrive the latest, all so far, the first")
    first: float = setting(0.5, "arriving data: share that is there at the beginning", low=0, high=1, sweepable=True)
    prototypes: int = setting(0, "learned prototypes a class in the place of examples (ProtoNN); 0: none", low=0)
    projection: int = setting(0, "width of the prototypes' learned projection; 0: the features as they are", low=0)
    prototype_steps: int = setting(100, "gradient steps that fit the prototypes", low=0)
    prototype_lr: float = setting(0.01, "learning rate of the prototypes", above=0, sweepable=True)
    search: Search = setting("auto", "how neighbours are found; auto: by FAISS where that is installed and pays")

    paper = {"rounds": 200, "cohort": 0, "lr_schedule": "step"}  # on CIFAR-10 and CIFAR-100

    def build(self) -> None:
        for name in ("neighbours", "sigma", "blends"):
            if not getattr(self, name):
                raise SettingError(f"--{name} needs at least one value.")

    # on the client

    @asked_in("round", answers="averaged")
    def fit(self, home: Home, *, params: Tree) -> Tree:
        return self.local.at(home.round).change(self.task.loss, params, home.epochs(self.epochs, self.batch))

    @asked_in("round", "personalise")
    def arrive(self, home: Home, *, first: Tensor, now: Tensor) -> Tree:
        """A time step: the shares of the client's examples that its datastore began with, and that have come by now."""
        home.memory = {"first": first, "now": now}
        return {}

    def model(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        return self.chosen(home, params, joined=self.store_validation and not home.memory)

    def logits(self, model: Tree, x: Tensor) -> Tensor:
        """Equation 7: probabilities, not logits, are blended."""
        features, logits = self.task.model.features(model["params"], x)
        votes, blend = self.vote(model["voters"], features)[model["kind"]][0], model["blend"]
        return torch.log((blend * votes + (1 - blend) * logits.softmax(-1)).clamp(min=1e-12))

    def predict_held_out(self, home: Home, split: str, x: Tensor, *, params: Tree) -> Tensor:  # type: ignore[override]
        """Validation examples choose, and select rounds, so the datastore that predicts them is without them."""
        if split == "val":
            return self.logits(self.chosen(home, params, joined=False), x)
        return self.predict(home, x, params=params)

    def report(self, home: Home, *, params: Tree) -> Tree:  # type: ignore[override]
        """What the client chose: lambda (0 where nobody can vote), and k and sigma where examples vote."""
        model = self.chosen(home, params, joined=False)
        blend, kind = model["blend"], model["kind"]
        if self.prototypes:
            return {"blend": blend}
        counts, sigmas = zip(*product(self.neighbours, self.sigma), strict=True)
        return {"blend": blend, "neighbours": listed(counts, blend)[kind][0], "sigma": listed(sigmas, blend)[kind][0]}

    def chosen(self, home: Home, params: Tree, joined: bool) -> Tree:
        """What validation examples choose with the datastore of training examples: lambda, the kind of vote. Then they
        may join it."""
        store, held_out = self.store(home, params), home.all("val")
        voters = self.vote.voters(store)
        features, logits = self.task.model.features(params, held_out.x)
        blend, kind = best(self.vote(voters, features), logits, held_out, self.blends)
        if joined:
            voters = self.vote.voters(store.joined(self.store(home, params, "val")))
        blend = torch.where(store.known.any(), blend, 0.0)  # there may be nobody to vote
        return {"params": params, "voters": voters, "blend": blend, "kind": kind}

    def store(self, home: Home, params: Tree, split: str = "train") -> Datastore:
        """Equation 3: the features of the client's examples, and their labels."""
        mine = home.all(split)
        count, place = mine.real.sum(), torch.arange(mine.y.shape[0], device=mine.y.device)
        most = self.most(count, home.lot("weak"))
        kept = drawn(place, count, home.lot(f"datastore {split}")) < most
        if home.memory:
            first, now = ((home.memory[name] * count).round() for name in ("first", "now"))
            kept = held(self.datastore, place, first, now, most)
        features, _ = self.task.model.features(params, mine.x)
        return Datastore(features, mine.y, (mine.weight > 0) & kept, self.task.classes, self.search)

    def most(self, examples: Tensor, drawn: Tensor) -> Tensor:
        """How many of its examples a client has room for, which depends on whether it drew to be weak."""
        return room(examples, torch.where(drawn < self.weak, self.weak_capacity, self.capacity))

    @property
    def vote(self) -> Vote:
        compress = ProtoNN(self.prototypes, self.projection, self.prototype_steps, self.prototype_lr)
        rule = (self.neighbours, self.sigma, self.kernel, self.task.classes, self.search)
        return Vote(*rule, compress if self.prototypes else None)

    def memory(self, generator: Generator) -> Tree:
        if self.datastore == "all":
            return {}
        return {"first": torch.tensor(self.first), "now": torch.ones(())}  # unless told otherwise, all have come

    # on the server

    def init(self, generator: Generator) -> Tree:
        return {"params": self.task.model.fresh(generator)}

    def round(self, state: Tree, clients: Clients) -> Tree:
        return rounds.average(self.fit, state, clients, by="examples")

    def personalise(self, state: Tree, clients: Clients) -> Sending:
        return Sending(shared=state)

    def review(self, federations: Sequence[Federation], engine: Engine, rounds: int = 0) -> list[str]:
        check_search(self.search, engine)
        sizes = [self.most(f.weight, lot(f.seed, torch.arange(len(f)), "weak")) for f in federations]
        if self.datastore in ("fifo", "fixed"):
            sizes = [(self.first * f.weight).round().minimum(size) for f, size in zip(federations, sizes, strict=True)]
        return [] if self.prototypes else lowered(self.neighbours, torch.cat(sizes))
