"""The data side of an engine that holds its clients' examples: what `Home` promises, on packed federations.

A client is described by a row of twelve integers, so that a whole cohort reaches the device in one small copy and a
home can be made from one client row inside `vmap`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.federation import SPLITS, Federation
from ..data.permute import Permutations
from ..data.rotate import turns
from ..errors import DataError
from ..ops.examples import take
from ..ops.shuffle import draw, lot, mix, normal, purpose
from ..task import Batch, example_weights, one_hot
from ..tree import Tree

LEFT = "(left)"  # beside a client's memory: by step, what was not sent yet
SMALL = 2**16  # numbers in the batches of an exchange that a CPU takes at once, and not batch by batch
READY = 2**22  # numbers of images that a CPU keeps scaled, in every angle, and does not work out batch by batch
SEED, CLIENT, LABELLED, ANGLE, WEIGHT, BUDGET, NAMES = range(7)  # LABELLED: 1 for one's own, and 2 more for a validator
START = {split: 7 + 2 * k for k, split in enumerate(SPLITS)}
SIZE = {split: 8 + 2 * k for k, split in enumerate(SPLITS)}


class Homes:
    """The packed examples of one or several runs (they differ in who owns what) on one device."""

    def __init__(self, federations: Sequence[Federation], device: torch.device, dtype: torch.dtype) -> None:
        examples = federations[0].examples
        distinct = list(dict.fromkeys(federations))  # runs that differ in settings have one federation
        if not all(examples.same_as(other.examples) for other in distinct[1:]):
            raise DataError("Federations that are trained together must share their examples; these do not.")
        self.federations = federations
        self.y = examples.y.to(device)
        self.index = {split: _end_to_end([f.rows(split).index for f in distinct]).to(device) for split in SPLITS}
        self.base = {split: _offsets(split, distinct) for split in SPLITS}
        self.largest = {split: max(f.largest(split) for f in distinct) for split in SPLITS}
        self.images = examples.images
        self.dtype = dtype  # of an example as the model sees it
        self.channels_last = device.type == "cpu"  # convolutions on a CPU want channels last, vmap on a GPU does not
        self.shape = examples.shape
        x = examples.x.to(device)
        self.x = x if self.channels_last or not self.images else x.permute(0, 3, 1, 2).contiguous()
        if self.images:
            channels = self.shape[0]
            mean, std = (torch.tensor(t or d).expand(channels) for t, d in ((examples.mean, 0.0), (examples.std, 1.0)))
            self.scale, self.shift = (t.to(device, dtype)[:, None, None] for t in (1 / (255 * std), -mean / std))
        angles = torch.cat([f.rotation for f in distinct]).unique()
        self.angles = angles
        self.turned = bool(angles.any())
        if self.turned:
            self.taps, self.shares = (t.to(device) for t in turns(self.shape, angles.tolist()))
        self.names, self.named = None, dict.fromkeys(distinct, 0)
        if any(f.permutations is not None for f in distinct):
            tables = [(f.permutations or Permutations.none(len(f))).wide(examples.classes) for f in distinct]
            self.names = torch.cat(tables).flatten().to(device)  # of every class, one permutation after the other
            self.named = _starts(distinct, [table.numel() for table in tables])
        ready = self.images and self.channels_last and len(angles) * x.numel() <= READY
        self.ready = self._every_angle() if ready else None

    def client_rows(self, run: int, ids: Tensor) -> Tensor:
        """One row of integers a client: [..., 13] for clients of any shape, on the CPU."""
        federation = self.federations[run]
        columns = [
            torch.full_like(ids, federation.seed),
            ids,
            federation.labelled[ids].long() + 2 * ((ids >= federation.members) & (ids < federation.first_late)),
            torch.searchsorted(self.angles, federation.rotation[ids]),
            federation.weight[ids].long(),
            federation.budget[ids].long(),
            self._named(federation, ids),
        ]
        for split in SPLITS:
            start = federation.rows(split).start
            columns += [start[ids] + self.base[split][federation], start[ids + 1] - start[ids]]
        return torch.stack(columns, -1)

    def _named(self, federation: Federation, ids: Tensor) -> Tensor:
        """Where among all names those begin that a client has for the classes."""
        own = federation.permutations
        kind = torch.zeros_like(ids) if own is None else own.kind[ids].long()
        return self.named[federation] + kind * federation.examples.classes

    def room(self, client: Tensor) -> dict[str, int]:
        """For a client that is not mapped with others: of every split its own examples. Its row is on the CPU.

        Who has none where others have some gets one of padding: nothing at all is harder to compute with.
        """
        return {split: min(most, max(1, int(client[SIZE[split]]))) for split, most in self.largest.items()}

    def find(self, place: Tensor, client: Tensor, split: str) -> tuple[Tensor, Tensor]:
        """Which examples lie at the given places of a client's rows, and their labels, as far as it may know them."""
        last = max(len(self.index[split]) - 1, 0)  # where a client with nothing here would point past the end
        rows = self.index[split][(client[START[split]] + place).clamp(max=last)].long()
        y = self.y[rows]
        if self.names is not None:
            y = torch.where(y >= 0, self.names[client[NAMES] + y.clamp(min=0)], y)
        if split != "test":  # the experimenter's test labels score, and so do a validator's val labels
            shown = client[LABELLED] % 2 if split == "train" else client[LABELLED]
            y = torch.where(shown > 0, y, -1)
        return rows, y

    def take(self, rows: Tensor, client: Tensor) -> Tensor:
        """The examples, ready for a model."""
        if not self.images:
            return self.x[rows].to(self.dtype)
        if self.ready is not None:  # by `embedding`: whole rows at once, where plain indices would go number by number
            flat = F.embedding(rows + client[ANGLE] * len(self.x), self.ready)
            images: Tensor = flat.unflatten(-1, self.x.shape[1:]).movedim(-1, -3)
            return images
        if not self.channels_last and not self.turned:
            return take(self.x, rows, self.scale, self.shift)
        return self._ready_made(self.x[rows], client[ANGLE, None])

    def _ready_made(self, x: Tensor, angle: Tensor) -> Tensor:
        """Images as they are stored, turned (`angle` is a vector of one), scaled and shifted."""
        if self.channels_last:
            x = x.movedim(-1, -3)
        x = x.to(self.dtype)
        if self.turned:
            # one row by a vector of one: under vjp a plain number would be read from the device
            flat, taps, shares = x.flatten(-2), self.taps[angle][0], self.shares[angle][0]  # taps: [neighbours, pixels]
            turned = (flat[..., taps.flatten()].unflatten(-1, taps.shape) * shares).sum(-2)
            x = turned.unflatten(-1, self.shape[-2:])
        return x * self.scale + self.shift

    def _every_angle(self) -> Tensor:
        """All images as a model sees them, in one angle after the other: [angles * examples, pixels]."""
        made = [self._ready_made(self.x, angle).movedim(-3, -1) for angle in torch.arange(len(self.angles)).split(1)]
        return torch.cat(made).flatten(1)


class PackedHome:
    """One client's home; every method is written for one client and mapped over many from outside."""

    def __init__(
        self,
        homes: Homes,
        client: Tensor,
        round: Tensor,  # noqa: A002
        memory: Tree,
        entropy: Callable[[int], Tensor] | None = None,  # where noise comes from; None: simulated, from the public seed
        room: Mapping[str, int] | None = None,  # of every split, for how many examples; None: for the largest client's
    ) -> None:
        self.memory = {name: part for name, part in memory.items() if name != LEFT}
        self.left: Tree = memory.get(LEFT, {})
        self._room = room or homes.largest
        self._homes, self._client, self._round, self._entropy = homes, client, round, entropy

    @property
    def kept(self) -> Tree:
        """All that this client keeps: the method's own, and what is left of changes that were sent in part."""
        return self.memory | ({LEFT: self.left} if self.left else {})

    @property
    def round(self) -> Tensor:
        return self._round

    @property
    def budget(self) -> Tensor:
        return self._client[BUDGET]

    def batch(self, size: int, purpose: str = "batch") -> Batch:
        return next(iter(self.batches(1, size, purpose)))

    def batches(self, steps: int, size: int, purpose: str = "batches") -> DrawnBatches:
        return DrawnBatches(self, steps, size, purpose, passes=None)

    def epochs(self, count: int, size: int, purpose: str = "batches") -> DrawnBatches:
        steps = count * -(-self._room["train"] // size)
        return DrawnBatches(self, steps, size, purpose, passes=count)

    def all(self, split: str = "train") -> Batch:
        place = torch.arange(self._room[split], device=self._client.device)
        count = self._client[SIZE[split]]
        rows, y = self._homes.find(_within(place, count), self._client, split)
        return Batch(self._homes.take(rows, self._client), y, place < count)

    def counts(self, classes: int) -> Tensor:
        place = torch.arange(self._room["train"], device=self._client.device)
        count = self._client[SIZE["train"]]
        _, y = self._homes.find(_within(place, count), self._client, "train")
        return (one_hot(y, classes) * (place < count)[:, None]).sum(0)

    def noise(self, size: int, purpose: str = "noise", dtype: torch.dtype | None = None) -> Tensor:
        words = self._entropy(2 * size) if self._entropy else self._words(2 * size, purpose)
        dtype = dtype or self._homes.dtype
        return normal(words).to(dtype if dtype.is_floating_point else torch.float32)

    def lot(self, purpose: str) -> Tensor:
        return lot(self._client[SEED], self._client[CLIENT], purpose)

    def _words(self, count: int, name: str) -> Tensor:
        counter = torch.arange(count, device=self._client.device)
        return mix(self._client[SEED], self._round, self._client[CLIENT], purpose(name), counter)


def entropy(count: int) -> Tensor:
    """64-bit words from the operating system, which no seed brings back: the noise of a client that is real.

    Hashing a secret would not do. The hash can be inverted, so whoever guesses the data could tell from the noise
    that is left whether the guess was right, and that is what the noise is there to prevent.
    """
    return torch.frombuffer(bytearray(secrets.token_bytes(8 * count)), dtype=torch.int64)


class DrawnBatches:
    """Batches of a client's training data: drawn afresh at every step, or from shuffled passes (`passes`).

    All that is small is worked out for all batches at once: on a GPU, what counts is the number of operations.
    """

    def __init__(self, home: PackedHome, steps: int, size: int, name: str, passes: int | None) -> None:
        self.home, self.steps = home, steps
        client = home._client
        who = client[SIZE["train"]], client[SEED], home._round, client[CLIENT]
        place, self.real = draw(*who, purpose(name), steps, size, passes)
        self.rows, self.y = home._homes.find(place, client, "train")  # [steps, size]
        self.weight = example_weights(self.y, self.real)
        self.labelled = self.weight.any(-1)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        homes, client = self.home._homes, self.home._client
        small = homes.channels_last and self.rows.numel() * math.prod(homes.shape) <= SMALL
        x = homes.take(self.rows, client) if small else None
        for k in range(self.steps):
            chosen = homes.take(self.rows[k], client) if x is None else x[k]
            yield Batch(chosen, self.y[k], self.real[k], self.weight[k], self.labelled[k])


def _within(place: Tensor, count: Tensor) -> Tensor:
    """Places past the end point at the last example; the mask says that they are padding."""
    return torch.minimum(place, (count - 1).clamp(min=0))


def _end_to_end(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)  # one federation's rows are not copied


def _offsets(split: str, federations: list[Federation]) -> dict[Federation, int]:
    return _starts(federations, [len(federation.rows(split).index) for federation in federations])


def _starts(federations: list[Federation], sizes: list[int]) -> dict[Federation, int]:
    """Where each one's begin, if all lie end to end."""
    return dict(zip(federations, accumulate(sizes, initial=0), strict=False))
