"""Processors: what happens to a reply on its way, in rounds of training and for any method.

    step -> reply -> clip -> noise -> top-k -> quantise -> (network) -> dequantise -> spread out -> clip -> server

Each has two sides, which nest like parentheses: `encode`, on the client, for one client's tree, and `decode`, on the
server, for one row. Top-k and quantisation lose something, and what they lose waits on the client for the next round
(error feedback; Seide et al., Interspeech 2014; Stich et al., NeurIPS 2018). Clipping and noise come before them, so
that all behind the noise is a function of what was made private.

What a client sends tells its own form. In the place of a leaf whose shape or kind is lost stands an empty tensor of
that kind, [0, *shape], which costs no byte. Names that begin with `~` are made here, and no reply of a method has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.func import vmap

from . import privacy, tree
from .errors import ProtocolError, SettingError, UnknownName
from .privacy import Release
from .steps import Answers, listed
from .task import Home
from .tree import Tree

VALUES, PLACES, SHAPES = "~values", "~places", "~shapes"  # of a sparse reply
CODES, SCALE, LIKE = "~codes", "~scale", "~like"  # of a quantised leaf
SMALL = 16  # numbers of a leaf that are not worth a scale of their own
FAR = 6  # standard deviations by which the norm of honest noise is never longer than expected (once in 10^9 replies)

Noise: TypeAlias = Callable[[int, torch.dtype], Tensor]
"""So many standard normal numbers of a kind."""


class Processor(Protocol):
    """One of the stack; a frozen dataclass, so that stacks compare."""

    @property
    def lossy(self) -> bool:
        """Whether what is sent is less than the reply, so that something is left for the next time."""

    def encode(self, reply: Tree, answers: Answers, noise: Noise) -> Tree:
        """On the client, for one client; under `vmap` and in a captured graph, so without a look at numbers."""

    def decode(self, reply: Tree) -> Tree:
        """On the server, for one row."""


@dataclass(frozen=True)
class Clip:
    """All floating-point numbers of a reply together get a norm of at most `bound`."""

    bound: float
    lossy = False

    def __str__(self) -> str:
        return f"clip={_shortest(self.bound)}"

    def encode(self, reply: Tree, answers: Answers, noise: Noise) -> Tree:
        return self.decode(reply)

    def decode(self, reply: Tree) -> Tree:
        """Again on the server, which believes nobody."""
        return clipped(reply, self.bound)


@dataclass(frozen=True)
class LocalNoise:
    """Local differential privacy: a client clips its reply and adds noise, which nobody else knows.

    Two replies within the bound are twice the bound apart at most: that is how much the exchange of all of a client's
    data for any other can change one, its sensitivity, and the standard deviation is `times` that.
    """

    clip: Clip
    times: float
    lossy = False

    def __str__(self) -> str:
        return f"{self.clip},noise={_shortest(self.times)}"

    @property
    def deviation(self) -> float:
        return self.times * 2 * self.clip.bound

    def encode(self, reply: Tree, answers: Answers, noise: Noise) -> Tree:
        """What is not finite counts as nothing: else a server could learn, by the silence, what noise is to hide."""
        known = tree.where(tree.finite(reply), reply, tree.map(torch.zeros_like, reply))
        return noisy(clipped(known, self.clip.bound), self.deviation, noise)

    def decode(self, reply: Tree) -> Tree:
        """As far as one can tell: an honest reply is not longer than the bound and the longest noise to be expected."""
        size = sum(leaf.numel() for leaf in tree.leaves(floats(reply)))
        return clipped(reply, self.clip.bound + self.deviation * (math.sqrt(size) + FAR))


@dataclass(frozen=True)
class CentralNoise:
    """Central differential privacy: clients clip, and a server that they trust adds noise to the sum of their replies.

    Another reply of one client moves the sum by twice the bound at most.
    """

    clip: Clip
    times: float
    lossy = False

    def __str__(self) -> str:
        return f"{self.clip},central={_shortest(self.times)}"

    def encode(self, reply: Tree, answers: Answers, noise: Noise) -> Tree:
        cover(reply)
        return clipped(reply, self.clip.bound)

    def decode(self, reply: Tree) -> Tree:
        cover(reply)
        return clipped(reply, self.clip.bound)

    def add(self, total: Tree, noise: Noise) -> Tree:
        return noisy(total, self.times * 2 * self.clip.bound, noise)


@dataclass(frozen=True)
class TopK:
    """Of a change, the share of its numbers that are largest in magnitude, and where they belong."""

    share: float
    lossy = True

    def __str__(self) -> str:
        return f"topk={_shortest(self.share)}"

    def encode(self, reply: Tree, answers: Answers, noise: Noise) -> Tree:
        parts = tree.leaves(floats(reply))
        if answers == "message" or not sum(part.numel() for part in parts):
            return reply
        vector = torch.cat([part.reshape(-1) for part in parts])
        count = math.ceil(Fraction(str(self.share)) * len(vector))  # a float would make 8 of 0.07 * 100
        places = vector.abs().topk(count, sorted=False).indices  # what is not a number counts as largest, and is sent
        shapes = with_floats(reply, [part.new_empty(0, *part.shape) for part in parts])
        return {VALUES: vector[places], PLACES: places.int(), SHAPES: shapes}

    def decode(self, reply: Tree) -> Tree:
        if reply.keys() != {VALUES, PLACES, SHAPES}:
            return reply
        values, places, likes = reply[VALUES], reply[PLACES].long(), tree.leaves(floats(reply[SHAPES]))
        sizes = [like.shape[1:].numel() for like in likes]
        outside = ((places < 0) | (places >= sum(sizes))).any()
        vector = values.new_zeros(sum(sizes)).scatter(0, places.clamp(0, sum(sizes) - 1), values)
        vector = torch.where(outside, torch.nan, vector)  # nonsense is silence
        parts = zip(vector.split(sizes), likes, strict=True)
        return with_floats(reply[SHAPES], [part.reshape(like.shape[1:]).to(like.dtype) for part, like in parts])


@dataclass(frozen=True)
class Quantise:
    """A floating-point leaf of more than a few numbers becomes whole numbers of 8 or 4 bits and a scale, float32."""

    bits: int
    lossy = True

    def __str__(self) -> str:
        return f"quantise={self.bits}"

    @property
    def most(self) -> int:
        """The largest code."""
        return int(2 ** (self.bits - 1)) - 1

    def encode(self, reply: Tree, answers: Answers, noise: Noise) -> Tree:
        parts = [self._pack(leaf) if leaf.numel() > SMALL else leaf for leaf in tree.leaves(floats(reply))]
        return with_floats(reply, parts)

    def decode(self, reply: Tree) -> Tree:
        if reply.keys() == {CODES, SCALE, LIKE}:
            return self._unpack(reply)  # type: ignore[return-value]  # a leaf of the tree that calls this
        return {name: self.decode(value) if isinstance(value, dict) else value for name, value in reply.items()}

    def _pack(self, leaf: Tensor) -> Tree:
        numbers = leaf.reshape(-1).to(torch.promote_types(leaf.dtype, torch.float32))
        scale = (numbers.abs().amax() / self.most).float()  # not finite where a number is not
        codes = (numbers / torch.where(scale > 0, scale, 1).to(numbers.dtype)).round()
        codes = codes.nan_to_num().clamp(-self.most, self.most).to(torch.int8)
        return {CODES: codes if self.bits == 8 else in_pairs(codes), SCALE: scale, LIKE: leaf.new_empty(0, *leaf.shape)}

    def _unpack(self, packed: Tree) -> Tensor:
        like, shape = packed[LIKE], packed[LIKE].shape[1:]
        codes = packed[CODES] if self.bits == 8 else from_pairs(packed[CODES], shape.numel())
        kind = torch.promote_types(like.dtype, torch.float32)
        numbers: Tensor = codes.to(kind) * packed[SCALE].to(kind)
        return numbers.reshape(shape).to(like.dtype)


@dataclass(frozen=True)
class Processors:
    """A stack of processors, as a setting names it: `clip=1,noise=2,topk=0.01,quantise=8`."""

    stack: tuple[Processor, ...] = ()
    delta: float = 1e-5  # probability that the privacy of noise fails
    budget: float = 0.0  # largest epsilon of all answers of a client together; 0: no limit

    @staticmethod
    def parse(text: str, delta: float = 1e-5, budget: float = 0.0) -> Processors:
        """The stack that a text names, in the only order that keeps noise private."""
        given = {name: _number(name, value) for name, value in _parts(text)}
        stack: list[Processor] = []
        if "clip" in given:
            clip = Clip(given["clip"])
            times = given.get("noise", given.get("central", 0.0))
            stack.append(LocalNoise(clip, times) if "noise" in given else CentralNoise(clip, times) if times else clip)
        if "topk" in given:
            stack.append(TopK(given["topk"]))
        if "quantise" in given:
            stack.append(Quantise(int(given["quantise"])))
        made = Processors(tuple(stack), delta, budget)
        if (promise := made.promise) is not None and 0 < budget < promise.epsilon:
            raise SettingError(
                f"--privacy-budget must be 0, or at least the {promise.epsilon:.6g} that one answer spends with "
                f"--processors {made}; got {budget:g}."
            )
        return made

    def __str__(self) -> str:
        return ",".join(map(str, self.stack))

    def __bool__(self) -> bool:
        return bool(self.stack)

    @property
    def keeps(self) -> bool:
        """Whether clients keep what is left of a change."""
        return any(processor.lossy for processor in self.stack)

    # on the client

    def outgoing(self, reply: Tree, answers: Answers, home: Home, left: Tree, step: str) -> tuple[Tree, Tree]:
        """What one client sends in the place of its reply, and what is left of it for the next time.

        A reply that is not finite arrives as one, unless there is noise on it, and leaves what was left.
        """
        if strange := [path for path in tree.flatten(reply) if "~" in path]:
            raise ProtocolError(f"A reply has {listed(strange)}; with --processors no name may have a '~' in it.")

        def noise(size: int, kind: torch.dtype) -> Tensor:
            return home.noise(size, f"noise on {step}", kind)

        for processor in self.stack:
            if not processor.lossy:
                reply = processor.encode(reply, answers, noise)
        whole = with_floats(reply, tree.leaves(tree.add(floats(reply), left))) if left else reply
        wire = whole
        for processor in self.stack:
            if processor.lossy:
                wire = processor.encode(wire, answers, noise)
        if not left:
            return wire, {}
        after = tree.sub(floats(whole), floats(self._decoded(wire)))  # all that the server will not have
        return wire, tree.where(tree.finite(after), after, left)

    def left(self, reply_like: Tree, answers: Answers) -> Tree:
        """What is left before the first round, of a step whose replies have these shapes; empty: nothing is kept."""
        if answers == "message" or not self.keeps:
            return {}
        return tree.map(lambda leaf: torch.zeros(leaf.shape, dtype=leaf.dtype), floats(reply_like))

    # on the server

    def incoming(self, rows: Tree) -> Tree:
        """What was sent, one client a row, as replies."""
        return vmap(self._decoded)(rows) if self and tree.leaves(rows) else rows

    def _decoded(self, wire: Tree) -> Tree:
        for processor in reversed(self.stack):
            wire = processor.decode(wire)
        return wire

    @property
    def central(self) -> CentralNoise | None:
        """Noise that the server has to add to every sum, in which then each client weighs one."""
        return next((one for one in self.stack if isinstance(one, CentralNoise)), None)

    # privacy

    @cached_property
    def promise(self) -> Release | None:
        """What one answer in a round of training gives away, where noise limits it."""
        noises = [one for one in self.stack if isinstance(one, LocalNoise | CentralNoise)]
        if not noises:
            return None
        spent = privacy.epsilon(noises[0].times ** -2, self.delta)
        return Release(spent, self.delta, noises[0].times, self.budget)

    @property
    def covers(self) -> str:
        """Whom the promise protects, and from whom; empty where there is none."""
        if self.promise is None:
            return ""
        return "all of a client's data, replaced by any other's, in one answer" + (
            ", from all who see what the server learns but not from the server" if self.central else ""
        )

    @property
    def does_not_cover(self) -> str:
        """What is told all the same."""
        told = "personalisation and scores, how many labelled examples a client has, and that it took part"
        return told if self.promise else ""

    def check(self, method: str, answers: Mapping[str, Answers], releases: Collection[str]) -> None:
        """Refuse a stack that a method cannot keep: by what its steps in rounds answer, and which steps have noise."""
        if self.promise is not None and releases:
            raise SettingError(
                f"--processors {self} and {method}'s own noise, on {listed(releases)}, are two promises about the same "
                "examples; choose one of them."
            )
        if self.central is not None and (read := [step for step, kind in answers.items() if kind != "averaged"]):
            raise SettingError(
                f"--processors {self} adds noise to sums alone, but the server of {method} reads the replies to "
                f"{listed(read)} one by one; noise=, on the client, covers those."
            )


# trees


def floats(reply: Tree) -> Tree:
    """The floating-point leaves."""
    return tree.unflatten({path: leaf for path, leaf in tree.flatten(reply).items() if leaf.is_floating_point()})


def with_floats(reply: Tree, parts: Collection[Any]) -> Tree:
    """The same tree with other things in the place of its floating-point leaves, in their order."""
    others = iter(parts)
    return tree.map(lambda leaf: next(others) if leaf.is_floating_point() else leaf, reply)


def clipped(reply: Tree, bound: float) -> Tree:
    """With a norm of at most `bound`, all floating-point leaves together; what is not finite stays so."""
    parts = [leaf.reshape(-1).double() for leaf in tree.leaves(floats(reply))]  # whose squares do not overflow
    if not parts:
        return reply
    factor = (bound / torch.linalg.vector_norm(torch.cat(parts))).clamp(max=1)
    return tree.map(lambda leaf: leaf * factor.to(leaf.dtype) if leaf.is_floating_point() else leaf, reply)


def noisy(reply: Tree, deviation: float, noise: Noise) -> Tree:
    """With normal noise on every number."""
    cover(reply)
    sizes = [leaf.numel() for leaf in tree.leaves(reply)]
    if not sum(sizes):
        return reply
    drawn = noise(sum(sizes), tree.ravel(reply).dtype).split(sizes)
    parts = zip(tree.leaves(reply), drawn, strict=True)
    return with_floats(reply, [leaf + deviation * part.reshape(leaf.shape).to(leaf.dtype) for leaf, part in parts])


def cover(reply: Tree) -> None:
    """Refuse what noise cannot cover."""
    for path, leaf in tree.flatten(reply).items():
        if not leaf.is_floating_point():
            kind = str(leaf.dtype).removeprefix("torch.")
            raise SettingError(
                f"--processors cannot make this method private: {path!r} of a reply is {kind}, and noise covers "
                "floating-point numbers alone."
            )


def in_pairs(codes: Tensor) -> Tensor:
    """Codes of -7 to 7, two a byte."""
    shifted = (torch.cat([codes, codes.new_zeros(len(codes) % 2)]) + 8).to(torch.uint8).unflatten(0, (-1, 2))
    pairs: Tensor = shifted[:, 0] | (shifted[:, 1] << 4)
    return pairs


def from_pairs(pairs: Tensor, count: int) -> Tensor:
    """The way back."""
    return torch.stack([pairs & 15, pairs >> 4], 1).reshape(-1)[:count].to(torch.int8) - 8


# the setting

ORDER = ("clip", "noise", "central", "topk", "quantise")


def _parts(text: str) -> list[tuple[str, str]]:
    """Names and values, in order."""
    found = [(name.strip(), value.strip()) for part in text.split(",") for name, _, value in [part.partition("=")]]
    found = found if text.strip() else []
    names = [name for name, _ in found]
    for name in names:
        if name not in ORDER:
            raise UnknownName("processor", name, ORDER)
    if names != sorted(set(names), key=ORDER.index):
        raise SettingError(
            f"--processors takes each processor once, in the order {', '.join(ORDER)}, so that noise comes before what "
            f"loses something; got {text!r}."
        )
    if {"noise", "central"} <= set(names):
        raise SettingError("--processors takes noise, on the client, or central, on the server, and not both.")
    if {"noise", "central"} & set(names) and "clip" not in names:
        raise SettingError(f"--processors {text} needs clip= first: noise hides what has a bound.")
    return found


LIMITS: dict[str, tuple[float, float]] = {
    "clip": (1e-9, 1e9),
    "noise": (1e-3, 1e6),
    "central": (1e-3, 1e6),
    "topk": (1e-9, 0.999),
}


def _number(name: str, value: str) -> float:
    """The value of a processor, within its limits."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if name == "quantise":
        fits, allowed = number in (4, 8), "8 or 4 bits"
    else:
        low, high = LIMITS[name]
        fits, allowed = low <= number <= high, f"a number from {low:g} to {high:g}"
    if not fits:
        raise SettingError(f"--processors: {name} must be {allowed}; got {value!r}.")
    return number


def _shortest(number: float) -> str:
    """As a person would write it, and exactly."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)
