"""The packed federation: one tensor of examples, and per client only rows of indices into it.

Clients own rows, not copies: a million clients cost their index rows and some thirty bytes each.
Members (who take part in training) come first; then validators, if any, and latecomers last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataError, UnknownName
from .form import Form
from .permute import Permutations
from .split import SIZES
from .split import SPLITS as SPLITS

USUAL = SIZES.index("M")


@dataclass(frozen=True, eq=False)
class Examples:
    """What all clients' rows point into. Images are uint8 [N, height, width, channels]; `y` is -1 where unknown."""

    x: Tensor
    y: Tensor
    classes: int
    mean: tuple[float, ...] = ()  # per channel, of pixels in [0, 1]; empty: pixels are only divided by 255
    std: tuple[float, ...] = ()

    @staticmethod
    def of(
        x: Any, y: Any, classes: int | None = None, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
    ) -> Examples:
        """From arrays: images are uint8, [N, height, width] or [N, height, width, channels]; other examples stay as
        they are. `classes` counts the labels there can be; without it, the largest there is says so.
        """
        x, y = _tensor(x, "x"), _tensor(y, "y")
        _check_arrays(x, y)
        y = y.long()
        low, high = int(y.min()), int(y.max())
        classes = classes or high + 1
        if high >= classes or low < -1:
            worst = high if high >= classes else low
            raise DataError(f"Labels must lie in 0..{classes - 1} (or be -1 where unknown); found {worst}.")
        return Examples(x[..., None] if x.dtype == torch.uint8 and x.ndim == 3 else x, y, classes, mean, std)

    def same_as(self, other: Examples) -> bool:
        """Whether both hold the same; what lies in the same memory need not be compared number by number."""
        pairs = (self.x, other.x), (self.y, other.y)
        at_once = (self.classes, self.mean, self.std) == (other.classes, other.mean, other.std)
        return at_once and all(a.dtype == b.dtype and (a.is_set_to(b) or torch.equal(a, b)) for a, b in pairs)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example as a model sees it (channels first)."""
        if not self.images:
            return tuple(self.x.shape[1:])
        height, width, channels = self.x.shape[1:]
        return (channels, height, width)

    @property
    def images(self) -> bool:
        return self.x.dtype == torch.uint8 and self.x.ndim == 4

    @cached_property
    def text(self) -> bool:
        """Whether examples are sequences of class numbers: characters, whose label is the one that follows."""
        whole = not self.x.is_floating_point() and self.x.dtype != torch.bool
        return whole and self.x.ndim == 2 and int(self.x.min()) >= 0 and int(self.x.max()) < self.classes

    @property
    def form(self) -> Form:
        """What others must bring, to be examples like these."""
        stored, kind = tuple(self.x.shape[1:]), str(self.x.dtype).removeprefix("torch.")
        return Form(kind, stored, self.classes, self.text, self.mean, self.std)

    def to(self, device: torch.device) -> Examples:
        return Examples(self.x.to(device), self.y.to(device), self.classes, self.mean, self.std)


@dataclass(frozen=True, eq=False)
class Rows:
    """For every client its indices into the examples, end to end."""

    index: Tensor  # int32 [total]
    start: Tensor  # int64 [clients + 1]

    @staticmethod
    def of(rows: Sequence[Any]) -> Rows:
        sizes = [len(row) for row in rows]
        start = torch.zeros(len(rows) + 1, dtype=torch.int64)
        start[1:] = torch.tensor(sizes, dtype=torch.int64).cumsum(0)
        flat = np.concatenate([np.asarray(row, np.int64) for row in rows]) if len(rows) else np.zeros(0, np.int64)
        return Rows(torch.from_numpy(flat.astype(np.int32)), start)

    def __len__(self) -> int:
        return len(self.start) - 1

    def __getitem__(self, client: int) -> Tensor:
        return self.index[int(self.start[client]) : int(self.start[client + 1])]

    @property
    def sizes(self) -> Tensor:
        return self.start.diff()


@dataclass(frozen=True, eq=False)
class Federation:
    """Who owns which examples, and what is known about each client."""

    examples: Examples
    train: Rows
    val: Rows
    test: Rows
    members: int  # clients 0 .. members-1 train
    labelled: Tensor  # bool [clients]: whether a client's train and val labels may be seen
    rotation: Tensor  # int16 [clients]: degrees by which all images of a client are turned
    budget: Tensor  # int8 [clients]: the size of model a client can afford, as a place in SIZES
    seed: int = 0  # of the split and of the batches
    notes: tuple[str, ...] = field(default=())  # what a user should know about the split (clients dropped, say)
    validators: int = 0  # the clients after the members: their scores select the best round; the rest are latecomers
    names: NDArray[Any] | None = None  # [clients]: what the source calls them, in numbers or text
    permutations: Permutations | None = None  # what clients call the classes; None: all as the examples do

    def __post_init__(self) -> None:
        for split in SPLITS:
            if len(self.rows(split)) != len(self):
                raise DataError(f"The {split} split has {len(self.rows(split))} clients, the train split {len(self)}.")
        if not 0 < self.members <= len(self):
            raise DataError(f"Of {len(self)} clients {self.members} are members; at least one must be, at most all.")
        if not 0 <= self.validators <= len(self) - self.members:
            raise DataError(f"Of {len(self)} clients {self.members} train; {self.validators} cannot be validators.")
        if self.permutations is not None:
            self.permutations.checked(len(self), self.examples.classes)

    def __len__(self) -> int:
        return len(self.train)

    def rows(self, split: str) -> Rows:
        """Who owns which examples of a split: `train`, `val` or `test`."""
        rows: Rows = getattr(self, split)
        return rows

    @property
    def first_late(self) -> int:
        """The id of the first latecomer."""
        return self.members + self.validators

    @cached_property
    def weight(self) -> Tensor:
        """Labelled training examples of every client: what it weighs in a mean by examples."""
        known = (self.examples.y >= 0).cpu()
        if bool(known.all()):
            return self.train.sizes.to(torch.int32) * self.labelled
        counts = torch.zeros(len(self.train.index) + 1, dtype=torch.int32)
        counts[1:] = known[self.train.index.long()].cumsum(0)
        return counts[self.train.start].diff() * self.labelled

    def behind(self, members: int, first: int = 0) -> Federation:
        """The clients from `first` on, all of them latecomers, after so many members of whom there is nothing here."""
        ahead = torch.zeros(members, dtype=torch.int64)

        def after(rows: Rows) -> Rows:
            begin = int(rows.start[first])
            return Rows(rows.index[begin:], torch.cat([ahead, rows.start[first:] - begin]))

        def column(values: Tensor) -> Tensor:
            return torch.cat([ahead.to(values.dtype), values[first:]])

        names = None if self.names is None else np.concatenate([np.full(members, "", object), self.names[first:]])
        own = self.permutations
        return replace(
            self,
            train=after(self.train),
            val=after(self.val),
            test=after(self.test),
            members=members,
            labelled=column(self.labelled),
            rotation=column(self.rotation),
            budget=column(self.budget),
            validators=0,
            names=names,
            permutations=None if own is None else own.only(column(own.kind)),
        )

    def held_out(self, clients: int) -> bool:
        """Whether the first so many clients have any example to validate or to test on."""
        return any(int(self.rows(split).start[clients]) for split in ("val", "test"))

    def largest(self, split: str) -> int:
        """How many examples of a split the client with most of them has."""
        return int(self.rows(split).sizes.max())

    def digest(self) -> str:
        """A fingerprint of who owns what, to tell whether two splits are the same."""
        known = hashlib.sha256(repr((self.members, self.examples.x.shape, self.examples.classes, self.seed)).encode())
        if self.validators:  # without any, the fingerprint is what it was before there were some
            known.update(repr(self.validators).encode())
        columns = [self.examples.y, self.labelled, self.rotation]
        columns += [self.budget] if bool((self.budget != USUAL).any()) else []
        columns += [] if self.permutations is None else [self.permutations.table, self.permutations.kind]
        for split in SPLITS:
            columns += [self.rows(split).start, self.rows(split).index]
        for column in columns:
            known.update(column.cpu().numpy().tobytes())
        return known.hexdigest()

    @cached_property
    def fingerprints(self) -> Tensor:
        """Of every client a number, int64 [clients], that differs where its training examples do, wherever they lie."""
        x, y, index = (tensor.cpu().numpy() for tensor in (self.examples.x, self.examples.y, self.train.index))
        start, angles, found = self.train.start.tolist(), self.rotation.tolist(), []
        for client, (angle, first, end) in enumerate(zip(angles, start, start[1:], strict=False)):
            rows = index[first:end]
            content = hashlib.blake2b(repr(angle).encode(), digest_size=8)
            content.update(x[rows].tobytes())
            content.update(self.called(client, torch.from_numpy(y[rows])).numpy().tobytes())
            found.append(int.from_bytes(content.digest(), "little", signed=True))
        return torch.tensor(found)

    def called(self, client: int, y: Tensor) -> Tensor:
        """What a client calls these labels of examples."""
        return y if self.permutations is None else self.permutations.of(client, y)

    def traits(self, client: int) -> dict[str, Any]:
        """What is written about a client beside its score."""
        y = self.called(client, self.examples.y[self.train[client].long()])
        counts = torch.bincount(y[y >= 0], minlength=self.examples.classes)
        return {
            "name": "" if self.names is None else str(self.names[client]),
            "seen": client < self.members,
            "role": "member" if client < self.members else "validator" if client < self.first_late else "latecomer",
            "labelled": bool(self.labelled[client]),
            "rotation": int(self.rotation[client]),
            **({} if self.permutations is None else {"permutation": int(self.permutations.kind[client])}),
            "budget": SIZES[int(self.budget[client])],
            **{f"{split}_examples": int(self.rows(split).sizes[client]) for split in SPLITS},
            "classes": " ".join(f"{k}:{n}" for k, n in enumerate(counts.tolist()) if n),
        }

    @staticmethod
    def from_arrays(
        x: Any,
        y: Any,
        *,
        train: Sequence[Any],
        test: Sequence[Any],
        val: Sequence[Any] | None = None,
        members: int | None = None,
        validators: int = 0,
        untested: bool = False,
        classes: int | None = None,
        labelled: Any = None,
        rotation: Any = None,
        budget: Any = None,
        names: Any = None,
        permutations: Permutations | None = None,
        mean: tuple[float, ...] = (),
        std: tuple[float, ...] = (),
        seed: int = 0,
        notes: tuple[str, ...] = (),
    ) -> Federation:
        """A federation from arrays: `train[i]` holds the indices into `x` and `y` that client i trains on.

        The first `members` of the clients train (None: all of them), the next `validators` select the round, the rest
        are latecomers. `labelled`, `rotation`, `budget` (the size of model that it can afford: S, M or L) and `names`
        (what it is called where results are written) have an entry for each client, and so have `permutations`, if
        clients call the classes by other numbers than `y` does. A client without training examples, or without test
        examples, is dropped, and `notes` says so; if `untested`, members and validators need none to test on.
        """
        examples, count = Examples.of(x, y, classes, mean, std), len(train)
        rows: Mapping[str, Sequence[Any]] = {"train": train, "val": [[]] * count if val is None else val, "test": test}
        for split, owned in rows.items():
            if len(owned) != count:
                raise DataError(f"{split} has rows for {len(owned)} clients, train for {count}.")
        if names is not None and len(names) != count:
            raise DataError(f"names has one entry a client, {count} in all; found {len(names)}.")
        members = count if members is None else members
        late = members + validators
        kept = [k for k in range(count) if len(train[k]) and (len(test[k]) or (untested and k < late))]
        if len(kept) < count:
            dropped = f"{count - len(kept)} of {count} clients had no example to train or to test on and were dropped."
            notes += (dropped,)
        if not any(k < members for k in kept):
            raise DataError(f"None of the {members} training clients has examples both to train and to test on.")
        return Federation(
            examples,
            **{split: _checked(Rows.of([rows[split][k] for k in kept]), split, len(examples.y)) for split in SPLITS},
            members=sum(k < members for k in kept),
            labelled=_column(labelled, True, count, torch.bool)[kept],
            rotation=_column(rotation, 0, count, torch.int16)[kept],
            budget=_column(None if budget is None else places(budget), USUAL, count, torch.int8)[kept],
            seed=seed,
            notes=notes,
            validators=sum(members <= k < late for k in kept),
            names=None if names is None else np.asarray(names)[kept],
            permutations=None
            if permutations is None
            else permutations.checked(count, examples.classes).only(permutations.kind[kept]),
        )


def places(budget: Any) -> Tensor:
    """Names of sizes as places in SIZES."""
    names = np.atleast_1d(np.asarray(budget, dtype=str))
    match = names[:, None] == np.array(SIZES)
    if len(unknown := names[~match.any(1)]):
        raise UnknownName("budget", str(unknown[0]), SIZES)
    return torch.from_numpy(match.argmax(1))


def _column(values: Any, default: Any, count: int, dtype: torch.dtype) -> Tensor:
    column = torch.full((count,), default, dtype=dtype) if values is None else torch.as_tensor(values, dtype=dtype)
    if column.shape != (count,):
        raise DataError(f"labelled, rotation and budget have one entry a client, {count} in all; found {len(column)}.")
    return column


def _tensor(values: Any, name: str) -> Tensor:
    array = np.require(values, requirements=("C", "W"))  # torch warns about memory that must not be written to
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} holds {array.dtype} values; they must be numbers.")
    return torch.from_numpy(array)


def _checked(rows: Rows, split: str, examples: int) -> Rows:
    low, high = (int(rows.index.min()), int(rows.index.max())) if len(rows.index) else (0, 0)
    if low < 0 or high >= examples:
        raise DataError(f"{split} names example {low if low < 0 else high}; there are examples 0 to {examples - 1}.")
    return rows


def _check_arrays(x: Tensor, y: Tensor) -> None:
    if len(x) != len(y) or y.ndim != 1:
        raise DataError(
            f"x has {len(x)} examples but y has shape {tuple(y.shape)}; there must be one label an example."
        )
    if not len(x):
        raise DataError("The data set is empty.")
    if y.is_floating_point() and bool((y != y.floor()).any()):
        raise DataError(f"y holds labels that are not whole numbers, {float(y[y != y.floor()][0])} for example.")
    if x.is_floating_point():
        bad = (~x.isfinite()).sum().item()
        if bad:
            raise DataError(f"x holds {bad} values that are not finite numbers (NaN or infinity).")
