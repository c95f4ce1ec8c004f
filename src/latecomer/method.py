"""Method: what server and clients know before the first message. Settings and network shapes, never weights.

A method is one file in `methods/`, and one class in it:

- its settings, fields made by `setting(...)`; a mixin from below brings those that many methods have, and nothing else;
- `build`, where it needs networks: fields declared by `made()`, set from the settings;
- on the client: its steps, each declared by `@asked_in(...)`, its own `model`, which predicts by `logits`, and `memory`
  where a client keeps something;
- on the server: `init`, `round` and `personalise`. What several of them do is a function in `rounds.py`.

All names that stand in their signatures can be imported from here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from . import learn
from .clients import Clients, Engine, Sending
from .errors import SettingError
from .nets.net import Net
from .nets.subspace import Kind, Subspace
from .privacy import Release
from .processors import Processors
from .schedule import Course, Schedule
from .secure.fixed import Fixed
from .settings import check_ranges, flag, setting
from .steps import Phase, answers_of, asked_in, phases_of, steps
from .task import Batch, Batches, Home, Task
from .tree import Tree

if TYPE_CHECKING:
    from .data.federation import Federation

__all__ = [
    "Batch",
    "Batches",
    "Clients",
    "Generator",
    "Home",
    "InSubspace",
    "Method",
    "Sending",
    "Task",
    "Tensor",
    "TrainsByPasses",
    "TrainsBySGD",
    "TrainsBySteps",
    "Tree",
    "asked_in",
    "made",
    "setting",
]


def made() -> Any:
    """A field that `Method.build` sets from the others.

    For networks, and what is costly to make. What a client step uses of plain numbers, an optimiser say, is a property:
    then a copy of a method with another number needs no building.
    """
    return field(init=False, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One paper. Fields made by `setting(...)` are its hyperparameters; client steps are further methods of the class.

    In a client step, `self` is common knowledge, `home` is private, the keywords are the message and the return value
    is the reply: `def fit(self, home, *, params): ...` An `@asked_in("round")` above says when it may be asked for.
    """

    task: Task
    clients: int  # as many as sizes are made for: all there are, latecomers included, unless a run says otherwise
    members: int  # those that train; their ids are 0 .. members-1
    lr_schedule: Course = "constant"  # of all learning rates in training, on clients and on the server
    rounds: int = 0  # of training, which a schedule has to know
    processors: Processors = Processors()  # what answers go through on their way to the server
    secure: Fixed | None = None  # whether answers that are averaged travel under masks, and how they are rounded for it

    paper: ClassVar[Mapping[str, Any]] = {}
    """The run settings its paper uses, where they differ from latecomer's own defaults."""
    needs_labels: ClassVar[bool] = True
    """Whether a latecomer needs labelled examples to get a model."""
    serves_sizes: ClassVar[bool] = False
    """Whether clients can have models of different sizes, each as its budget allows."""
    opening: ClassVar[Mapping[str, str]] = {}
    """A setting that counts the rounds before the method proper begins, and what a training is that ends in them."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.lr_schedule != "constant" and not self.rounds:
            raise SettingError(f"A {self.lr_schedule} schedule has to know the rounds of training: give rounds=.")
        self.build()
        if self.processors:
            kind = type(self)
            rounds = [step for step in steps(kind) if "round" in phases_of(kind, step)]
            own = [step for step in steps(kind) if self.release(step) is not None]
            if self.processors.keeps and self.task.sizes:
                raise SettingError(
                    f"--processors {self.processors} keeps what is left of a change for the next one, which has "
                    "another shape where models come in several sizes; leave --budgets out, or take clip= alone."
                )
            self.processors.check(kind.__name__, {step: answers_of(kind, step) for step in rounds}, own)
        if self.secure is not None:
            self.secure.check(type(self), lossy=self.processors.keeps)

    def build(self) -> None:
        """Make networks from the settings, as fields declared by `made()`, and refuse settings that do not agree."""

    def set(self, **parts: Any) -> None:
        """Fill in fields declared by `made()`; for `build` alone, as a method is frozen after it."""
        for name, part in parts.items():
            object.__setattr__(self, name, part)  # the one place where a frozen method is still being made

    def with_numbers(self, **numbers: Tensor) -> Self:
        """The same method with tensors in the place of some settings; nothing is checked or built anew."""
        copied = object.__new__(type(self))
        copied.set(**vars(self) | numbers)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        """A method travels as its class and what it was given; networks are built again where it arrives."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return partial(type(self), **given), ()

    @property
    def schedule(self) -> Schedule:
        """For the optimisers of training, on clients and on the server."""
        return Schedule(self.lr_schedule, self.rounds)

    def settle(self, device: torch.device) -> None:
        """Have what networks need besides their weights, on a device and in this thread, before a step needs it."""
        for part in (self.task.model, *vars(self).values()):
            if isinstance(part, Net):
                part.frame  # noqa: B018  (made on first use)
                part.constants(torch.empty(0, device=device).device)  # with its number: "cuda" alone names no place

    def memory(self, generator: Generator) -> Tree:
        """What a client keeps before its first round; the same for all clients."""
        return {}

    @abstractmethod
    def init(self, generator: Generator) -> Tree:
        """The server's state before the first round."""

    def carry_over(self, state: Tree, fresh: Tree, origin: Tensor) -> Tree:
        """An earlier training's state, to go on with; for servers that keep something of each member's, in rows.

        Member k was member `origin[k]` there, or is new (-1). `fresh` is what `init` gives for the members of now.
        """
        return state

    @abstractmethod
    def round(self, state: Tree, clients: Clients) -> Tree:
        """One round with a cohort; returns a new state and changes nothing."""

    @abstractmethod
    def personalise(self, state: Tree, clients: Clients) -> Sending | Sequence[Sending]:
        """What to send so that these clients, members or latecomers, can `predict`; in parts where shapes differ."""

    def described(self, state: Tree, clients: Clients) -> Tensor | None:
        """What tells clients apart, a row each, for whoever studies a simulation: descriptors, embeddings, features.
        None: the method describes nobody.
        """
        return None

    @abstractmethod
    def model(self, home: Home, **sent: Tree) -> Tree:
        """On the client: its own model, from what `personalise` sent. It predicts with this and nothing else."""

    def logits(self, model: Tree, x: Tensor) -> Tensor:
        """What a client's own model says of examples: a row each, a column for every class."""
        return self.task.logits(model, x)

    def predict(self, home: Home, x: Tensor, **sent: Tree) -> Tensor:
        """On the client: logits for `x`, from what `personalise` sent."""
        return self.logits(self.model(home, **sent), x)

    def predict_held_out(self, home: Home, split: str, x: Tensor, **sent: Tree) -> Tensor:
        """On the client: logits for its examples of a held-out split, where the model may know those of the other."""
        return self.predict(home, x, **sent)

    def workspace(self, examples: int) -> int:
        """Bytes that a client step takes beside its model's activations: what grows faster than a client's examples."""
        return 0

    def release(self, step: str) -> Release | None:
        """What an answer to a step gives away of a client's examples, where the method's own noise limits that."""
        return None

    def gives_away(self, step: str, phase: Phase) -> Release | None:
        """What an answer gives away, by noise of the method's own or that of processors, in rounds; it is counted."""
        own = self.release(step)
        return self.processors.promise if own is None and phase == "round" else own

    def review(self, federations: Sequence[Federation], engine: Engine, rounds: int = 0) -> list[str]:
        """Before training: what a user should know about so many rounds on these data; raises where it cannot work."""
        return [
            f"All {rounds} rounds of {type(self).__name__} are {what}; "
            f"lower {flag(name)}, which is {first}, or raise --rounds."
            for name, what in self.opening.items()
            if 0 < rounds <= (first := getattr(self, name))
        ]

    def report(self, home: Home, **sent: Tree) -> Tree:
        """On the client: what its row in clients.csv says besides its scores, one number a name."""
        return {}

    @asked_in("score")
    def score(self, home: Home, **sent: Tree) -> Tree:
        """On the client: of each held-out split how many examples the personal model gets right, how many there are,
        and how many it gets right among the client's own classes. All methods know the same: the scores differ in what
        is done with the same logits. A model that answers NaN has no score, and that is silence.
        """
        counts = home.counts(self.task.classes)
        own = (counts > 0) | (counts.sum() == 0)  # without labels a client cannot know its classes: all
        scored: Tree = {}
        for split in ("val", "test"):
            batch = home.all(split)
            logits = self.predict_held_out(home, split, batch.x, **sent)
            known = batch.real & (batch.y >= 0)
            guesses = logits.argmax(-1), torch.where(own, logits, -torch.inf).argmax(-1)
            right, right_among_own = (((guess == batch.y) & known).sum() for guess in guesses)
            found = torch.stack([right, known.sum(), right_among_own]).float()
            broken = (logits.isnan().any(-1) & batch.real).any()
            scored[split] = torch.where(broken, torch.nan, found)
        report = self.report(home, **sent)
        return scored | {"report": report} if report else scored


@dataclass(frozen=True, kw_only=True)
class TrainsBySGD(Method):
    """A method whose clients train by SGD; how long they do, it says itself or one of the next two."""

    lr: float = setting(0.05, "local learning rate", above=0, sweepable=True)
    batch: int = setting(32, "examples a batch", low=1)
    momentum: float = setting(0.0, "local momentum, within a round", low=0, high=0.999, sweepable=True)
    weight_decay: float = setting(0.0, "local weight decay", low=0, sweepable=True)
    clip: float = setting(0.0, "largest gradient norm in local training; 0: no limit", low=0, sweepable=True)

    @property
    def local(self) -> learn.SGD:
        return learn.SGD(self.lr, self.momentum, self.weight_decay, self.clip, self.schedule)


@dataclass(frozen=True, kw_only=True)
class TrainsByPasses(TrainsBySGD):
    """Some passes over a client's data a round: what FedAvg and its kin share."""

    epochs: int = setting(1, "local passes over the data a round", low=1)


@dataclass(frozen=True, kw_only=True)
class TrainsBySteps(TrainsBySGD):
    """So many batches a round, whatever a client's data: what pFedHN and its kin share."""

    lr: float = setting(5e-3, "local learning rate", above=0, sweepable=True)
    steps: int = setting(50, "local batches a round", low=1)
    batch: int = setting(64, "examples a batch", low=1)
    momentum: float = setting(0.9, "local momentum, within a round", low=0, high=0.999, sweepable=True)
    weight_decay: float = setting(5e-5, "local weight decay", low=0, sweepable=True)
    clip: float = setting(50.0, "largest gradient norm, local and on the server; 0: no limit", low=0, sweepable=True)


@dataclass(frozen=True, kw_only=True)
class InSubspace(TrainsByPasses):
    """A method that knows models by their place in a random subspace of all weights: theta = theta_0 + P v."""

    dimension: int = setting(0, "size of the subspace (k); 0: 10,000, or a tenth of the weights if that is less", low=0)
    subspace: Kind = setting("kronecker", "the expansion P: a product of two small factors, or dense (small models)")
    subspace_seed: int = setting(
        0, "server and clients make theta_0 and P from it; all seeds in lockstep share them", low=0, high=10**9
    )

    space: Subspace = made()

    def build(self) -> None:
        task = self.task
        size = self.dimension or min(10_000, max(1, task.model.size // 10))
        dtype = task.dtype if task.dtype.is_floating_point else torch.float32
        self.set(space=Subspace.draw(task.model, self.subspace, size, self.subspace_seed, dtype))
