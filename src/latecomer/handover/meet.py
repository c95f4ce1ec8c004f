"""A trained server meets a federation that it has never seen, and is not trained again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .. import tree
from ..data import Federation, Source, Split, federate, load
from ..data.arrays import hold_out
from ..data.federation import Rows
from ..data.sources import OPTIONAL
from ..engines import at_hand, make
from ..errors import DataError, SettingError, within_memory
from ..evaluate import Scores, evaluate, over_seeds
from ..runs.folder import Folder
from ..runs.run import client_table
from ..runs.settings import Place
from ..settings import dump, parse, setting, settings_of
from ..sweep.lockstep import Lockstep
from ..tally import Tally
from .own import unlabelled
from .trained import Trained

OF_THE_RUN = {"unseen", "validators", "labelled", "unlike", "unseen_alpha", "unseen_rotations"}
"""Settings of a split that are about members, or set latecomers apart from them."""


@dataclass(frozen=True, kw_only=True)
class Meeting(Place):
    """What a meeting is asked for, besides how the examples fall to the clients."""

    data: str = setting("", "data set of the new clients, of the shape that the run knows; empty: the run's own")
    share: float = setting(1.0, "share of its training examples that a client has", above=0, high=1)
    fresh: bool = setting(
        True, "of the run's own data, deal only what no member and no validator of the run had to train or select by"
    )
    engine: str = setting("", "what runs the clients' steps; `latecomer list engines` names them; empty: as in the run")
    device: str = setting("auto", "cpu, cuda, or auto: cuda where there is one")
    name: str = setting("", "name of the folder (default: run, data, time)")
    out: str = setting("runs", "folder that holds the result's folder")


def split_settings() -> set[str]:
    """The settings of a split that a meeting can have."""
    return {*settings_of(Split)} - OF_THE_RUN


@dataclass(frozen=True, eq=False)
class Met:
    """How a meeting went: the federations, one a seed, with every client's score."""

    federations: list[Federation]
    scores: list[Scores]
    result: dict[str, Any]

    def save(self, path: Path, settings: str, another: bool = False) -> Path:
        """A folder like a run's, without a checkpoint."""
        folder = Folder.create(path, settings, another=another)
        folder.write_result(self.result, client_table(self.federations, [(score, None) for score in self.scores]))
        folder.release()
        return folder.path


@within_memory()
def meet(trained: Trained, meeting: Meeting | None = None, **split: Any) -> Met:
    """Every seed's server meets new clients: those of the data set and the split that are asked for.

    Settings of the split that are not given are the run's. If nothing is given at all, the run's own latecomers come
    again, and score what they scored.
    """
    asked, began = meeting or Meeting(), time.perf_counter()
    if unknown := split.keys() - split_settings():
        raise SettingError(f"A meeting has no setting {sorted(unknown)[0]!r}: members are not trained in it.")
    again = not split and not asked.data and asked.share == 1
    federations, scores, tallies = [], [], []
    for number in range(len(trained.seeds)):
        federation = _own(trained, number) if again else _new(trained, asked, split, number)
        engine = make(
            asked.engine or trained.experiment.settings.engine,
            trained.method,
            [federation],
            at_hand(asked.device),
            graphs=False,  # a meeting is one evaluation: nothing would be replayed
            workers=asked.workers,
            ray_address=asked.ray_address,
        )
        tally, ids = Tally(engine, [trained.method], [federation]), torch.arange(federation.first_late, len(federation))
        state = tree.to(trained.states[number], engine.device)
        scores += evaluate([trained.method], [state], Lockstep(tally), [ids], 1)
        federations.append(federation)
        tallies.append(tally)
    result = {
        "method": trained.name,
        "data": asked.data or trained.experiment.settings.data,
        "run": trained.path.name,
        "checkpoint": trained.digest,
        "seeds": trained.seeds,
        "selected_rounds": trained.rounds,
        "seconds": round(time.perf_counter() - began, 3),
        "unseen": over_seeds(scores),
    }
    if told := tallies[0].report():
        result["privacy"] = told
    return Met(federations, scores, result)


def settings_text(trained: Trained, meeting: Meeting, split: Mapping[str, Any]) -> str:
    """What settings.toml of a meeting's folder holds."""
    whose = {"run": str(trained.path), "checkpoint": trained.digest}
    return dump({"meeting": whose | dataclasses.asdict(meeting), "split": dict(split)})


def _own(trained: Trained, number: int) -> Federation:
    """The run's own latecomers, as they were."""
    federation = trained.federations[number]
    if federation.first_late == len(federation):
        raise SettingError(f"The run in {trained.path} had no latecomers; say whom to meet: --data, --partition, ...")
    return federation


def _new(trained: Trained, asked: Meeting, split: Mapping[str, Any], number: int) -> Federation:
    """New clients, each with a number that no member has."""
    s, seed = trained.experiment.settings, trained.seeds[number]
    source = load(asked.data or s.data)
    _check_form(trained, source)
    if asked.fresh and (not asked.data or _same(source, trained.federations[number])):
        source = unused(trained, source, number)
    before = {name: getattr(s, name) for name in split_settings()}
    late = s.unseen if (split.get("split") or s.split) == "flowdup" else 0.0  # which makes no other clients
    request = parse(Split, before | dict(split) | {"unseen": late})
    request = dataclasses.replace(request, labelled=float(request.unseen_labelled))
    if trained.method.needs_labels and not request.unseen_labelled:
        raise SettingError(f"{type(trained.method).__name__} needs a client's labels; leave them, {unlabelled()}.")
    dealt = federate(source, request, seed=seed)
    form = trained.form
    examples = dataclasses.replace(dealt.examples, classes=form.classes, mean=form.mean, std=form.std)
    dealt = dataclasses.replace(dealt, examples=examples)
    return thinned(dealt.behind(trained.method.members, dealt.first_late if late else 0), asked.share)


def _check_form(trained: Trained, source: Source) -> None:
    form = trained.form
    form.examples(source.x_train[:1], "x_train", repr(source.name))
    if source.classes > form.classes:
        raise DataError(f"{source.name!r} has {source.classes} classes; this run was trained on {form.classes}.")


def _same(source: Source, before: Federation) -> bool:
    """Whether these are the very examples that the run had, by whatever name, path or copy they were found."""
    x, y = before.examples.x.numpy(), before.examples.y.numpy()
    return np.array_equal(source.y, y) and source.x.size == x.size and np.array_equal(source.x.reshape(x.shape), x)


def unused(trained: Trained, source: Source, number: int) -> Source:
    """The source without the examples that the run's members and validators trained or selected by."""
    before = trained.federations[number]
    used: NDArray[np.bool_] = np.zeros(len(source.y), bool)
    for rows in (before.train, before.val):
        used[rows.index[: int(rows.start[before.first_late])].numpy()] = True
    count = len(source.y_train)
    left = {"train": ~used[:count], "test": ~used[count:]}  # some partitions deal test examples to train on, too
    if not left["train"].any() or not (left["test"].any() or count == len(used)):
        raise SettingError(
            f"The members of the run had all training examples of {source.name!r}; give other --data, "
            "or --no-fresh to deal them once more (then scores say little about new data)."
        )
    parts = {name: getattr(source, name) for name in ("x_train", "y_train", "x_test", "y_test", *OPTIONAL)}
    kept = {name: part[left[name.rpartition("_")[2]]] for name, part in parts.items() if part is not None}
    return dataclasses.replace(source, **kept)


def thinned(federation: Federation, share: float) -> Federation:
    """Every client keeps this share of its training examples, of each class alike, and at least one."""
    if share == 1:
        return federation
    rows, sizes = federation.train, federation.train.sizes.numpy()
    owner = np.repeat(np.arange(len(rows)), sizes)
    labels = federation.examples.y[rows.index.long()].numpy()
    kept = hold_out(owner, labels, share, np.random.default_rng(federation.seed))
    first = np.append(np.diff(owner, prepend=-1) > 0, [])[: len(owner)].astype(bool)
    kept |= first & (np.bincount(owner, kept, len(rows))[owner] == 0)
    parts = np.split(rows.index.numpy()[kept], np.bincount(owner[kept], minlength=len(rows)).cumsum()[:-1])
    return dataclasses.replace(federation, train=Rows.of(parts))
