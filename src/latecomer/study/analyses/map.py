"""pFedHN, Fig. 4, FLowDUP, Fig. 1, ODPFL-HN, Fig. 6: a map of descriptors by PCA and t-SNE, coloured by a trait.

How well the descriptors tell the trait is said in numbers, too: the silhouette (1: far apart, 0: mixed), and for how
many clients the nearest one has the same trait, beside how many that would be by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from sklearn.neighbors import NearestNeighbors

from ...errors import SettingError, UnknownName
from ...settings import setting
from ..client_rows import shares
from ..described import descriptors
from ..figure import Figure, Panels, Series
from ..finished import Finished
from . import Analysis, labels

read = Finished.read
MANY = 10  # values of a number; if there are more, clients fall into quarters by it
FEWEST = 4  # clients


@dataclass(frozen=True, kw_only=True)
class Settings:
    trait: str = setting(
        "auto",
        "what colours a client: class (its most frequent), has:3 (whether it has class 3), classes, or a column of "
        "clients.csv (rotation, train_examples, accuracy, role, ...); auto: what was done to its data, else class",
    )
    who: Literal["all", "members", "latecomers"] = setting("all", "which clients are on the map")
    seed: int | None = setting(None, "which of the run's seeds; not given: the first")
    perplexity: float = setting(30.0, "of t-SNE; a third of the clients at most", above=1)


def analyse(runs: Sequence[Finished], asked: Settings) -> Analysis:
    rows, figures, notes = [], [], []
    for run, name in zip(runs, labels(runs), strict=True):
        seed = run.seeds[0] if asked.seed is None else asked.seed
        if seed not in run.seeds:
            raise SettingError(f"The run in {run.path} has no seed {seed}; there are: {run.seeds}.")
        clients, known = descriptors(run, seed)
        on = [k for k, row in enumerate(clients) if asked.who in ("all", f"{row['role']}s")]
        clients, known = [clients[k] for k in on], known[on]
        if len(clients) < FEWEST:
            raise SettingError(f"A map needs {FEWEST} clients; of {run.path} there are {len(clients)}.")
        trait, values = traits(clients, asked.trait)
        pca = PCA(2 if known.shape[1] > 1 else 1, random_state=0).fit(known)
        flat = np.pad(pca.transform(known), ((0, 0), (0, 2 - pca.n_components_)))
        perplexity = min(asked.perplexity, (len(known) - 1) / 3)
        near = TSNE(perplexity=perplexity, init="random", random_state=0).fit_transform(known)
        for space, points in {"descriptors": known, "PCA": flat, "t-SNE": near}.items():
            rows.append([name, trait, space, len(values), len({*values}), *told(points, values)])
        notes.append(
            f"{name}: the two axes of PCA hold {100 * pca.explained_variance_ratio_.sum():.1f} % of the variance."
        )
        text = [f"client {row['client']}, {row['role']}, {row['accuracy']:.1f} %" for row in clients]
        for space, points in {"PCA": flat, "t-SNE": near}.items():
            series = [_series(trait, value, values, points, text) for value in dict.fromkeys(_ordered(values))]
            figures.append(Figure(f"{name}: {space}", "points", "first axis", "second axis", series))
    title = "Clients by their descriptors"
    columns = ["run", "trait", "space", "clients", "kinds", "silhouette", "nearest alike", "by chance"]
    return Analysis(title, columns, rows, Panels(title, figures), notes)


def told(points: NDArray[Any], values: Sequence[str]) -> list[float]:
    """The silhouette of the kinds; the shares of clients whose nearest is of their kind, and would be by chance."""
    kinds = np.unique(np.array(values), return_inverse=True)[1]
    count = np.bincount(kinds)
    silhouette = float(silhouette_score(points, kinds)) if len(count) < len(points) else float("nan")
    nearest = NearestNeighbors(n_neighbors=1).fit(points).kneighbors(return_distance=False)[:, 0]
    chance = float((count * (count - 1)).sum() / (len(kinds) * (len(kinds) - 1)))
    return [silhouette, float((kinds[nearest] == kinds).mean()), chance]


def traits(rows: Sequence[dict[str, Any]], name: str) -> tuple[str, list[str]]:
    """The trait that is meant, and what each client has of it."""
    if name == "auto":
        done = [column for column in ("permutation", "rotation") if len({row.get(column) for row in rows}) > 1]
        name = done[0] if done else "class"
    values = _values(rows, name)
    if len({*values}) < 2:
        raise SettingError(f"All clients on the map have the same {name}; choose another --trait.")
    return name, values


def _values(rows: Sequence[dict[str, Any]], name: str) -> list[str]:
    has, _, label = name.partition(":")
    if has == "has" and label.isdecimal():
        return [f"class {label}" if int(label) in shares(row) else "other" for row in rows]
    if name == "classes":
        return [" ".join(map(str, sorted(shares(row)))) for row in rows]
    if name == "class":
        return [str(max(held, key=lambda label: held[label])) if (held := shares(row)) else "none" for row in rows]
    known = [column for column in rows[0] if column not in ("seed", "client")]
    if name not in known:
        raise UnknownName("trait", name, [*known, "class", "has:0"])
    values = [None if row[name] != row[name] else row[name] for row in rows]  # NaN: there is none
    numbers = [value for value in values if isinstance(value, int | float)]
    if len({*numbers}) > MANY:
        bounds: NDArray[Any] = np.unique(np.quantile(numbers, (0, 0.25, 0.5, 0.75, 1)))
        values = [None if value is None else _quarter(bounds, value) for value in values]
    return ["none" if value in (None, "") else str(value) for value in values]


def _quarter(bounds: NDArray[Any], value: float) -> str:
    """Which quarter of all values one is in; a value on a bound is in the upper of the two."""
    place = min(int(np.searchsorted(bounds, value, "right")), len(bounds) - 1)
    return f"{bounds[place - 1]:.4g} to {bounds[place]:.4g}"


def _ordered(values: Sequence[str]) -> list[str]:
    """As numbers where they begin with one."""

    def place(value: str) -> tuple[float, str]:
        first = value.split()[0] if value else ""
        return (float(first) if first.replace(".", "", 1).lstrip("-").isdecimal() else np.inf, value)

    return sorted(values, key=place)


def _series(trait: str, value: str, values: Sequence[str], points: NDArray[Any], text: Sequence[str]) -> Series:
    mine = [k for k, other in enumerate(values) if other == value]
    name = value if trait.startswith("has:") else f"{trait} {value}"
    return Series(name, points[mine, 0].tolist(), points[mine, 1].tolist(), text=[text[k] for k in mine])
