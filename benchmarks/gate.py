"""The gate: are latecomers that lose to members found before anyone sees a label of theirs?

LATECOMER_DATA=... python benchmarks/gate.py [--data digits] [--method pefll] [--world rotations|ring|pairs]
                                             [--seeds 10 11 12 13 14] [--keep FOLDER] [--tiny]
python benchmarks/gate.py --table FOLDER

Members have some angles or some pairs of classes; half of the latecomers have others. `rotations`: members are turned
by 0 to 60 degrees, others by 75 to 180. `ring`: every class is in two of the members' ten pairs, and 35 pairs are new.
`pairs`: members have 20 pairs of 45. Members, validators and latecomers train on different images, and validators are
tested on other images than the rest. The gate sees signatures of all, and accuracies of members and validators alone. A
latecomer loses if it is more than 10 points below the members' mean; the AUC says how well doubt finds those that do.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from scipy import stats

from common import where
from latecomer import make_task, methods, train
from latecomer.data import Federation
from latecomer.data.sources import Source, load
from latecomer.engines import make
from latecomer.handover import survey
from latecomer.handover.gate import MARGIN, Gate
from latecomer.methods.local import Local
from latecomer.nets.models import builder

SHARES = {"members": 0.35, "held out": 0.05, "validators": 0.1, "judges": 0.2, "latecomers": 0.1, "test": 0.2}
IMAGES = {"member": ("members", "held out", "test"), "validator": ("validators", "judges", "judges")}
IMAGES |= {"latecomer": ("latecomers", "", "test")}
SEEN, NEW = (0, 15, 30, 45, 60), (75, 90, 105, 120, 135, 150, 165, 180)
SIZES = {"digits": {"members": 60, "size": 30, "tests": 200}, "cifar10": {"members": 90, "size": 400, "tests": 2000}}
PLANS = {("digits", name): {"rounds": rounds, "cohort": 10} for name, rounds in (("pefll", 240), ("odpflhn", 150))}
PLANS |= {("digits", "flowdup"): {"rounds": 300, "cohort": 10}}
PLANS |= {("cifar10", "pefll"): {"rounds": 800, "cohort": 5}, ("cifar10", "flowdup"): {"rounds": 460, "cohort": 30}}
OWN: dict[tuple[str, str], dict[str, Any]] = {
    ("digits", "pefll"): {"steps": 20, "lr": 0.05, "server_lr": 0.002},
    ("digits", "odpflhn"): {"lr": 0.05, "epochs": 5, "batch": 8, "server_lr": 0.002, "encoder_lr": 0.002},
    ("digits", "flowdup"): {"hidden": 64, "embedding": 64},
}


def world(
    source: Source, name: str, seed: int, members: int, validators: int, late: int, size: int, tests: int
) -> tuple[Federation, Any]:
    """A federation, and which of its clients have an angle or a pair that no member has."""
    random = np.random.default_rng(1000 + seed)
    x, y = np.concatenate((source.x_train, source.x_test)), np.concatenate((source.y_train, source.y_test))
    part = np.zeros(len(y), int)
    for label in range(source.classes):
        own = random.permutation(np.flatnonzero(y == label))
        ends = (np.cumsum(list(SHARES.values()))[:-1] * len(own)).astype(int)
        for k, some in enumerate(np.split(own, ends)):
            part[some] = k

    def draw(images: str, classes: tuple[int, ...], count: int) -> Any:
        if not images:
            return np.zeros(0, int)
        found = [np.flatnonzero((part == list(SHARES).index(images)) & (y == label)) for label in classes]
        return np.concatenate([random.permutation(each)[: max(1, count // len(classes))] for each in found])

    everything = tuple(range(source.classes))
    if name == "rotations":
        known, new = ([(angle, everything) for angle in angles] for angles in (SEEN, NEW))
    else:
        pairs, around = list(itertools.combinations(everything, 2)), random.permutation(source.classes)
        ring = [tuple(sorted((int(a), int(b)))) for a, b in zip(around, np.roll(around, 1), strict=True)]
        rest = [pairs[k] for k in random.permutation(len(pairs)) if pairs[k] not in ring]
        more = {"ring": 0, "pairs": 20 - len(ring)}[name]
        known, new = [(0, pair) for pair in ring + rest[:more]], [(0, pair) for pair in rest[more:]]  # type: ignore[misc]
    kinds = [known[k % len(known)] for k in range(members)]
    kinds += [known[k] for k in random.integers(0, len(known), validators)]
    kinds += [known[k] for k in random.integers(0, len(known), late // 2)]
    kinds += [new[k % len(new)] for k in range(late - late // 2)]
    roles = ["member"] * members + ["validator"] * validators + ["latecomer"] * late
    rows: dict[str, list[Any]] = {"train": [], "val": [], "test": []}
    for role, (_, classes) in zip(roles, kinds, strict=True):
        for split, images, count in zip(rows, IMAGES[role], (size, size // 2, tests), strict=True):
            rows[split].append(draw(images, classes, count))
    options: dict[str, Any] = {"classes": source.classes, "mean": source.mean, "std": source.std, "seed": seed}
    turned = [angle for angle, _ in kinds]
    federation = Federation.from_arrays(
        x, y, **rows, members=members, validators=validators, rotation=turned, **options
    )
    return federation, np.arange(len(federation)) >= len(federation) - (late - late // 2)


def train_and_survey(options: argparse.Namespace, folder: Path) -> None:
    """For every seed a file with signatures and accuracies."""
    sizes = {"validators": 40, "late": 90} | SIZES[options.data]
    plan = dict(PLANS[options.data, options.method])
    if options.tiny:
        sizes |= {"members": 12, "validators": 10, "late": 6, "size": 20, "tests": 40}
        plan |= {"rounds": 2, "cohort": 3}
    plan |= {"rounds": options.rounds} if options.rounds else {}
    source = load(options.data)
    worlds = [world(source, options.world, seed, **sizes) for seed in options.seeds]
    first = worlds[0][0]
    federations = [replace(federation, examples=first.examples) for federation, _ in worlds]
    task = make_task(first, builder("auto", first.examples.shape))
    kind, own = methods.get(options.method), OWN.get((options.data, options.method), {})
    method = kind(task=task, clients=len(first), members=first.members, **own)
    engine = make("auto", method, federations, "cuda" if torch.cuda.is_available() else "cpu")
    asked = train.Plan(**plan, evaluate_every=max(1, plan["rounds"] // 10))
    training = train.Training(method, federations, engine, asked)
    training.complete(lambda line: print(line["round"], line["seconds"], [run["validation"] for run in line["runs"]]))
    for seed, federation, best, (_, new) in zip(options.seeds, federations, training.best, worlds, strict=True):
        assert best is not None
        ids = torch.arange(len(federation))
        signatures, described = survey.signatures_of(method, best.state, federation, ids)
        accuracy = survey.scored(method, best.state, federation, ids)
        usual = accuracy[: federation.members].mean()
        labels = "" if options.no_labels else survey.labels_needed(method, federation, usual - MARGIN)
        alone = np.full(len(ids), np.nan)
        if count := [int(word) for word in labels.split() if word.isdigit()][:1]:
            local = Local(task=task, clients=len(federation), members=federation.members)
            fewer = survey.with_labels(federation, count[0])
            alone[federation.first_late :] = survey.scored(local, {}, fewer, ids[federation.first_late :])
        kept = {"signatures": signatures, "accuracy": accuracy, "new": new, "alone": alone, "labels": labels}
        ends = {"members": federation.members, "late": federation.first_late, "described": described}
        np.savez(folder / f"{options.data}-{options.method}-{options.world}-{seed}.npz", **kept, **ends)


def judged(path: Path) -> dict[str, float]:
    """What the gate, learned on members and validators, says of the latecomers, and what is true."""
    with np.load(path) as file:
        kept = {name: file[name] for name in file.files}
    members, late = int(kept["members"]), int(kept["late"])
    gate = Gate.fit(kept["signatures"][:late], kept["accuracy"][:late], members, str(kept["described"]))
    verdicts = [gate.judge(row) for row in kept["signatures"][late:]]
    right, new, alone = (kept[name][late:] for name in ("accuracy", "new", "alone"))
    usual = kept["accuracy"][:members].mean()
    loses, covered = right < usual - MARGIN, np.array([verdict.covered for verdict in verdicts])
    doubt, entropy = np.array([verdict.doubt for verdict in verdicts]), kept["signatures"][late:, -1]
    inside = np.array([verdict.low <= one <= verdict.high for verdict, one in zip(verdicts, right, strict=True)])
    away = np.array([verdict.distance for verdict in verdicts])
    return {
        "members": usual,
        "lose": loses.mean() * 100,
        "AUC": auc(doubt, loses),
        "entropy alone": auc(entropy, loses),
        "distance alone": auc(away, loses),
        "covered, minus members": mean(right[covered]) - usual,
        "not covered, minus members": mean(right[~covered]) - usual,
        "covered that lose": 100 * mean(loses[covered]),
        "of the alike that do not lose, covered": 100 * mean(covered[~new & ~loses]),
        "interval holds, covered": 100 * mean(inside[covered]),
        "interval's width, covered": 2 * gate.facts["width"],
        "trained alone, not covered": mean(alone[~covered]) - usual,
    }


def mean(values: Any) -> float:
    """NaN where there are none, as where nobody is covered."""
    return float(values.mean()) if len(values) else np.nan


def auc(doubt: Any, loses: Any) -> float:
    """The chance that one that loses is doubted more than one that does not."""
    ranks, count = stats.rankdata(doubt), loses.sum()
    return (
        float((ranks[loses].sum() - count * (count + 1) / 2) / (count * (~loses).sum()))
        if 0 < count < len(loses)
        else np.nan
    )


def table(folder: Path) -> None:
    """A mean over seeds, with Student's interval at 95 % where there are several."""
    found = defaultdict(list)
    for path in sorted(folder.glob("*.npz")):
        found[path.stem.rpartition("-")[0]].append(judged(path))
    for name, rows in found.items():
        print(f"\n{name}, {len(rows)} seeds")
        for key in rows[0]:
            each = [row[key] for row in rows if not np.isnan(row[key])]
            half = stats.t.ppf(0.975, len(each) - 1) * stdev(each) / len(each) ** 0.5 if len(each) > 1 else np.nan
            digits = 3 if key == "AUC" or key.endswith(" alone") else 1
            if each:
                print(f"  {key:40} {fmean(each):8.{digits}f} ± {half:.{digits}f}   least {min(each):.{digits}f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", choices=SIZES)
    parser.add_argument("--method", default="pefll", choices=sorted({name for _, name in PLANS}))
    parser.add_argument("--world", default="ring", choices=("rotations", "ring", "pairs"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    parser.add_argument("--rounds", type=int, default=0, help="0: as many as the tables have")
    parser.add_argument("--no-labels", action="store_true", help="do not measure how many labels a stranger needs")
    parser.add_argument("--tiny", action="store_true", help="two rounds and few clients, to see that it runs")
    parser.add_argument("--keep", type=Path, help="where the files of a seed go; a folder of its own")
    parser.add_argument("--table", type=Path, help="only the table, from such a folder")
    options = parser.parse_args()
    if options.table:
        table(options.table)
        return
    print(where())
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        train_and_survey(options, folder)
        table(folder)


if __name__ == "__main__":
    main()
