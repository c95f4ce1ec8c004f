"""The data side of an engine that holds its clients' examples: what `Home` promises, on packed federations.

A client is described by a card, eleven integers, so that a whole cohort reaches the device in one small copy and a
home can be made from one row of it inside `vmap`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..data.federation import SPLITS, Federation, turns
from ..data.shuffle import mix, normals, purpose, shuffled
from ..task import Batch
from ..tree import Tree

SEED, CLIENT, LABELLED, ANGLE, WEIGHT = range(5)
START = {split: 5 + 2 * k for k, split in enumerate(SPLITS)}
SIZE = {split: 6 + 2 * k for k, split in enumerate(SPLITS)}


class Homes:
    """The packed examples of one or several runs (they differ in who owns what) on one device."""

    def __init__(self, federations: Sequence[Federation], device: torch.device, dtype: torch.dtype) -> None:
        examples = federations[0].examples
        self.federations = federations
        self.y = examples.y.to(device)
        self.index = {split: _end_to_end([f.rows(split).index for f in federations]).to(device) for split in SPLITS}
        self.base = {split: _offsets([len(f.rows(split).index) for f in federations]) for split in SPLITS}
        self.largest = {split: max(f.largest(split) for f in federations) for split in SPLITS}
        self.images = examples.images
        self.dtype = dtype  # of an example as the model sees it
        self.channels_last = device.type == "cpu"  # convolutions on a CPU want channels last, vmap on a GPU does not
        self.shape = examples.shape
        x = examples.x.to(device)
        self.x = x if self.channels_last or not self.images else x.permute(0, 3, 1, 2).contiguous()
        if self.images:
            mean, std = torch.tensor(examples.mean or (0.0,)), torch.tensor(examples.std or (1.0,))
            self.scale, self.shift = (t.to(device, dtype)[:, None, None] for t in (1 / (255 * std), -mean / std))
        angles = torch.cat([f.rotation for f in federations]).unique()
        self.angles = angles
        if angles.any():
            self.taps, self.shares = (t.to(device) for t in turns(self.shape, angles.tolist()))

    def cards(self, run: int, ids: Tensor) -> Tensor:
        """One row of integers a client: [clients, 11], on the CPU."""
        federation = self.federations[run]
        columns = [
            torch.full_like(ids, federation.seed),
            ids,
            federation.labelled[ids].long(),
            torch.searchsorted(self.angles, federation.rotation[ids]),
            federation.weight[ids].long(),
        ]
        for split in SPLITS:
            start = federation.rows(split).start
            columns += [start[ids] + self.base[split][run], start[ids + 1] - start[ids]]
        return torch.stack(columns, -1)

    def take(self, place: Tensor, card: Tensor, split: str) -> tuple[Tensor, Tensor]:
        """The examples at the given places of a client's rows, ready for a model."""
        last = max(len(self.index[split]) - 1, 0)  # where a client with nothing here would point past the end
        rows = self.index[split][(card[START[split]] + place).clamp(max=last)].long()
        x, y = self.x[rows], self.y[rows]
        x = self._pixels(x, card) if self.images else x.to(self.dtype)
        if split != "test":
            y = torch.where(
                card[LABELLED] > 0, y, -1
            )  # the experimenter's test labels score; they are never trained on
        return x, y

    def _pixels(self, x: Tensor, card: Tensor) -> Tensor:
        if self.channels_last:
            x = x.movedim(-1, -3)
        x = x.to(self.dtype)
        if self.angles.any():
            angle = card[
                ANGLE, None
            ]  # one row by a vector of one: under vjp a plain number would be read from the device
            flat, taps, shares = x.flatten(-2), self.taps[angle][0], self.shares[angle][0]
            turned = [flat[..., tap] * share for tap, share in zip(taps, shares, strict=True)]
            x = torch.stack(turned).sum(0).unflatten(-1, self.shape[-2:])
        return x * self.scale + self.shift


class PackedHome:
    """One client's home; every method is written for one client and mapped over many from outside."""

    def __init__(self, homes: Homes, card: Tensor, round: Tensor, memory: Tree) -> None:  # noqa: A002
        self.memory = memory
        self._homes, self._card, self._round = homes, card, round

    def batch(self, size: int, purpose: str = "batch") -> Batch:
        return next(iter(self.batches(1, size, purpose)))

    def batches(self, steps: int, size: int, purpose: str = "batches") -> DrawnBatches:
        return DrawnBatches(self, steps, size, purpose, passes=None)

    def epochs(self, count: int, size: int, purpose: str = "batches") -> DrawnBatches:
        steps = count * -(-self._homes.largest["train"] // size)
        return DrawnBatches(self, steps, size, purpose, passes=count)

    def all(self, split: str = "train") -> Batch:
        place = torch.arange(self._homes.largest[split], device=self._card.device)
        count = self._card[SIZE[split]]
        x, y = self._homes.take(_within(place, count), self._card, split)
        return Batch(x, y, place < count)

    def noise(self, size: int, purpose: str = "noise") -> Tensor:
        return normals(size, _key(self, purpose)).to(torch.get_default_dtype())


class DrawnBatches:
    """Shuffled passes over a client's training data; the last batch of a pass is padded."""

    def __init__(self, home: PackedHome, steps: int, size: int, name: str, passes: int | None) -> None:
        self.home, self.steps = home, steps
        card, device = home._card, home._card.device
        count = card[SIZE["train"]]
        step = torch.arange(steps, device=device)
        per_pass = ((count + size - 1) // size).clamp(min=1)
        turn = step // per_pass  # which pass over the data
        place = (step % per_pass)[:, None] * size + torch.arange(size, device=device)  # [steps, size]
        self.real = place < count if passes is None else (place < count) & (turn < passes)[:, None]
        key = mix(card[SEED], home._round, card[CLIENT], purpose(name), turn)[:, None]
        self.place = shuffled(_within(place, count), count.clamp(min=1), key)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        for k in range(self.steps):
            x, y = self.home._homes.take(self.place[k], self.home._card, "train")
            yield Batch(x, y, self.real[k])


def _key(home: PackedHome, name: str) -> Tensor:
    """A hash for one use of randomness by one client in one round."""
    return mix(home._card[SEED], home._round, home._card[CLIENT], purpose(name))


def _within(place: Tensor, count: Tensor) -> Tensor:
    """Places past the end point at the last example; the mask says that they are padding."""
    return torch.minimum(place, (count - 1).clamp(min=0))


def _end_to_end(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)  # one federation's rows are not copied


def _offsets(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:k]) for k in range(len(sizes))]
