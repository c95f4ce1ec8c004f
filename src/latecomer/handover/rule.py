"""The rule by which a newcomer comes by its model, found by watching a method personalise a client that is made up.

- common: everybody gets the same weights;
- generate: the client makes its weights of its data, without training;
- describe: the client sends a descriptor, and the server makes weights of it;
- train: the client trains, and knows all that the server knows;
- fit: the server fits a descriptor over several turns, in which the client trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .. import tree
from ..clients import Ask, Clients
from ..data import Form
from ..data.federation import places
from ..errors import BundleError
from ..method import Method
from ..ops.shuffle import lot
from ..task import Batch, one_hot
from ..tree import Tree
from .export import MOST, Watch, made_up
from .trained import EVERYBODY, received

Name = Literal["common", "generate", "describe", "train", "fit"]
HELD = ("held_x", "held_y")  # examples that are held out, and their labels
FIRST, SECOND = (6, 3), (9, 5)  # examples and held-out examples of the two clients that are made up


class Guest:
    """The home of a client of which there are only tensors. What a step asks of it is written down."""

    def __init__(
        self,
        given: Mapping[str, Tensor],  # x, as a model sees it, y, and where there are any held_x, held_y, noise
        memory: Tree,
        lots: Callable[[str], Tensor],
        pad: int = 0,  # examples of padding behind the real ones
        dry: bool = False,  # one batch stands for all of them
    ) -> None:
        self.given, self.lot, self.pad, self.dry = given, lots, pad, dry
        self.round, self.budget = torch.tensor(EVERYBODY), places("M")
        self._memory = memory
        self.asked: dict[str, None] = {}  # a set that keeps its order
        self.kept = False
        self.drawn = 0  # of the noise

    @property
    def memory(self) -> Tree:
        return self._memory

    @memory.setter
    def memory(self, kept: Tree) -> None:
        self._memory, self.kept = kept, True

    def all(self, split: str = "train") -> Batch:
        names = {"train": ("x", "y"), "val": HELD}[split]
        self.asked |= dict.fromkeys(names)
        x, y = (self.given[name] for name in names)
        real = torch.ones_like(y, dtype=torch.bool)
        if self.pad:
            x = torch.cat([x, x.new_zeros(self.pad, *x.shape[1:])])
            y, real = torch.cat([y, y.new_full((self.pad,), -1)]), torch.cat([real, real.new_zeros(self.pad)])
        return Batch(x, y.long(), real)

    def counts(self, classes: int) -> Tensor:
        self.asked |= {"y": None}
        return one_hot(self.given["y"], classes).sum(0)

    def noise(self, size: int, purpose: str = "noise", dtype: torch.dtype | None = None) -> Tensor:
        self.asked |= {"noise": None}
        numbers = torch.zeros(size) if self.dry else self.given["noise"][self.drawn : self.drawn + size]
        self.drawn += size
        return numbers.to(dtype or torch.float32)

    def batch(self, size: int, purpose: str = "batch") -> Batch:
        return next(iter(self.batches(1, size, purpose)))

    def batches(self, steps: int, size: int, purpose: str = "batches") -> Sequence[Batch]:
        self.asked |= {"batches": None}
        return [self.all()]

    def epochs(self, count: int, size: int, purpose: str = "batches") -> Sequence[Batch]:
        return self.batches(count, size, purpose)


class Turned(Exception):
    """A client is asked for something in a turn of its own: nobody has to see how that ends."""


class Forgetful:
    """What engines have in common whose clients keep nothing that lasts."""

    device = torch.device("cpu")
    one_by_one = True

    def memories(self, run: int) -> Tree:
        return {}

    def remember(self, run: int, kept: Tree) -> None:
        """There is nowhere to keep it."""


@dataclass
class Dry(Forgetful):
    """An engine with one client, a guest; it writes down what the client is asked, sent and answers."""

    method: Method
    guest: Guest
    watch: Watch = field(default_factory=Watch)
    steps: list[tuple[str, Tree, Tree]] = field(default_factory=list)  # name, message, reply

    def exchange(self, step: str, asks: Sequence[Ask]) -> None:
        (ask,) = asks
        if ask.round < EVERYBODY:
            raise Turned
        message = ask.shared | ask.recalled | tree.row(ask.each, 0)
        with self.watch:
            reply: Tree = getattr(self.method, step)(self.guest, **message)
        self.steps.append((step, message, reply))
        ask.take(slice(0, 1), tree.map(lambda leaf: leaf[None], reply), torch.ones(1), torch.ones(1, dtype=torch.bool))


@dataclass(frozen=True, eq=False)
class Rule:
    """How a newcomer comes by its model, and what it takes."""

    name: Name
    method: Method
    form: Form
    memory: Tree
    lots: Callable[[str], Tensor]
    inputs: tuple[str, ...] = ()  # of the graph that runs on the client: x, y, held_x, held_y, noise
    noise: int = 0  # standard normal numbers that it takes
    step: str = ""  # describe: what the client is asked for
    sent: Tree = field(default_factory=dict)  # with what the client describes itself, or makes its model
    reply: Tree = field(default_factory=dict)  # describe: an answer
    model: Tree = field(default_factory=dict)  # a client's model
    free: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # of its leaves those that are no weights: `loose`

    @property
    def descriptor(self) -> int:
        """How many numbers describe a client."""
        return sum(leaf.numel() for leaf in tree.leaves(self.reply))

    @property
    def pad(self) -> int:
        """Where models grow with their clients' examples, padding makes sure that there are enough to search in."""
        return 128 if any(self.free.values()) else 0

    def encode(self, data: Mapping[str, Tensor], sent: Tree) -> Tree:
        """On the client: its descriptor, or its model."""
        given = {name: self.form.prepare(value) if name.endswith("x") else value for name, value in data.items()}
        home = Guest(given, self.memory, self.lots, self.pad)
        if self.name == "generate":
            return self.method.model(home, **sent)
        reply: Tree = getattr(self.method, self.step)(home, **sent)
        return {"descriptor": torch.cat([leaf.reshape(-1).float() for leaf in tree.leaves(reply)])}

    def logits(self, model: Tree, x: Tensor) -> Tensor:
        """What a client's model says of examples as they are stored."""
        return self.method.logits(model, self.form.prepare(x)).float()

    def example(self) -> dict[str, Tensor]:
        """Inputs of the graph that runs on the client, made up."""
        made = stored(self.form, *FIRST) | {"noise": torch.zeros(self.noise, dtype=torch.float64)}
        return {name: made[name] for name in self.inputs}


def stored(form: Form, count: int, held: int) -> dict[str, Tensor]:
    """Examples as they are stored, made up, and their labels."""
    x = made_up(form, count + held)
    y = (torch.arange(count + held) % form.classes).to(torch.int32)
    return {"x": x[:count].clone(), "y": y[:count].clone(), "held_x": x[count:].clone(), "held_y": y[count:].clone()}


def find(method: Method, form: Form, state: Tree, seed: int, graphs: bool = True) -> Rule:
    """The rule of a method; a BundleError where it has none that a stranger could follow.

    Where no graph can make a client's model (`graphs`), the client does it by the method itself, as if it trained.
    """
    kind = type(method).__name__
    if method.task.sizes:
        raise BundleError(f"{kind} with --budgets cannot be published: its clients have models of several sizes.")
    memory = method.memory(torch.Generator().manual_seed(seed))
    number, drawn = max(method.clients - 1, method.members), dict[str, Tensor]()

    def lots(purpose: str) -> Tensor:
        if purpose not in drawn:
            drawn[purpose] = lot(torch.tensor(seed), torch.tensor(number), purpose)
        return drawn[purpose]

    def meet(sizes: tuple[int, int]) -> tuple[Dry, Guest, Tree, Tree]:
        given = {k: form.prepare(v) if k.endswith("x") else v for k, v in stored(form, *sizes).items()}
        guest = Guest(given, memory, lots, dry=True)
        engine = Dry(method, guest)
        clients = Clients(engine, torch.tensor([number]), EVERYBODY, scratch=0)
        with torch.no_grad():
            sent = received(method.personalise(state, clients), clients)
            at_home = Guest(given, guest.memory, lots, dry=True)
            with engine.watch:
                model = method.model(at_home, **sent)
        return engine, at_home, sent, model

    none = Rule("train", method, form, memory, lots)
    try:
        engine, at_home, sent, model = meet(FIRST)
    except Turned:
        if not hasattr(method, "fitting") or memory:
            raise BundleError(
                f"{kind} cannot be published so: its clients keep something of their own while they are fitted."
            ) from None
        v = method.start(state, torch.tensor([number]))  # type: ignore[attr-defined]
        return replace(none, name="fit", reply={"v": v[0]}, model=tree.row(method.fitting(state).generate(v), 0))
    asked, trains = engine.guest.asked | at_home.asked, engine.watch.trains or engine.guest.kept
    answers = [one for one in engine.steps if one[2]]
    if "batches" in asked and answers and not trains:
        raise BundleError(f"{kind} cannot be published so: a newcomer draws random batches, which no graph can do.")
    if trains or "batches" in asked or (not answers and (engine.watch.calls > MOST or not graphs)):
        _check_public(method, state, [sent, *(message for _, message, _ in engine.steps)])
        return replace(none, model=model, free=loose(model, meet(SECOND)[3]))
    inputs = ("x", "y", *(name for name in (*HELD, "noise") if name in asked))
    if not asked:
        return replace(none, name="common", model=model)
    if not answers:
        free = loose(model, meet(SECOND)[3])
        return replace(none, name="generate", inputs=inputs, noise=at_home.drawn, sent=sent, model=model, free=free)
    if len(answers) > 1 or at_home.asked:
        raise BundleError(f"{kind} cannot be published: it asks a newcomer for more than one descriptor.")
    ((step, message, reply),) = answers
    told: dict[str, Any] = {
        "inputs": inputs,
        "noise": engine.guest.drawn,
        "step": step,
        "sent": message,
        "reply": reply,
    }
    return replace(none, name="describe", model=model, **told)


def loose(a: Tree, b: Tree) -> dict[str, tuple[int, ...]]:
    """The leaves that cannot lie in a file of weights, where two models differ in size, and whole numbers, which ONNX
    may want to know when it loads a graph; and the dimensions in which they differ.
    """
    found = {}
    for path, leaf in tree.flatten(a).items():
        other = tree.flatten(b)[path]
        if leaf.shape != other.shape or not leaf.is_floating_point():
            found[path] = tuple(k for k in range(leaf.ndim) if leaf.shape[k] != other.shape[k])
    return found


def _check_public(method: Method, state: Tree, messages: Sequence[Tree]) -> None:
    """Clients that train alone need the server's state, so all of it must be what clients are sent anyway."""
    sent = {leaf.data_ptr() for message in messages for leaf in tree.leaves(message)}
    secret = sorted({path.partition("/")[0] for path, x in tree.flatten(state).items() if x.data_ptr() not in sent})
    if secret:
        raise BundleError(
            f"{type(method).__name__} cannot be published: a newcomer trains, and the server's state holds what "
            f"clients are not sent ({', '.join(secret)})."
        )
